"""The draft tier's own metrics; `paceline/tier_metrics.py` has those of engines and sessions."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from paceline.records import Proposal
from paceline.serving.metrics import FINE_BUCKETS_S


def told(source: str, proposal: Proposal) -> dict[str, str | int | float]:
    """What the span of a round says of its proposal."""
    return {"paceline.draft_source": source, "paceline.draft_tokens": len(proposal.token_ids)}


class DraftMetrics:
    """Declares every metric of a draft replica."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._of: dict[str, tuple[Counter, Counter, Histogram]] = {}
        """Proposals, tokens and seconds by source: a look-up costs more than a count."""
        self._proposals = Counter(
            "paceline_draft_proposals", "Proposals sent", ("source",), registry=registry
        )
        self._tokens = Counter(
            "paceline_draft_tokens", "Draft tokens proposed", ("source",), registry=registry
        )
        self._superseded = Counter(
            "paceline_draft_superseded",
            "Proposals that a newer request overtook",
            ("source",),
            registry=registry,
        )
        self._seconds = Histogram(
            "paceline_draft_seconds",
            "Drafting of one proposal, queueing included",
            ("source",),
            registry=registry,
            buckets=FINE_BUCKETS_S,
        )

    def observe(self, source: str, proposal: Proposal) -> None:
        """Takes in one proposal."""
        if source not in self._of:
            self._of[source] = (
                self._proposals.labels(source),
                self._tokens.labels(source),
                self._seconds.labels(source),
            )
        proposals, tokens, seconds = self._of[source]
        proposals.inc()
        tokens.inc(len(proposal.token_ids))
        seconds.observe(proposal.draft_s)

    def supersede(self, source: str) -> None:
        """Counts a proposal that was overtaken."""
        self._superseded.labels(source).inc()
