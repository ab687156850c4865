"""What is told of a generation, to the client, the log, the metrics, the watch and the trace.

Round by round, and once at its end, in its last event and in one log line. It decides nothing, and
does not know how rounds are run.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import structlog

from gateway import events
from gateway.arms import unit
from gateway.commit import Committed
from gateway.drafter_session import DrafterSession
from gateway.metrics import Ended, GatewayMetrics, RoundLabels
from gateway.request import Generation
from gateway.round import Pair
from gateway.stats import SpeculationStats
from gateway.turns import Place, Turns
from gateway.verifier_session import VerifierSession
from gateway.watch import Watch
from paceline import wire
from paceline.records import Proposal, Verdict
from paceline.serving.tracing import Attributes, Span, Tracer
from paceline.v1 import gateway_pb2

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Observers:
    """Who is told of every generation of a gateway."""

    metrics: GatewayMetrics
    watch: Watch
    turns: Turns
    tracer: Tracer

    def start_span(self, generation: Generation, model: str, traceparent: str) -> Span:
        """Begins the span of a generation, named as the conventions of generative models ask."""
        sampling = generation.spec.sampling
        attributes: Attributes = {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.provider.name": "paceline",
            "gen_ai.request.model": model,
            "gen_ai.request.max_tokens": generation.ending.max_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.usage.input_tokens": generation.spec.prompt_length,
            "paceline.request_id": generation.spec.request_id,
            "paceline.rule": generation.spec.rule.name,
            "paceline.arm": generation.arm,
        }
        return self.tracer.start(f"text_completion {model}", traceparent, attributes)


@dataclass(frozen=True, slots=True)
class Sessions(Pair):
    """The pair with what only real sessions have: bytes, replicas, an end."""

    verifier: VerifierSession
    drafter: DrafterSession


class Record:
    """The story of one generation."""

    def __init__(
        self,
        generation: Generation,
        sessions: Sessions,
        observers: Observers,
        span: Span,
        place: Place,
        arrived_s: float,
    ) -> None:
        self.outcome = "CANCELLED"
        """Finish reason, or the reason of the error; unless one is noted, the call was ended."""
        self._stats = SpeculationStats()
        self._metrics = observers.metrics
        self._watch = observers.watch
        self._span = span
        self._place = place
        self._generation = generation
        self._sessions = sessions
        self._arrived_s = arrived_s
        self._first_s = self._last_s = 0.0
        self._num_tokens = 0

    def observe(self, proposal: Proposal, verdict: Verdict, num_asked: int, round_s: float) -> None:
        """Takes in one round."""
        self._stats.observe(proposal, verdict, num_asked, round_s)
        self._metrics.observe_round(self._labels, proposal, verdict, num_asked, round_s)
        num_drafted, num_accepted = len(proposal.token_ids), verdict.num_accepted
        self._place.observe(num_accepted + 1, round_s)
        self._span.round(
            proposal.round,
            round_s,
            {"paceline.draft_tokens": num_drafted, "paceline.accepted_tokens": num_accepted},
        )

    def commit(self, committed: Committed) -> None:
        """Notes that a round committed tokens just now."""
        self._last_s = time.perf_counter()
        if not self._num_tokens:
            self._first_s = self._last_s
            self._metrics.observe_first_token(self._first_s - self._arrived_s, self._generation.arm)
        self._num_tokens += len(committed.token_ids)
        self._metrics.observe_tokens(committed.origins, self._generation.arm)

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
        """Counts the outcome, leaves its place, ends the span and writes this generation's line."""
        self._place.leave()
        stats, verifier, drafter = self._stats, self._sessions.verifier, self._sessions.drafter
        for replica in (verifier.replica, drafter.replica):
            if replica is not None:
                replica.num_drafted += stats.num_drafted
                replica.num_accepted += stats.num_accepted
        ended = self._ended()
        self._metrics.observe_end(ended)
        self._span.set(self._told())
        speedup = self._watch.speedup(drafter.source) if drafter.source else None
        _log.info(
            "generation",
            request_id=self._generation.spec.request_id,
            sample=self._generation.spec.sample_index,
            outcome=self.outcome,
            arm=self._generation.arm,
            ab_unit=unit(self._generation),
            prompt_tokens=self._generation.spec.prompt_length,
            tokens=self._num_tokens,
            rounds=stats.num_rounds,
            plain_rounds=stats.num_plain_rounds,
            asked=stats.num_asked,
            drafted=stats.num_drafted,
            accepted=stats.num_accepted,
            drafted_by_position=stats.drafted_by_position,
            accepted_by_position=stats.accepted_by_position,
            draft_source=drafter.source,
            speedup=None if speedup is None else round(speedup, 3),
            draft_s=round(stats.draft_s, 4),
            verify_queue_s=round(stats.queue_s, 4),
            verify_s=round(stats.verify_s, 4),
            overhead_s=round(stats.overhead_s, 4),
            wire_bytes=dict(ended.wire_bytes),
            fallbacks=dict(drafter.fallbacks),
            stale=drafter.num_stale,
            reopened=verifier.num_reopened,
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
            self._labels,
            0 if self._generation.shares_prompt else self._generation.spec.prompt_length,
            time.perf_counter() - self._arrived_s,
            self._token_s,
            {"verify": verifier.num_bytes, "draft": drafter.num_bytes},
            drafter.fallbacks,
            drafter.num_stale,
            verifier.num_reopened,
        )

    @property
    def _labels(self) -> RoundLabels:
        return RoundLabels(self._sessions.drafter.source, self._generation.arm)

    def _told(self) -> Attributes:
        """What the span says at its end."""
        return {
            "gen_ai.usage.output_tokens": self._num_tokens,
            "gen_ai.response.finish_reasons": [self.outcome.lower()],
            "paceline.rounds": self._stats.num_rounds,
            "paceline.acceptance_rate": self._stats.acceptance_rate,
            "paceline.draft_source": self._sessions.drafter.source,
        }
