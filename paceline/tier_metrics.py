"""What the two model tiers tell a scraper of their engines and sessions.

The engine counts in plain numbers, which are read here at the time of a scrape: it imports no
metrics, and its thread waits for no lock of theirs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from paceline.engine.engine import Engine
from paceline.engine.figures import Tally
from paceline.tier import Sessions

_LABELS = ("tier", "model")
_GAUGES: Mapping[str, tuple[str, Callable[[Engine], float]]] = {
    "alive": (
        "1 while the engine's thread runs and is stuck in no step",
        lambda e: float(e.is_alive),
    ),
    "queue_depth": ("Jobs that wait for rows or have some in a step", lambda e: e.load.num_queued),
    "kv_blocks_held": ("Cache blocks that sequences hold", lambda e: e.load.num_held_blocks),
    "kv_blocks_free": ("Cache blocks that can be given out", lambda e: e.load.num_free_blocks),
}
_COUNTERS: Mapping[str, tuple[str, Callable[[Engine], float]]] = {
    "preemptions": (
        "Times that a sequence lost its blocks to an earlier one",
        lambda e: e.num_preemptions,
    ),
    "failed_steps": ("Steps that ended with a fault", lambda e: e.num_failed_steps),
    "prefix_tokens": (
        "Tokens of sequences as they were opened",
        lambda e: e.figures.num_prefix_tokens,
    ),
    "prefix_hit_tokens": (
        "Tokens of opened sequences that were cached already",
        lambda e: e.figures.num_prefix_hits,
    ),
}
_HISTOGRAMS: Mapping[str, tuple[str, Callable[[Engine], Tally]]] = {
    "step_rows": ("Rows of a step", lambda e: e.figures.rows),
    "step_seconds": ("One step, sampling included", lambda e: e.figures.step_s),
}


class TierCollector(Collector):
    """Reads the sessions of a tier and each engine's figures when it is scraped."""

    def __init__(
        self, tier: str, sessions: Sessions, engines: Callable[[], Mapping[str, Engine]]
    ) -> None:
        self._tier = tier
        self._sessions = sessions
        self._engines = engines

    def collect(self) -> Iterable[Metric]:
        """Every family, also those without an engine yet."""
        open_now = GaugeMetricFamily(
            "paceline_sessions_open", "Sessions open now", labels=("tier",)
        )
        open_now.add_metric((self._tier,), self._sessions.num_open)
        yield open_now
        opened = CounterMetricFamily(
            "paceline_sessions", "Sessions opened since the start", labels=("tier",)
        )
        opened.add_metric((self._tier,), self._sessions.num_opened)
        yield opened
        engines = self._engines()
        for name, (text, value) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"paceline_engine_{name}", text, labels=_LABELS)
            for model, engine in engines.items():
                gauge.add_metric((self._tier, model), value(engine))
            yield gauge
        for name, (text, value) in _COUNTERS.items():
            counter = CounterMetricFamily(f"paceline_engine_{name}", text, labels=_LABELS)
            for model, engine in engines.items():
                counter.add_metric((self._tier, model), value(engine))
            yield counter
        for name, (text, tally) in _HISTOGRAMS.items():
            histogram = HistogramMetricFamily(f"paceline_engine_{name}", text, labels=_LABELS)
            for model, engine in engines.items():
                histogram.add_metric((self._tier, model), *_buckets(tally(engine)))
            yield histogram


def _buckets(tally: Tally) -> tuple[list[tuple[str, float]], float]:
    """Cumulative counts under each bound, and the sum."""
    bounds = [*map(str, tally.bounds), "+Inf"]
    counts = itertools.accumulate(list(tally.counts))
    return list(zip(bounds, map(float, counts), strict=True)), tally.total
