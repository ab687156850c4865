"""`paceline ab`: compares the arms of an experiment, from the gateways' logs."""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Sequence
from typing import IO, Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from paceline.bench.arms import FEW_UNITS, Figures, Ratio, compare, read_lines, speedup
from paceline.cli.options import json_option
from paceline.cli.terminal import EXIT_ERROR

# Title, field, factor and digits of what is shown of an arm.
FIGURES = (
    ("tokens/s", "tokens_per_second", 1.0, 1),
    ("first token ms", "first_token_s", 1000.0, 1),
    ("tokens/round", "tokens_per_round", 1.0, 2),
    ("accepted", "acceptance_rate", 1.0, 3),
    ("failed", "failed_share", 1.0, 4),
)


@click.command()
@click.argument("files", type=click.File(), nargs=-1)
@click.option(
    "--level",
    type=click.FloatRange(0.5, 0.999),
    default=0.95,
    help="Confidence level of the intervals.",
)
@json_option
def ab(files: Sequence[IO[str]], level: float, as_json: bool) -> None:
    """Compares the arms of an experiment, from the gateways' JSON logs.

    FILES are logs of one or several gateways; none, or -, reads standard input. Every arm is shown
    with confidence intervals, and how many times as fast as the control it is.
    """
    logs: Sequence[IO[str]] = files or [sys.stdin]
    arms = compare(read_lines(itertools.chain.from_iterable(logs)))
    if not arms:
        click.echo("error: no generation of an experiment in these logs", err=True)
        raise SystemExit(EXIT_ERROR)
    if as_json:
        click.echo(
            json.dumps({"level": level, "arms": [_as_json(a, arms[0], level) for a in arms]})
        )
        return
    Console().print(_table(arms, level))
    for arm in arms:
        if arm.num_units < FEW_UNITS:
            click.echo(f"{arm.arm}: {arm.num_units} units, too few for intervals to be trusted")


def _table(arms: Sequence[Figures], level: float) -> Table:
    """A column for each arm: most terminals are too narrow for one per figure."""
    table = Table("", *(arm.arm for arm in arms), box=box.SIMPLE)
    table.add_row("generations", *(str(arm.num_generations) for arm in arms))
    table.add_row("units", *(str(arm.num_units) for arm in arms))
    for title, field, factor, digits in FIGURES:
        row = (_interval(getattr(arm, field), factor, digits, level) for arm in arms)
        table.add_row(title, *row)
    against = (_versus(arm, arms[0], level) for arm in arms[1:])
    table.add_row(f"speed against {arms[0].arm}", "", *against)
    return table


def _interval(ratio: Ratio, factor: float, digits: int, level: float) -> str:
    if math.isnan(ratio.value):
        return "-"
    value = f"{ratio.value * factor:.{digits}f}"
    if math.isnan(ratio.error):
        return value
    low, high = (bound * factor for bound in ratio.interval(level))
    return f"{value} [{low:.{digits}f}, {high:.{digits}f}]"


def _versus(arm: Figures, control: Figures, level: float) -> str:
    ratio, low, high = speedup(arm.tokens_per_second, control.tokens_per_second, level)
    if math.isnan(low):
        return "-" if math.isnan(ratio) else f"{ratio:.3f}x"
    word = "faster" if low > 1 else "slower" if high < 1 else "no clear difference"
    return f"{ratio:.3f}x [{low:.3f}, {high:.3f}]\n{word}"


def _as_json(arm: Figures, control: Figures, level: float) -> dict[str, Any]:
    """One arm; a figure is {value, low, high}, null where it is not known."""
    versus = speedup(arm.tokens_per_second, control.tokens_per_second, level)
    figures = {
        field: _figure(ratio.value, *ratio.interval(level))
        for _, field, _, _ in FIGURES
        for ratio in (getattr(arm, field),)
    }
    return {
        "arm": arm.arm,
        "generations": arm.num_generations,
        "units": arm.num_units,
        **figures,
        "speedup": None if arm is control else _figure(*versus),
    }


def _figure(value: float, low: float, high: float) -> dict[str, float | None]:
    named = {"value": value, "low": low, "high": high}
    return {name: None if math.isnan(number) else number for name, number in named.items()}
