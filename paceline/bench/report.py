"""What came out of a measurement: a table by category, one JSON object, a plot.

Medians, with the quartiles as the spread. It computes nothing that is not in the measurements.
"""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from paceline.bench.measure import Pair
from paceline.bench.peers import PeerRun
from paceline.cli.client import stats_as_json

ALL = "all"


def by_category(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
    """The pairs of each category, and of all."""
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(pair.question.category, []).append(pair)
    return {**dict(sorted(groups.items())), ALL: list(pairs)}


def summarize(pairs: Sequence[Pair]) -> dict[str, Any]:
    """The figures of one group of pairs."""
    plain = [pair.plain.generation.stats for pair in pairs]
    speculative = [pair.speculative.generation.stats for pair in pairs]
    drafted = sum(stats.drafted_token_count for stats in speculative)
    accepted = sum(stats.accepted_token_count for stats in speculative)
    rounds = sum(stats.round_count for stats in speculative)
    return {
        "prompts": len(pairs),
        "plain_tokens_per_second": statistics.median(s.tokens_per_second for s in plain),
        "speculative_tokens_per_second": statistics.median(
            s.tokens_per_second for s in speculative
        ),
        "speedup": statistics.median(pair.speedup for pair in pairs),
        "speedup_quartiles": _quartiles([pair.speedup for pair in pairs]),
        "acceptance_rate": accepted / drafted if drafted else 0.0,
        "acceptance_length": 1 + accepted / rounds if rounds else 1.0,
        "identical": sum(pair.is_same for pair in pairs),
    }


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The first and the third quartile; of one value, itself twice."""
    if len(values) < 2:
        return values[0], values[0]
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, third


def table(pairs: Sequence[Pair], peers: Sequence[PeerRun]) -> Table:
    """The table for the terminal."""
    result = Table(box=box.SIMPLE, title="median by category; tokens/s without the first token")
    result.add_column("category")
    for title in ("prompts", "plain", "speculative", "speedup", "accepted", "length", "identical"):
        result.add_column(title, justify="right")
    for name, group in by_category(pairs).items():
        figures = summarize(group)
        low, high = figures["speedup_quartiles"]
        result.add_row(
            name,
            str(figures["prompts"]),
            f"{figures['plain_tokens_per_second']:.1f}",
            f"{figures['speculative_tokens_per_second']:.1f}",
            f"{figures['speedup']:.2f}x ({low:.2f}-{high:.2f})",
            f"{figures['acceptance_rate']:.0%}",
            f"{figures['acceptance_length']:.2f}",
            f"{figures['identical']}/{figures['prompts']}",
        )
    for name, runs in _peers_by_name(peers).items():
        rate = statistics.median(run.tokens_per_second for run in runs)
        result.add_row(name, str(len(runs)), f"{rate:.1f}", "", "", "", "", "")
    return result


def _peers_by_name(peers: Sequence[PeerRun]) -> dict[str, list[PeerRun]]:
    groups: dict[str, list[PeerRun]] = {}
    for run in peers:
        groups.setdefault(run.name, []).append(run)
    return groups


def as_json(
    settings: dict[str, Any], pairs: Sequence[Pair], peers: Sequence[PeerRun]
) -> dict[str, Any]:
    """Everything measured, raw figures included."""
    return {
        "settings": settings,
        "categories": {name: summarize(group) for name, group in by_category(pairs).items()},
        "questions": [_question_as_json(pair) for pair in pairs],
        "peers": {
            name: {
                "tokens_per_second": statistics.median(run.tokens_per_second for run in runs),
                "runs": [run.as_json() for run in runs],
            }
            for name, runs in _peers_by_name(peers).items()
        },
    }


def _question_as_json(pair: Pair) -> dict[str, Any]:
    return {
        "question_id": pair.question.id,
        "category": pair.question.category,
        "speedup": pair.speedup,
        "identical": pair.is_same,
        **{
            name: {
                "tokens": len(timed.generation.token_ids),
                "wall_s": timed.wall_s,
                "stats": stats_as_json(timed.generation.stats),
            }
            for name, timed in (("plain", pair.plain), ("speculative", pair.speculative))
        },
    }


def plot(pairs: Sequence[Pair], path: Path) -> bool:
    """Draws the median tokens/s by category into `path`; False where matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    from matplotlib.figure import Figure

    groups = {name: summarize(group) for name, group in by_category(pairs).items()}
    figure = Figure(figsize=(1.5 + 1.1 * len(groups), 4), layout="constrained")
    axes = figure.subplots()
    for shift, kind in ((-0.2, "plain"), (0.2, "speculative")):
        heights = [figures[f"{kind}_tokens_per_second"] for figures in groups.values()]
        axes.bar([place + shift for place in range(len(groups))], heights, 0.4, label=kind)
    axes.set_xticks(range(len(groups)), list(groups), rotation=30, ha="right")
    axes.set_ylabel("tokens/s (median)")
    axes.legend()
    figure.savefig(path, dpi=150)
    return True
