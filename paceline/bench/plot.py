"""The picture of a measurement: one generation by category, all together by prompts at once."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from paceline.bench.figures import Measurement, summarize

BAR_SPACE = 0.8
"""Width of all bars of one category, of 1."""


def plot(measurement: Measurement, path: Path) -> bool:
    """Draws into `path`; False where matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    from matplotlib.figure import Figure

    width = 3 + 0.25 * len(measurement.categories) * len(measurement.rows)
    figure = Figure(figsize=(width + 5, 4.5), layout="constrained")
    bars, lines = figure.subplots(1, 2, width_ratios=[width, 5])
    _draw_categories(bars, measurement)
    _draw_concurrencies(lines, measurement)
    figure.legend(*bars.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=150)
    return True


def _draw_categories(axes: Any, measurement: Measurement) -> None:
    """Bars of the median rate of one generation, at the smallest number of prompts at once."""
    concurrency, names = measurement.concurrencies[0], measurement.categories
    width = BAR_SPACE / len(measurement.rows)
    for index, row in enumerate(measurement.rows):
        found = [summarize(measurement, row, concurrency, name) for name in names]
        rates = [summary.figures["tokens_per_second"] if summary else 0.0 for summary in found]
        shift = (index + 0.5) * width - BAR_SPACE / 2
        axes.bar([place + shift for place in range(len(names))], rates, width, label=row)
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.set_ylabel("tokens/s of one generation (median)")
    axes.set_title(f"{concurrency} at once")


def _draw_concurrencies(axes: Any, measurement: Measurement) -> None:
    """Lines of the median rate of all generations together."""
    for row in measurement.rows:
        found = [summarize(measurement, row, size) for size in measurement.concurrencies]
        points = [(s.concurrency, s.figures["group_tokens_per_second"]) for s in found if s]
        axes.plot(*zip(*points, strict=True), marker="o")
    axes.set_xticks(measurement.concurrencies)
    axes.set_xlabel("prompts at once")
    axes.set_ylabel("tokens/s of all, prompts included (median)")
    axes.set_ylim(bottom=0)
