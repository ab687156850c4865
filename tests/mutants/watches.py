"""Mistakes of what a gateway says of itself: counts, the watch over sources, arms, traces."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_METRICS = "gateway/metrics.py"
_WATCH = "gateway/watch.py"
_ARMS = "gateway/arms.py"
_RECORD = "gateway/record.py"

_METRICS_TESTS = ("tests/gateway/test_metrics.py",)
_WATCH_TESTS = ("tests/gateway/test_watch.py",)
_ARMS_TESTS = ("tests/gateway/test_arms.py",)

MUTANTS = (
    Mutant(
        "every drafted position counted as accepted",
        _METRICS,
        "for accepted in self._accepted[:num_accepted]:",
        "for accepted in self._accepted[:num_drafted]:",
        _METRICS_TESTS,
    ),
    Mutant(
        "rounds that asked in vain counted as plain",
        _METRICS,
        '"fallback" if num_asked else "plain"',
        '"plain"',
        _METRICS_TESTS,
    ),
    Mutant(
        "the next token missing in the acceptance length",
        _METRICS,
        "observe(verdict.num_accepted + 1)",
        "observe(verdict.num_accepted)",
        _METRICS_TESTS,
    ),
    Mutant(
        "fallbacks free of charge for their source",
        _WATCH,
        "        if finished.num_asked:\n            pool.rounds",
        "        if finished.num_drafted:\n            pool.rounds",
        _WATCH_TESTS,
    ),
    Mutant(
        "no way back from a cap of 0",
        _WATCH,
        "cap = max(PROBE_LENGTH, 2 * cap)",
        "cap = 2 * cap",
        _WATCH_TESTS,
    ),
    Mutant(
        "a slow source never lowered to nothing",
        _WATCH,
        "int(mean_asked / 2) if is_slower else max(1, int(mean_asked / 2))",
        "max(1, int(mean_asked / 2))",
        _WATCH_TESTS,
    ),
    Mutant(
        "the cap put on pinned lengths",
        _WATCH,
        "is_capped = self._is_capped and source",
        "is_capped = source",
        _WATCH_TESTS,
    ),
    Mutant(
        "a tenant's requests spread over the arms",
        _ARMS,
        "generation.spec.cache_domain or generation.spec.request_id",
        "generation.spec.request_id or generation.spec.cache_domain",
        _ARMS_TESTS,
    ),
    Mutant(
        "clients that chose compared with the rest",
        _ARMS,
        "if not arms or generation.draft_source or generation.num_draft_tokens is not None:",
        "if not arms:",
        _ARMS_TESTS,
    ),
    Mutant(
        "a shared place for every arm",
        _ARMS,
        "        place -= arm.share\n",
        "",
        _ARMS_TESTS,
    ),
    Mutant(
        "an arm that its log line does not name",
        _RECORD,
        "arm=self._generation.arm,\n            ab_unit",
        'arm="",\n            ab_unit',
        _METRICS_TESTS,
    ),
)
