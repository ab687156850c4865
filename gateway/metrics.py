"""The gateway's metrics: what generations cost, and what speculation earns them.

Told by the record of each generation, round by round. It decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gateway.tiers import Tiers
from gateway.token_rate import TokenRate
from paceline.records import Proposal, TokenOrigin, Verdict
from paceline.serving.metrics import COARSE_BUCKETS_S, FINE_BUCKETS_S

_LENGTHS = (*range(11), 12, 16, 24, 32)


@dataclass(frozen=True, slots=True)
class RoundLabels:
    """Whose rounds they are."""

    source: str
    """Draft source in use; empty before a session on it was open."""
    arm: str


@dataclass(frozen=True, slots=True)
class Ended:
    """What is counted once of a generation, at its end."""

    outcome: str
    labels: RoundLabels
    num_prompt_tokens: int
    total_s: float
    token_s: float | None
    """Seconds per token behind the first one; None where there is none."""
    wire_bytes: Mapping[str, int]
    """Bytes both ways, by tier."""
    fallbacks: Mapping[str, int]
    num_stale: int
    num_reopened: int


class GatewayMetrics:
    """Declares every metric of a gateway.

    `arm` is the generation's arm of a comparison, empty outside of one.
    """

    def __init__(self, registry: CollectorRegistry, price_per_hour: float = 0.0) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"paceline_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"paceline_{name}", text, labels, registry=registry)

        self.generations = counter(
            "generations",
            "Generations that ended: STOP, LENGTH, CANCELLED or the reason of the error",
            *("outcome", "arm"),
        )
        self.running = gauge("generations_running", "Generations that run now")
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts")
        self.tokens = counter(
            "tokens", "Tokens committed: draft, recovered, bonus or plain", "origin", "arm"
        )
        self.replicas = gauge("replicas", "Replicas that take new sessions", "tier")
        self.price_per_hour = gauge(
            "price_per_hour", "What this stack costs an hour, as configured"
        )
        self.cost_per_million_tokens = gauge(
            "cost_per_million_tokens",
            "Price of an hour over the tokens of an hour at the rate of the last minutes",
        )
        self._token_rate = TokenRate()
        self.price_per_hour.set(price_per_hour)
        self.cost_per_million_tokens.set_function(lambda: self._token_rate.cost(price_per_hour))
        self._rounds_of: dict[RoundLabels, _Rounds] = {}
        self._declare_rounds(registry, counter)
        self._declare_times(registry)
        self._declare_faults(counter)
        self._declare_speculation(gauge, counter)

    def watch(self, tiers: Tiers, num_running: Callable[[], int]) -> None:
        """Reads at every scrape how many generations run and how many replicas are ready."""
        self.running.set_function(num_running)
        self.replicas.labels("verify").set_function(lambda: len(tiers.targets.ready()))
        self.replicas.labels("draft").set_function(lambda: len(tiers.sources.ready()))

    def observe_round(
        self,
        labels: RoundLabels,
        proposal: Proposal,
        verdict: Verdict,
        num_asked: int,
        round_s: float,
    ) -> None:
        """Takes in one round."""
        rounds = self._rounds_of.get(labels)
        if rounds is None:
            rounds = self._rounds_of[labels] = _Rounds(self, labels)
        rounds.observe(proposal, verdict, num_asked, round_s)

    def observe_tokens(self, origins: Sequence[TokenOrigin], arm: str) -> None:
        """Takes in what a round committed."""
        self._token_rate.add(len(origins))
        for origin in set(origins):
            self.tokens.labels(origin.name.lower(), arm).inc(origins.count(origin))

    def observe_first_token(self, since_call_s: float, arm: str) -> None:
        """Takes in a generation's first token."""
        self.time_to_first_token_seconds.labels(arm).observe(since_call_s)

    def observe_source(
        self,
        source: str,
        speedup: float | None,
        acceptance: float,
        cap: int | None,
        new_faults: frozenset[str],
    ) -> None:
        """Takes in a judgement of a draft source."""
        if speedup is not None:
            self.speedup.labels(source).set(speedup)
        self.acceptance.labels(source).set(acceptance)
        self.draft_length_cap.labels(source).set(math.inf if cap is None else cap)
        for reason in new_faults:
            self.speculation_warnings.labels(source, reason).inc()

    def observe_end(self, ended: Ended) -> None:
        """Takes in the end of a generation."""
        labels = ended.labels
        self.generations.labels(ended.outcome, labels.arm).inc()
        self.prompt_tokens.inc(ended.num_prompt_tokens)
        self.generation_seconds.labels(labels.arm).observe(ended.total_s)
        if ended.token_s is not None:
            self.token_seconds.labels(labels.arm).observe(ended.token_s)
        for tier, num_bytes in ended.wire_bytes.items():
            self.wire_bytes.labels(tier).inc(num_bytes)
        for cause, count in ended.fallbacks.items():
            self.fallbacks.labels(cause, labels.source).inc(count)
        self.stale_proposals.inc(ended.num_stale)
        self.reopenings.inc(ended.num_reopened)

    def _declare_rounds(self, registry: CollectorRegistry, counter: Callable[..., Counter]) -> None:
        self.rounds = counter(
            "rounds",
            "Rounds: drafted (with draft tokens), fallback (asked for some and got none), plain",
            *("outcome", "source", "arm"),
        )
        self.drafted_tokens = counter(
            "drafted_tokens",
            "Draft tokens verified, by their place in the proposal from 1 on",
            *("source", "position", "arm"),
        )
        self.accepted_tokens = counter(
            "accepted_tokens",
            "Draft tokens accepted, by their place in the proposal from 1 on",
            *("source", "position", "arm"),
        )
        self.acceptance_length = Histogram(
            "paceline_acceptance_length",
            "Tokens committed by a round with draft tokens, the next token included",
            ("source", "arm"),
            registry=registry,
            buckets=_LENGTHS[1:],
        )
        self.draft_length = Histogram(
            "paceline_draft_length",
            "Draft tokens asked for a round, the first round apart",
            ("source", "arm"),
            registry=registry,
            buckets=_LENGTHS,
        )

    def _declare_times(self, registry: CollectorRegistry) -> None:
        def seconds(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(
                f"paceline_{name}_seconds", text, labels, registry=registry, buckets=buckets
            )

        self.round_seconds = seconds(
            "round", "A round, the first of a generation apart", FINE_BUCKETS_S, "outcome", "arm"
        )
        self.stage_seconds = seconds(
            "stage",
            "Parts of a round: draft, verify_queue, verify_forward, overhead (all the rest)",
            FINE_BUCKETS_S,
            "stage",
        )
        self.time_to_first_token_seconds = seconds(
            "time_to_first_token", "From the call to the first token", COARSE_BUCKETS_S, "arm"
        )
        self.generation_seconds = seconds(
            "generation", "From the call to the end of the generation", COARSE_BUCKETS_S, "arm"
        )
        self.token_seconds = seconds(
            "token",
            "Time per token of a generation behind its first token",
            FINE_BUCKETS_S,
            "arm",
        )

    def _declare_faults(self, counter: Callable[..., Counter]) -> None:
        self.wire_bytes = counter("wire_bytes", "Bytes of messages between the tiers", "tier")
        self.fallbacks = counter(
            "fallbacks", "Rounds that asked for draft tokens and got none", "cause", "source"
        )
        self.stale_proposals = counter("stale_proposals", "Proposals that nobody waited for")
        self.reopenings = counter("reopenings", "Sessions opened again on another verify replica")

    def _declare_speculation(
        self, gauge: Callable[..., Gauge], counter: Callable[..., Counter]
    ) -> None:
        self.speedup = gauge(
            "speculation_speedup",
            "Running estimate: time of a plain round over time per token with draft tokens",
            "source",
        )
        self.acceptance = gauge(
            "speculation_acceptance", "Accepted over drafted tokens of the last rounds", "source"
        )
        self.draft_length_cap = gauge(
            "draft_length_cap", "Longest proposal that adapted lengths may have now", "source"
        )
        self.speculation_warnings = counter(
            "speculation_warnings",
            "Times that the last rounds were found wanting: acceptance or slower",
            *("source", "reason"),
        )


class _Rounds:
    """The metrics of rounds with their labels already chosen: a look-up costs more than a count."""

    def __init__(self, metrics: GatewayMetrics, labels: RoundLabels) -> None:
        source, arm = labels.source, labels.arm
        self._counts = {
            outcome: (
                metrics.rounds.labels(outcome, source, arm),
                metrics.round_seconds.labels(outcome, arm),
            )
            for outcome in ("drafted", "fallback", "plain")
        }
        self._acceptance_length = metrics.acceptance_length.labels(source, arm)
        self._draft_length = metrics.draft_length.labels(source, arm)
        self._stages = tuple(
            metrics.stage_seconds.labels(stage)
            for stage in ("draft", "verify_queue", "verify_forward", "overhead")
        )
        self._drafted: list[Counter] = []
        self._accepted: list[Counter] = []
        self._metrics, self._labels = metrics, labels

    def observe(self, proposal: Proposal, verdict: Verdict, num_asked: int, round_s: float) -> None:
        """Takes in one round."""
        num_drafted = len(proposal.token_ids)
        outcome = "drafted" if num_drafted else "fallback" if num_asked else "plain"
        count, seconds = self._counts[outcome]
        count.inc()
        if num_drafted:
            self._acceptance_length.observe(verdict.num_accepted + 1)
            self._count_positions(num_drafted, verdict.num_accepted)
        if proposal.round == 1:  # it opens the streams and runs the prompt
            return
        seconds.observe(round_s)
        self._draft_length.observe(num_asked)
        known_s = (proposal.draft_s, verdict.queue_s, verdict.forward_s)
        for stage, spent_s in zip(self._stages, (*known_s, round_s - sum(known_s)), strict=True):
            stage.observe(max(0.0, spent_s))

    def _count_positions(self, num_drafted: int, num_accepted: int) -> None:
        while len(self._drafted) < num_drafted:
            labels = self._labels.source, str(len(self._drafted) + 1), self._labels.arm
            self._drafted.append(self._metrics.drafted_tokens.labels(*labels))
            self._accepted.append(self._metrics.accepted_tokens.labels(*labels))
        for drafted in self._drafted[:num_drafted]:
            drafted.inc()
        for accepted in self._accepted[:num_accepted]:
            accepted.inc()
