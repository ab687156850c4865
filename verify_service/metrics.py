"""The verify tier's own metrics; `paceline/tier_metrics.py` has those of engines and sessions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from paceline.records import AuditReport, Verdict, VerdictKind
from paceline.serving.metrics import FINE_BUCKETS_S

_AUDIT = (
    ("num_tokens", "tokens", "Tokens judged against their laws since the start: emitted, drafted"),
    ("deviations", "deviations", "The sum of -ln p(y) - H(p) over them, in standard deviations"),
    ("evidence", "evidence", "Most evidence against the laws since the start; an alarm from 1 on"),
)


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
        verdicts = Counter(
            "paceline_verify_verdicts",
            "Verdicts by what their own token is: recovered, bonus or plain",
            ("kind",),
            registry=registry,
        )
        self._verdicts = {kind: verdicts.labels(kind.name.lower()) for kind in VerdictKind}
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

        self._audit = {
            field: Gauge(f"paceline_audit_{name}", text, ("kind",), registry=registry)
            for field, name, text in _AUDIT
        }

    def watch_audit(self, report: Callable[[], AuditReport]) -> None:
        """Reads the audit's report at every scrape."""

        def read(kind: str, field: str) -> float:
            return float(getattr(getattr(report(), kind), field))

        for kind in ("emitted", "drafted"):
            for field, gauge in self._audit.items():
                gauge.labels(kind).set_function(partial(read, kind, field))

    def observe(self, verdict: Verdict) -> None:
        """Takes in one verdict."""
        self._verdicts[verdict.kind].inc()
        self._accepted_tokens.inc(verdict.num_accepted)
        self._queue_seconds.observe(verdict.queue_s)
        self._forward_seconds.observe(verdict.forward_s)
