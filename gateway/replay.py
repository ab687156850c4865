"""Replays a share of finished generations as plain decoding, and counts what differs.

Only what greedy decoding or the coupled rule emitted is replayed: there the ids are a function of
prompt, parameters and seed. A replay is a verify session like any other, without a draft, in a
cache domain of its own: it computes everything anew. It sees what the audit of the verify tier
cannot, a law that is itself wrong. It runs behind the clients: one at a time, the first to lose its
blocks, and none while the gateway is busy. It does not know how generations run.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

import structlog

from gateway.admission import Admission
from gateway.config import GatewayConfig
from gateway.metrics import GatewayMetrics
from gateway.replicas import Replicas
from gateway.request import Generation
from gateway.tiers import Target
from gateway.verifier_session import VerifierBounds, VerifierSession
from paceline.errors import PacelineError
from paceline.records import ModelIdentity, Proposal, SessionSpec, VerificationRule
from paceline.v1 import gateway_pb2

EQUAL, NEAR_TIE, MISMATCH, SKIPPED, FAILED = "equal", "near_tie", "mismatch", "skipped", "failed"
OUTCOMES = (EQUAL, NEAR_TIE, MISMATCH, SKIPPED, FAILED)

Events = AsyncGenerator[gateway_pb2.GenerateResponse, None]
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place at which plain decoding gave another token."""

    index: int
    """Of the output token, from 0."""
    token_id: int
    replayed_token_id: int
    margin: float | None
    """By how much, in logits, the replayed token led; None where it was not asked for."""


class Replayer:
    """Owns the replay in flight and the counts."""

    def __init__(
        self,
        targets: Replicas[Target],
        config: GatewayConfig,
        admission: Admission,
        metrics: GatewayMetrics,
    ) -> None:
        self._targets = targets
        self._config = config
        self._admission = admission
        self._metrics = metrics
        self._task: asyncio.Task[None] | None = None
        self.counts: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        for outcome in OUTCOMES:  # a series that begins with its first count shows no increase
            metrics.replays.labels(outcome)

    def overhear(self, run: Events, generation: Generation, target: Target) -> Events:
        """The events of a generation as they are; one of the share is replayed once it has ended.

        Which are chosen does not depend on what they say. Of several samples the first is replayed.
        """
        is_chosen = random.random() < self._config.replay_share
        if not is_chosen or not is_fixed(generation.spec, target.model):
            return run
        return self._overhear(run, generation, target)

    async def stop(self) -> None:
        """Ends the replay in flight."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _overhear(self, run: Events, generation: Generation, target: Target) -> Events:
        token_ids: list[int] = []
        index = generation.spec.sample_index
        async with aclosing(run):
            async for event in run:
                if event.tokens.sample_index == index:
                    token_ids.extend(event.tokens.token_ids)
                if event.HasField("finished") and event.finished.sample_index == index:
                    self._offer(generation.spec, target, token_ids)
                yield event

    def _offer(self, spec: SessionSpec, target: Target, token_ids: Sequence[int]) -> None:
        is_running = self._task is not None and not self._task.done()
        if is_running or self._admission.is_busy:
            self._count(SKIPPED)
        else:
            self._task = asyncio.create_task(self._replay(spec, target, token_ids))

    async def _replay(self, spec: SessionSpec, target: Target, token_ids: Sequence[int]) -> None:
        bounds = VerifierBounds(self._config.verify_stall_s, self._config.reopen_patience_s)
        session = VerifierSession(self._targets, replay_spec(spec, target.model), target, bounds)
        log = _log.bind(request_id=spec.request_id)
        try:
            difference = await first_difference(session, len(spec.token_ids), token_ids)
        except PacelineError as error:
            self._count(FAILED)
            log.warning("replay_failed", error=str(error))
            return
        finally:
            session.close()
        outcome = self._judge(difference, target.model)
        self._count(outcome)
        if difference is not None:
            report = log.error if outcome == MISMATCH else log.info
            report(
                "replay_differs",
                outcome=outcome,
                position=len(spec.token_ids) - spec.prompt_length + difference.index,
                token_id=difference.token_id,
                replayed_token_id=difference.replayed_token_id,
                margin=difference.margin,
                fingerprint=target.model.fingerprint,
            )

    def _count(self, outcome: str) -> None:
        self.counts[outcome] += 1
        self._metrics.replays.labels(outcome).inc()

    def _judge(self, difference: Difference | None, model: ModelIdentity) -> str:
        if difference is None:
            return EQUAL
        if model.exact or difference.margin is None:
            return MISMATCH
        return NEAR_TIE if difference.margin <= self._config.replay_margin else MISMATCH


def is_fixed(spec: SessionSpec, model: ModelIdentity) -> bool:
    """Whether the ids are those of plain decoding, up to near ties.

    Quantized activations outside exact mode turn last bits into other tokens far too often.
    """
    is_claimed = model.exact or not model.quantization
    return is_claimed and (spec.rule is VerificationRule.COUPLED or spec.sampling.is_greedy)


def replay_spec(spec: SessionSpec, model: ModelIdentity) -> SessionSpec:
    """The session that decodes the same text anew."""
    num_log_probs = None if model.exact else 0  # margins come with them
    return replace(
        spec,
        sampling=replace(spec.sampling, num_log_probs=num_log_probs, num_prompt_log_probs=None),
        cache_domain=f"replay/{secrets.token_hex(8)}",
        arrival_time_s=time.time(),  # the latest to arrive loses its blocks first
        has_fresh_seed=False,
    )


async def first_difference(
    session: VerifierSession, base_length: int, token_ids: Sequence[int]
) -> Difference | None:
    """Decodes until a token differs.

    Raises:
        PacelineError: the session is lost and could not be reopened.
    """
    for index, token_id in enumerate(token_ids):
        verdict = await session.verify(Proposal(index + 1, base_length + index))
        if verdict.next_token_id != token_id:
            return Difference(index, token_id, verdict.next_token_id, verdict.margin)
    return None
