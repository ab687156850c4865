"""The comparison of arms: what is read, the ratios, and whether intervals hold what they say."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from paceline.bench.arms import compare, ratio_of, read_lines, speedup


def line(**fields: Any) -> str:
    """A gateway's log line of a generation."""
    defaults = {
        "event": "generation",
        "arm": "control",
        "ab_unit": "1",
        "outcome": "LENGTH",
        "tokens": 11,
        "rounds": 4,
        "plain_rounds": 1,
        "drafted": 16,
        "accepted": 8,
        "first_token_s": 0.1,
        "token_s": 0.02,
    }
    return json.dumps({**defaults, **fields})


def test_other_lines_are_passed_over() -> None:
    """Text, other events, generations of no arm, and a collector's prefix."""
    lines = [
        "not json",
        "{broken",
        '{"event": "ready"}',
        "[1, {}]",
        line(arm=""),
        "[pod/gateway-0/gateway] " + line(arm="a"),
        line(),
    ]
    assert ["a", "control"] == [generation.arm for generation in read_lines(lines)]


def test_figures_are_ratios_of_sums() -> None:
    """By hand: two generations of one arm, one of them long."""
    (arm,) = compare(
        read_lines(
            [
                line(ab_unit="1", tokens=11, token_s=0.02),
                line(ab_unit="2", tokens=101, token_s=0.01, accepted=16, first_token_s=0.3),
            ]
        )
    )
    assert (2, 2) == (arm.num_generations, arm.num_units)
    assert math.isclose(110 / 1.2, arm.tokens_per_second.value)
    assert math.isclose(0.2, arm.first_token_s.value)
    assert math.isclose(112 / 10, arm.tokens_per_round.value)
    assert math.isclose(24 / 32, arm.acceptance_rate.value)
    assert 0.0 == arm.failed_share.value


def test_the_control_comes_first() -> None:
    """Whatever the others are called."""
    arms = compare(read_lines([line(arm="a"), line(), line(arm="z")]))
    assert ["control", "a", "z"] == [arm.arm for arm in arms]


def test_failures_count() -> None:
    """A generation that ended with an error; a caller that hung up is none."""
    outcomes = ("LENGTH", "STOP", "CANCELLED", "TARGETS_LOST")
    lines = [line(outcome=o, ab_unit=str(i), tokens=0) for i, o in enumerate(outcomes)]
    (arm,) = compare(read_lines(lines))
    assert 0.25 == arm.failed_share.value


def test_a_generation_of_one_token_has_no_speed() -> None:
    """It counts for the first token alone."""
    lines = [line(token_s=None, tokens=1), line(ab_unit="2")]
    (arm,) = compare(read_lines(lines))
    assert math.isclose(50.0, arm.tokens_per_second.value)
    (alone,) = compare(read_lines(lines[:1]))
    assert math.isnan(alone.tokens_per_second.value)


def test_one_unit_has_no_interval() -> None:
    """However many generations it has: they are one tenant's."""
    ratio = ratio_of([(3.0, 2.0)])
    assert (1.5, True) == (ratio.value, math.isnan(ratio.error))


def test_the_error_of_a_mean() -> None:
    """With equal denominators a ratio is a mean, and its error the known one."""
    values = [1.0, 2.0, 4.0, 5.0]
    ratio = ratio_of([(value, 1.0) for value in values])
    assert math.isclose(3.0, ratio.value)
    assert math.isclose(float(np.std(values, ddof=1) / 2), ratio.error)


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_intervals_hold_the_truth_as_often_as_they_say(level: float) -> None:
    """Of 2,000 experiments with tenants of unequal size; 4 standard deviations are allowed.

    Intervals over generations instead of tenants would hold it far less often here.
    """
    random = np.random.default_rng(1)
    held = 0
    for _ in range(2000):
        sizes = random.integers(1, 20, size=60)
        pace = random.lognormal(0.0, 0.4, size=60)  # a tenant's own, shared by its generations
        tokens = 100.0 * sizes
        low, high = ratio_of(list(zip(tokens, tokens * pace / 50, strict=True))).interval(level)
        held += low <= 50 / math.exp(0.08) <= high
    deviation = math.sqrt(2000 * level * (1 - level))
    assert abs(held - 2000 * level) < 4 * deviation + 0.02 * 2000


def test_a_speedup_is_clear_only_where_it_is() -> None:
    """Twice as fast with little spread is; the same with much is not."""

    def arm(name: str, token_s: float, spread: float) -> list[str]:
        random = np.random.default_rng(0)
        return [
            line(arm=name, ab_unit=f"{name}{i}", token_s=token_s * float(factor))
            for i, factor in enumerate(random.lognormal(0.0, spread, size=40))
        ]

    for spread, is_clear in ((0.1, True), (3.0, False)):
        lines = arm("control", 0.02, spread) + arm("fast", 0.01, spread)
        control, fast = compare(read_lines(lines))
        ratio, low, high = speedup(fast.tokens_per_second, control.tokens_per_second, 0.95)
        assert low < ratio < high
        assert is_clear == (low > 1)
