"""The verify tier's own metrics; `paceline/tier_metrics.py` has those of engines and sessions."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from paceline.records import Verdict
from paceline.serving.metrics import FINE_BUCKETS_S


def told(verdict: Verdict) -> dict[str, str | int | float]:
    """What the span of a round says of its verdict."""
    return {
        "paceline.accepted_tokens": verdict.num_accepted,
        "paceline.kind": verdict.kind.name.lower(),
        "paceline.queue_s": verdict.queue_s,
        "paceline.forward_s": verdict.forward_s,
    }


class VerifyMetrics:
    """Declares every metric of a verify replica."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._verdicts = Counter(
            "paceline_verify_verdicts",
            "Verdicts by what their own token is: recovered, bonus or plain",
            ("kind",),
            registry=registry,
        )
        self._accepted_tokens = Counter(
            "paceline_verify_accepted_tokens", "Draft tokens accepted", registry=registry
        )
        self._queue_seconds = Histogram(
            "paceline_verify_queue_seconds",
            "Wait of a proposal for its first step",
            registry=registry,
            buckets=FINE_BUCKETS_S,
        )
        self._forward_seconds = Histogram(
            "paceline_verify_forward_seconds",
            "Steps of a proposal, from the first one's start to its laws",
            registry=registry,
            buckets=FINE_BUCKETS_S,
        )

    def observe(self, verdict: Verdict) -> None:
        """Takes in one verdict."""
        self._verdicts.labels(verdict.kind.name.lower()).inc()
        self._accepted_tokens.inc(verdict.num_accepted)
        self._queue_seconds.observe(verdict.queue_s)
        self._forward_seconds.observe(verdict.forward_s)
