"""One generation from its record to its last event: both sessions, the rounds, the log line.

Whatever ends it ends both sessions at once. It does not know how requests come in.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

import structlog

from gateway import events
from gateway.commit import Committed, Committer
from gateway.config import GatewayConfig
from gateway.draft_length import DraftLengthPolicy, FixedLength, WindowLength
from gateway.drafter_session import DraftChoice, DrafterSession
from gateway.metrics import Ended, GatewayMetrics, RoundLabels
from gateway.pairing import NO_DRAFT
from gateway.request import Generation
from gateway.round import Pair, run_rounds
from gateway.stats import SpeculationStats
from gateway.tiers import Target, Tiers
from gateway.verifier_session import VerifierBounds, VerifierSession
from paceline import wire
from paceline.errors import PacelineError
from paceline.records import Proposal, Verdict
from paceline.v1 import gateway_pb2

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Call:
    """What is known of the call that a generation answers."""

    arrived_s: float
    """`time.perf_counter()` at its arrival."""
    deadline_s: float | None
    """Event loop time at which the caller gives up."""


async def run_generation(
    generation: Generation,
    target: Target,
    tiers: Tiers,
    config: GatewayConfig,
    call: Call,
    metrics: GatewayMetrics,
) -> AsyncGenerator[gateway_pb2.GenerateResponse, None]:
    """Runs one generation and yields its events.

    Raises:
        PacelineError: it cannot go on; what was yielded is valid.
    """
    committer = Committer(generation.ending, target.tokenizer.decode)
    committer.resume(generation.committed_token_ids)
    policy = choose_policy(generation, config)
    sessions = _open_sessions(generation, target, tiers, config, call.deadline_s)
    record = _Record(generation, sessions, call, metrics)
    try:
        yield events.started(generation, target.model)
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
                yield events.tokens(committed)
                if committed.finish_reason is not None:
                    record.outcome = committed.finish_reason.name
                    yield events.finished(
                        committed.finish_reason, generation, committer.num_tokens, record.message()
                    )
    except PacelineError as error:
        record.outcome = error.reason
        raise
    finally:
        sessions.verifier.close()
        sessions.drafter.close()
        record.close()


def choose_policy(generation: Generation, config: GatewayConfig) -> DraftLengthPolicy:
    """The draft length policy of one generation: the client's pin, or the service's setting."""
    if generation.num_draft_tokens is not None:
        return FixedLength(generation.num_draft_tokens)
    longest = config.max_draft_tokens
    if generation.max_draft_tokens is not None:
        longest = min(longest, generation.max_draft_tokens)
    kind, _, pinned = config.draft_length.partition(":")
    if kind == "fixed":
        return FixedLength(min(longest, int(pinned)))
    return WindowLength(longest)


@dataclass(frozen=True, slots=True)
class _Sessions(Pair):
    """The pair with what only real sessions have: bytes, replicas, an end."""

    verifier: VerifierSession
    drafter: DrafterSession


def _open_sessions(
    generation: Generation,
    target: Target,
    tiers: Tiers,
    config: GatewayConfig,
    deadline_s: float | None,
) -> _Sessions:
    bounds = VerifierBounds(config.verify_stall_s, config.reopen_patience_s, deadline_s)
    # Plain decoding on purpose needs no session on the draft tier.
    source = NO_DRAFT if generation.num_draft_tokens == 0 else generation.draft_source
    choice = DraftChoice(source, target.model, config.draft_stall_s, deadline_s)
    return _Sessions(
        VerifierSession(tiers.targets, generation.spec, target, bounds),
        DrafterSession(tiers.sources, generation.spec, choice),
    )


class _Record:
    """What is told of a generation at its end: in its last event and in one log line."""

    def __init__(
        self, generation: Generation, sessions: _Sessions, call: Call, metrics: GatewayMetrics
    ) -> None:
        self._stats = SpeculationStats()
        self._metrics = metrics
        self.outcome = "CANCELLED"
        """Finish reason, or the reason of the error; unless one is noted, the call was ended."""
        self._generation = generation
        self._sessions = sessions
        self._arrived_s = call.arrived_s
        self._first_s = self._last_s = 0.0
        self._num_tokens = 0

    def observe(self, proposal: Proposal, verdict: Verdict, num_asked: int, round_s: float) -> None:
        """Takes in one round."""
        self._stats.observe(proposal, verdict, num_asked, round_s)
        self._metrics.observe_round(
            RoundLabels(self._sessions.drafter.source, ""), proposal, verdict, num_asked, round_s
        )

    def commit(self, committed: Committed) -> None:
        """Notes that a round committed tokens just now."""
        self._last_s = time.perf_counter()
        if not self._num_tokens:
            self._first_s = self._last_s
            self._metrics.observe_first_token(self._first_s - self._arrived_s, "")
        self._num_tokens += len(committed.token_ids)
        self._metrics.observe_tokens(committed.origins, "")

    def message(self) -> gateway_pb2.GenerationStats:
        """The statistics as the client gets them."""
        sessions = self._sessions
        message = events.speculation(self._stats)
        num_bytes = sessions.verifier.num_bytes + sessions.drafter.num_bytes
        message.wire_bytes_per_token = num_bytes / max(1, self._num_tokens)
        message.time_to_first_token.CopyFrom(wire.duration(self._first_s - self._arrived_s))
        if (token_s := self._token_s) is not None:
            message.tokens_per_second = 1 / token_s
        message.fallbacks.update(sessions.drafter.fallbacks)
        message.reopened_count = sessions.verifier.num_reopened
        message.draft_source = sessions.drafter.source
        return message

    def close(self) -> None:
        """Counts the outcome for the replicas and writes the one line of this generation."""
        stats, sessions = self._stats, self._sessions
        for replica in (sessions.verifier.replica, sessions.drafter.replica):
            if replica is not None:
                replica.num_drafted += stats.num_drafted
                replica.num_accepted += stats.num_accepted
        ended = self._ended()
        self._metrics.observe_end(ended)
        _log.info(
            "generation",
            request_id=self._generation.spec.request_id,
            outcome=self.outcome,
            prompt_tokens=self._generation.spec.prompt_length,
            tokens=self._num_tokens,
            rounds=stats.num_rounds,
            plain_rounds=stats.num_plain_rounds,
            drafted=stats.num_drafted,
            accepted=stats.num_accepted,
            draft_source=sessions.drafter.source,
            fallbacks=dict(sessions.drafter.fallbacks),
            stale=sessions.drafter.num_stale,
            reopened=sessions.verifier.num_reopened,
            first_token_s=round(max(0.0, self._first_s - self._arrived_s), 4),
            token_s=None if ended.token_s is None else round(ended.token_s, 6),
            total_s=round(ended.total_s, 4),
        )

    @property
    def _token_s(self) -> float | None:
        """Seconds per token behind those of the first round; None where there is none."""
        num_later, later_s = self._num_tokens - 1, self._last_s - self._first_s
        return later_s / num_later if num_later > 0 and later_s > 0 else None

    def _ended(self) -> Ended:
        verifier, drafter = self._sessions.verifier, self._sessions.drafter
        return Ended(
            self.outcome,
            RoundLabels(drafter.source, ""),
            self._generation.spec.prompt_length,
            time.perf_counter() - self._arrived_s,
            self._token_s,
            {"verify": verifier.num_bytes, "draft": drafter.num_bytes},
            drafter.fallbacks,
            drafter.num_stale,
            verifier.num_reopened,
        )
