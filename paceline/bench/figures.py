"""Figures of groups of runs: medians by row, number of prompts at once and category; ratios.

A ratio is one of medians over the same prompts; its interval is a bootstrap that draws prompts,
each with all its runs by both rows, so that what makes a prompt slow for both cancels, and one that
was run again counts once. It knows nothing of how runs came.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.bench.runs import Group, Run
from paceline.wire import seconds

ALL = "all"
NUM_RESAMPLES = 2000

Pair = tuple[float, float]
"""A figure of one row and of another, on the same prompt."""
OfRun = Callable[[Run], float | None]
OfGroup = Callable[[Group], float | None]

RUN_FIGURES: dict[str, OfRun] = {
    "tokens_per_second": lambda run: run.tokens_per_second,
    "first_token_s": lambda run: run.first_token_s,
}
"""What a client of one generation sees."""
GROUP_FIGURES: dict[str, OfGroup] = {
    "group_tokens_per_second": lambda group: group.tokens_per_second,
    "group_decode_tokens_per_second": lambda group: group.decode_tokens_per_second,
}
"""What all clients together see; of all categories, since a group mixes them."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of one row with one number of prompts at once, in one category or in all."""

    row: str
    concurrency: int
    category: str
    num_runs: int
    figures: dict[str, float]
    """Medians under the names above, and percentiles of the time between tokens."""
    speculation: dict[str, float] | None
    """Means of a round; None of a peer."""
    num_same: int | None
    """Runs with the ids of the first row on the same prompt; None where a row tells no ids."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """One figure of one row over that of another, over prompts that both had."""

    row: str
    base: str
    concurrency: int
    category: str
    figure: str
    value: float
    low: float | None
    """Of the 95 % interval; None where one prompt, or one group of them, is all there is."""
    high: float | None
    num_pairs: int


def ratio_of_medians(units: Sequence[Sequence[Pair]]) -> tuple[float, float | None, float | None]:
    """Median of the first over that of the second numbers, and a paired 95 % bootstrap interval.

    What is drawn is units, each with all its pairs; one alone has no interval.
    """
    ours, theirs = np.median([pair for unit in units for pair in unit], axis=0)
    if len(units) < 2:
        return float(ours / theirs), None, None
    padded = np.full((len(units), max(map(len, units)), 2), np.nan)
    for place, unit in enumerate(units):
        padded[place, : len(unit)] = unit
    # Fixed, so that the same measurement always prints the same interval.
    picks = np.random.default_rng(0).integers(len(units), size=(NUM_RESAMPLES, len(units)))
    medians = np.nanmedian(padded[picks].reshape(NUM_RESAMPLES, -1, 2), axis=1)
    low, high = np.quantile(medians[:, 0] / medians[:, 1], [0.025, 0.975])
    return float(ours / theirs), float(low), float(high)


@dataclass(frozen=True, slots=True)
class Measurement:
    """All groups of a measurement."""

    rows: tuple[str, ...]
    """Names of the rows, the one that others are compared with first."""
    groups: tuple[Group, ...]

    @property
    def concurrencies(self) -> list[int]:
        """Numbers of prompts at once, ascending."""
        return sorted({group.concurrency for group in self.groups})

    @property
    def categories(self) -> list[str]:
        """Categories by name, then all."""
        names = {run.question.category for group in self.groups for run in group.runs}
        return [*sorted(names), ALL]

    def groups_of(self, row: str, concurrency: int) -> list[Group]:
        """The groups of one row, by number; empty where it does not take so many prompts."""
        found = [g for g in self.groups if (g.row, g.concurrency) == (row, concurrency)]
        return sorted(found, key=lambda group: group.number)

    def runs_of(self, row: str, concurrency: int, category: str = ALL) -> list[Run]:
        """Runs of one row; runs at one place of the lists of two rows had the same prompt."""
        runs = [run for group in self.groups_of(row, concurrency) for run in group.runs]
        return [run for run in runs if category in (ALL, run.question.category)]


def summarize(
    measurement: Measurement, row: str, concurrency: int, category: str = ALL
) -> Summary | None:
    """The figures of one row; None where there are no runs."""
    runs = measurement.runs_of(row, concurrency, category)
    if not runs:
        return None
    figures = {name: _median(map(of, runs)) for name, of in RUN_FIGURES.items()}
    between = [share_s for run in runs for share_s in run.between_tokens_s] or [0.0]
    for percent in (50, 99):
        figures[f"between_tokens_s_p{percent}"] = float(np.percentile(between, percent))
    if category == ALL:
        groups = measurement.groups_of(row, concurrency)
        figures |= {name: _median(map(of, groups)) for name, of in GROUP_FIGURES.items()}
    first = measurement.runs_of(measurement.rows[0], concurrency, category)
    return Summary(
        row=row,
        concurrency=concurrency,
        category=category,
        num_runs=len(runs),
        figures=figures,
        speculation=speculation(runs),
        num_same=_num_same(runs, first),
    )


def speculation(runs: Sequence[Run]) -> dict[str, float] | None:
    """What rounds did and where their time and bytes went; sums over generations, then divided.

    None of peers, which tell none of it.
    """
    told = [(run.stats, run.num_tokens) for run in runs if run.stats is not None]
    if not told:
        return None
    stats = [one for one, _ in told]
    drafted = sum(s.drafted_token_count for s in stats)
    accepted = sum(s.accepted_token_count for s in stats)
    proposals = sum(s.round_count for s in stats)
    rounds = proposals + sum(s.plain_round_count for s in stats)
    num_bytes = sum(s.wire_bytes_per_token * num_tokens for s, num_tokens in told)
    return {
        "acceptance_rate": accepted / drafted if drafted else 0.0,
        "acceptance_length": 1 + accepted / proposals if proposals else 1.0,
        "tokens_drafted_per_proposal": drafted / proposals if proposals else 0.0,
        "draft_ms": 1e3 * _over(sum(seconds(s.draft_duration) for s in stats), proposals),
        "verify_ms": 1e3 * _over(sum(seconds(s.verify_duration) for s in stats), rounds),
        "overhead_ms": 1e3 * statistics.median(seconds(s.overhead_duration_p50) for s in stats),
        "round_ms": 1e3 * statistics.median(seconds(s.round_duration_p50) for s in stats),
        "wire_bytes": _over(num_bytes, rounds),
    }


def ratios(measurement: Measurement, row: str, base: str) -> list[Ratio]:
    """Every figure of `row` over that of `base`, by number of prompts at once and category."""
    found = []
    for concurrency in measurement.concurrencies:
        for category in measurement.categories:
            ours, theirs = (measurement.runs_of(n, concurrency, category) for n in (row, base))
            for name, of in RUN_FIGURES.items():
                units = _units([run.question for run in ours], map(of, ours), map(of, theirs))
                found += _ratio(units, (row, base, concurrency, category, name))
        groups, others = (measurement.groups_of(name, concurrency) for name in (row, base))
        for name, of_group in GROUP_FIGURES.items():
            asked = [frozenset(run.question for run in group.runs) for group in groups]
            units = _units(asked, map(of_group, groups), map(of_group, others))
            found += _ratio(units, (row, base, concurrency, ALL, name))
    return found


def _ratio(units: Sequence[Sequence[Pair]], place: tuple[str, str, int, str, str]) -> list[Ratio]:
    return [Ratio(*place, *ratio_of_medians(units), sum(map(len, units)))] if units else []


def _units(
    asked: Iterable[Hashable], ours: Iterable[float | None], theirs: Iterable[float | None]
) -> list[list[Pair]]:
    """The pairs of two rows, together where what was asked is the same."""
    units: defaultdict[Hashable, list[Pair]] = defaultdict(list)
    # One list is empty where its row does not take so many prompts at once.
    for question, one, other in zip(asked, ours, theirs, strict=False):
        if one is not None and other is not None:
            units[question].append((one, other))
    return list(units.values())


def _median(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else 0.0


def _over(value: float, count: int) -> float:
    return value / count if count else 0.0


def _num_same(runs: Sequence[Run], first: Sequence[Run]) -> int | None:
    pairs = [(run.token_ids, other.token_ids) for run, other in zip(runs, first, strict=True)]
    if any(None in pair for pair in pairs):
        return None
    return sum(ours == theirs for ours, theirs in pairs)
