"""One generation from its record to its last event: both sessions and the rounds.

Whatever ends it ends both sessions at once. It does not know how requests come in.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

from gateway import events
from gateway.commit import Committer
from gateway.config import GatewayConfig
from gateway.cost_length import CostLength
from gateway.draft_length import DraftLengthPolicy, FixedLength, WindowLength
from gateway.drafter_session import DraftChoice, DrafterSession
from gateway.pairing import NO_DRAFT
from gateway.record import Observers, Record, Sessions
from gateway.request import Generation
from gateway.round import run_rounds
from gateway.round_times import RoundTimes
from gateway.tiers import Target, Tiers
from gateway.turns import Place, Turns
from gateway.verifier_session import VerifierBounds, VerifierSession
from gateway.watch import Watch
from paceline.errors import PacelineError
from paceline.v1 import gateway_pb2


@dataclass(frozen=True, slots=True)
class Call:
    """What is known of the call that a generation answers."""

    arrived_s: float
    """`time.perf_counter()` at its arrival."""
    deadline_s: float | None
    """Event loop time at which the caller gives up."""
    observers: Observers
    traceparent: str = ""
    """Context of the caller's trace; empty without one."""
    home: str = ""
    """Address of the verify replica that is taken first, if it is there."""


async def run_generation(
    generation: Generation, target: Target, tiers: Tiers, config: GatewayConfig, call: Call
) -> AsyncGenerator[gateway_pb2.GenerateResponse, None]:
    """Runs one generation and yields its events, from its first tokens on.

    Raises:
        PacelineError: it cannot go on; what was yielded is valid.
    """
    committer = Committer(generation.ending, target.tokenizer.decode)
    committer.resume(generation.committed_token_ids)
    observers = call.observers
    span = observers.start_span(generation, target.model.name, call.traceparent)
    call = replace(call, traceparent=span.traceparent)
    place = _take_place(generation, tiers, config, observers.turns)
    generation = generation if place.drafts else replace(generation, num_draft_tokens=0)
    sessions = _open_sessions(generation, target, tiers, config, call)
    record = Record(generation, sessions, observers, span, place, call.arrived_s)
    policy = place.shared(_watched_policy(generation, config, sessions, observers.watch))
    try:
        rounds = run_rounds(
            sessions,
            committer,
            policy,
            record,
            base_length=len(generation.spec.token_ids),
            last_length=generation.last_length,
        )
        async with aclosing(rounds):
            async for committed in rounds:
                record.commit(committed)
                if committed.prompt_log_probs:
                    yield events.prompt_log_probs(committed)
                yield events.tokens(committed, generation.spec.sample_index)
                if committed.finish_reason is not None:
                    record.outcome = committed.finish_reason.name
                    yield events.finished(
                        committed.finish_reason, generation, committer.num_tokens, record.message()
                    )
    except Exception as error:
        record.outcome = error.reason if isinstance(error, PacelineError) else "INTERNAL"
        raise
    finally:
        sessions.verifier.close()
        sessions.drafter.close()
        record.close()
        span.end(sys.exception())


def _watched_policy(
    generation: Generation, config: GatewayConfig, sessions: Sessions, watch: Watch
) -> DraftLengthPolicy:
    return watch.watched(
        choose_policy(generation, config, lambda: watch.times(sessions.drafter.source)),
        lambda: sessions.drafter.source,
    )


def choose_policy(
    generation: Generation, config: GatewayConfig, times: Callable[[], RoundTimes | None]
) -> DraftLengthPolicy:
    """The draft length policy of one generation: the client's pin, or the service's setting.

    `times` are those of the draft source in use, None before there is one.
    """
    longest = _longest(generation, config)
    if _is_pinned(generation, config):
        return FixedLength(longest)
    is_cost = _policy_name(generation, config) == "cost"
    return CostLength(longest, times) if is_cost else WindowLength(longest)


def _policy_name(generation: Generation, config: GatewayConfig) -> str:
    """window, cost or fixed:N."""
    return generation.draft_length or config.draft_length


def _is_pinned(generation: Generation, config: GatewayConfig) -> bool:
    """Whether all its proposals are to be of one length."""
    is_fixed = _policy_name(generation, config).startswith("fixed")
    return generation.num_draft_tokens is not None or is_fixed


def _longest(generation: Generation, config: GatewayConfig) -> int:
    """Draft tokens of its longest proposal; 0 is plain decoding on purpose."""
    if generation.num_draft_tokens is not None:
        return generation.num_draft_tokens
    longest = config.max_draft_tokens
    if generation.max_draft_tokens is not None:
        longest = min(longest, generation.max_draft_tokens)
    kind, _, pinned = _policy_name(generation, config).partition(":")
    return min(longest, int(pinned)) if kind == "fixed" else longest


def _open_sessions(
    generation: Generation,
    target: Target,
    tiers: Tiers,
    config: GatewayConfig,
    call: Call,
) -> Sessions:
    bounds = VerifierBounds(
        config.verify_stall_s, config.reopen_patience_s, call.deadline_s, call.traceparent
    )
    # Plain decoding on purpose needs no session on the draft tier.
    source = generation.draft_source if _longest(generation, config) else NO_DRAFT
    choice = DraftChoice(
        source, target.model, config.draft_stall_s, call.deadline_s, call.traceparent
    )
    return Sessions(
        VerifierSession(tiers.targets, generation.spec, target, bounds, call.home),
        DrafterSession(tiers.sources, generation.spec, choice),
    )


def _take_place(generation: Generation, tiers: Tiers, config: GatewayConfig, turns: Turns) -> Place:
    """Whether a generation drafts; one that names its source or pins its length is not turned."""
    is_plain = generation.draft_source == NO_DRAFT or not _longest(generation, config)
    if is_plain or not tiers.sources.targets:
        return turns.begin_pinned(drafts=False)
    if generation.draft_source or _is_pinned(generation, config):
        return turns.begin_pinned(drafts=True)
    return turns.begin()
