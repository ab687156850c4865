"""What came out of a measurement: tables for the terminal, one JSON object.

It computes nothing that is not in the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

from rich import box
from rich.table import Table

from paceline.bench.figures import ALL, Measurement, Ratio, Summary, ratios, summarize
from paceline.bench.processes import ServiceMemory
from paceline.bench.runs import Group, Run
from paceline.cli.client import stats_as_json

Cell = Callable[[Summary], str]


def _short(value: float) -> str:
    """A figure in at most five places, as far as there are figures like that."""
    return f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def summaries(measurement: Measurement) -> list[Summary]:
    """Of every row, number of prompts at once and category that has runs."""
    places = product(measurement.concurrencies, measurement.categories, measurement.rows)
    found = (summarize(measurement, row, size, name) for size, name, row in places)
    return [summary for summary in found if summary is not None]


def all_ratios(measurement: Measurement, served: Sequence[str]) -> list[Ratio]:
    """Of every row served by the system over every other row."""
    pairs = [(row, base) for row, base in product(served, measurement.rows) if row != base]
    return [ratio for row, base in pairs for ratio in ratios(measurement, row, base)]


def tables(measurement: Measurement, served: Sequence[str]) -> list[Table]:
    """Speed by row, the parts of a round, ratios, and speed by category."""
    every = summaries(measurement)
    whole = [summary for summary in every if summary.category == ALL]
    rounds = [summary for summary in whole if summary.speculation is not None]
    return [
        _grid("tokens/s of one, of all; ms to the first token and between tokens", whole, SPEED),
        _grid("acceptance; bytes and ms of a round", rounds, ROUND),
        _ratios("ratios of medians of tokens/s (95 % interval, paired)", measurement, served),
        _categories("tokens/s of one generation, by category", every, measurement),
    ]


SPEED: dict[str, Cell] = {
    "one": lambda s: f"{s.figures['tokens_per_second']:.1f}",
    "all": lambda s: f"{s.figures['group_tokens_per_second']:.1f}",
    "decode": lambda s: f"{s.figures['group_decode_tokens_per_second']:.1f}",
    "first": lambda s: f"{1e3 * s.figures['first_token_s']:.0f}",
    "p50": lambda s: _short(1e3 * s.figures["between_tokens_s_p50"]),
    "p99": lambda s: _short(1e3 * s.figures["between_tokens_s_p99"]),
    "same": lambda s: "-" if s.num_same is None else f"{s.num_same}/{s.num_runs}",
}


RATES = {"tokens_per_second": "one", "group_tokens_per_second": "all"}


def _of_round(name: str, form: Callable[[float], str] = _short) -> Cell:
    def cell(summary: Summary) -> str:
        assert summary.speculation is not None
        return form(summary.speculation[name])

    return cell


# Draft and verify are means over all rounds, that of the prompt among them; the last two, medians.
ROUND: dict[str, Cell] = {
    "drafts": _of_round("tokens_drafted_per_proposal"),
    "rate": _of_round("acceptance_rate", "{:.2f}".format),
    "length": _of_round("acceptance_length", "{:.2f}".format),
    "bytes": _of_round("wire_bytes", "{:.0f}".format),
    "draft": _of_round("draft_ms"),
    "verify": _of_round("verify_ms"),
    "else": _of_round("overhead_ms"),
    "round": _of_round("round_ms"),
}


def _empty(title: str, *labels: str) -> Table:
    """A table with a number of prompts at once and labels at the left; tight, for 80 columns."""
    table = Table("at once", title=title, box=box.SIMPLE, collapse_padding=True, pad_edge=False)
    table.show_edge = False
    for label in labels:
        table.add_column(label, no_wrap=True)
    return table


def _grid(title: str, rows: Sequence[Summary], cells: dict[str, Cell]) -> Table:
    table = _empty(title, "row")
    for name in cells:
        table.add_column(name, justify="right")
    for summary in rows:
        texts = (cell(summary) for cell in cells.values())
        table.add_row(str(summary.concurrency), summary.row, *texts)
    return table


def memory_table(processes: Sequence[ServiceMemory]) -> Table:
    """Memory of the services that run on this machine."""
    table = Table("service", "address", "pid", title="memory, MiB", box=box.SIMPLE)
    table.add_column("now", justify="right")
    table.add_column("peak", justify="right")
    for one in processes:
        sizes = f"{one.resident_mib:.0f}", f"{one.peak_mib:.0f}"
        table.add_row(one.service, one.address, str(one.pid), *sizes)
    return table


def _ratios(title: str, measurement: Measurement, served: Sequence[str]) -> Table:
    """The served rows, one column each, over plain decoding and the peers."""
    table = _empty(title, "of", "over")
    for name in served:
        table.add_column(name, justify="right", overflow="fold")
    found = {
        (ratio.concurrency, ratio.figure, ratio.base, ratio.row): ratio
        for ratio in all_ratios(measurement, served)
        if ratio.category == ALL
    }
    bases = [row for row in measurement.rows if row == served[0] or row not in served]
    for size, (figure, name), base in product(measurement.concurrencies, RATES.items(), bases):
        ratios_of = [found.get((size, figure, base, row)) for row in served]
        if any(ratios_of):
            cells = ["" if ratio is None else _interval(ratio) for ratio in ratios_of]
            table.add_row(str(size), name, base, *cells)
    return table


def _interval(ratio: Ratio) -> str:
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f} (-)"
    return f"{ratio.value:.2f} ({ratio.low:.2f}-{ratio.high:.2f})"


def _categories(title: str, every: Sequence[Summary], measurement: Measurement) -> Table:
    """One column for each row; there are many categories."""
    table = _empty(title, "category")
    for row in measurement.rows:
        table.add_column(row, justify="right", overflow="fold")
    rates = {(s.concurrency, s.category, s.row): s.figures["tokens_per_second"] for s in every}
    for size, category in product(measurement.concurrencies, measurement.categories):
        found = [rates.get((size, category, row)) for row in measurement.rows]
        cells = ["" if rate is None else f"{rate:.1f}" for rate in found]
        table.add_row(str(size), category, *cells)
    return table


def as_json(measurement: Measurement, served: Sequence[str], **facts: Any) -> dict[str, Any]:
    """Everything measured, raw runs included, after `facts` about the measurement."""
    return {
        **facts,
        "summaries": [asdict(summary) for summary in summaries(measurement)],
        "ratios": [asdict(ratio) for ratio in all_ratios(measurement, served)],
        "runs": [_run_as_json(group, run) for group in measurement.groups for run in group.runs],
    }


def _run_as_json(group: Group, run: Run) -> dict[str, Any]:
    return {
        "row": group.row,
        "concurrency": group.concurrency,
        "group": group.number,
        "question_id": run.question.id,
        "category": run.question.category,
        "tokens": run.num_tokens,
        "tokens_per_second": run.tokens_per_second,
        "arrivals": [[round(a.at_s, 6), a.num_tokens] for a in run.arrivals],
        "stats": None if run.stats is None else stats_as_json(run.stats),
    }
