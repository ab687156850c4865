"""The comparison of arms, from the log lines of generations: ratios with confidence intervals.

Every figure is a ratio of sums over generations, as tokens over seconds. What was assigned to an
arm is a tenant (or a generation without one), so that is the unit that varies by chance: sums are
taken per unit first, and the interval of a ratio is that of its linearisation over units (Cochran,
Sampling Techniques, 1977, chapter 6). It knows no file and no terminal.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, TypeAlias

CONTROL = "control"
FEW_UNITS = 30
"""Under so many units of an arm an interval is too narrow to trust."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What the log line of one generation says that can be compared."""

    arm: str
    unit: str
    num_tokens: int
    num_rounds: int
    num_drafted: int
    num_accepted: int
    first_token_s: float
    token_s: float | None
    """Seconds per token behind the first one; None where there is none."""
    is_failed: bool

    @property
    def num_later_tokens(self) -> int:
        """Tokens behind the first one, where their time is known."""
        return 0 if self.token_s is None else self.num_tokens - 1

    @property
    def later_s(self) -> float:
        """Their seconds."""
        return 0.0 if self.token_s is None else self.token_s * self.num_later_tokens


Column: TypeAlias = Callable[[Generation], float]


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of sums with its standard error; NaN where one unit is too few for one."""

    value: float
    error: float

    def interval(self, level: float) -> tuple[float, float]:
        """Lower and upper bound at a level of confidence."""
        margin = _quantile(level) * self.error
        return self.value - margin, self.value + margin


@dataclass(frozen=True, slots=True)
class Figures:
    """One arm."""

    arm: str
    num_generations: int
    num_units: int
    tokens_per_second: Ratio
    """Behind the first token."""
    first_token_s: Ratio
    tokens_per_round: Ratio
    acceptance_rate: Ratio
    failed_share: Ratio


def read_lines(lines: Iterable[str]) -> list[Generation]:
    """The generations of an experiment among log lines; whatever else is there is passed over."""
    found = []
    for line in lines:
        try:
            # A collector may put a name in front of each line.
            fields = json.loads(line[line.index("{") :])
        except ValueError:
            continue
        if isinstance(fields, dict) and fields.get("event") == "generation" and fields.get("arm"):
            found.append(_read(fields))
    return found


def compare(generations: Sequence[Generation]) -> list[Figures]:
    """The figures of every arm, the control first."""
    arms: defaultdict[str, list[Generation]] = defaultdict(list)
    for generation in generations:
        arms[generation.arm].append(generation)
    return [_figures(arm, arms[arm]) for arm in sorted(arms, key=lambda a: (a != CONTROL, a))]


def speedup(arm: Ratio, control: Ratio, level: float) -> tuple[float, float, float]:
    """How many times as much an arm has, with lower and upper bound, on the logarithmic scale."""
    if not arm.value or not control.value:
        return math.nan, math.nan, math.nan
    error = math.hypot(arm.error / arm.value, control.error / control.value)
    ratio, margin = arm.value / control.value, _quantile(level) * error
    return ratio, ratio * math.exp(-margin), ratio * math.exp(margin)


def ratio_of(sums: Sequence[tuple[float, float]]) -> Ratio:
    """The ratio of the sums of (numerator, denominator) over units."""
    numerator, denominator = (sum(column) for column in zip(*sums, strict=True))
    if not denominator:
        return Ratio(math.nan, math.nan)
    value, num_units = numerator / denominator, len(sums)
    if num_units < 2:
        return Ratio(value, math.nan)
    spread = sum((y - value * x) ** 2 for y, x in sums) * num_units / (num_units - 1)
    return Ratio(value, math.sqrt(spread) / denominator)


def _figures(arm: str, generations: Sequence[Generation]) -> Figures:
    units: defaultdict[str, list[Generation]] = defaultdict(list)
    for generation in generations:
        units[generation.unit].append(generation)

    def ratio(top: Column, bottom: Column) -> Ratio:
        return ratio_of([(sum(map(top, own)), sum(map(bottom, own))) for own in units.values()])

    return Figures(
        arm,
        len(generations),
        len(units),
        tokens_per_second=ratio(lambda g: g.num_later_tokens, lambda g: g.later_s),
        first_token_s=ratio(lambda g: g.first_token_s, lambda g: g.num_tokens > 0),
        tokens_per_round=ratio(lambda g: g.num_tokens, lambda g: g.num_rounds),
        acceptance_rate=ratio(lambda g: g.num_accepted, lambda g: g.num_drafted),
        failed_share=ratio(lambda g: g.is_failed, lambda g: 1),
    )


def _read(fields: Mapping[str, Any]) -> Generation:
    return Generation(
        arm=fields["arm"],
        unit=fields["ab_unit"],
        num_tokens=fields["tokens"],
        num_rounds=fields["rounds"] + fields["plain_rounds"],
        num_drafted=fields["drafted"],
        num_accepted=fields["accepted"],
        first_token_s=fields["first_token_s"],
        token_s=fields["token_s"],
        is_failed=fields["outcome"] not in ("STOP", "LENGTH", "CANCELLED"),
    )


def _quantile(level: float) -> float:
    """The two-sided quantile of the normal law."""
    return NormalDist().inv_cdf(0.5 + level / 2)
