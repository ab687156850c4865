"""The formulas of speed, with numbers that can be checked by hand."""

from __future__ import annotations

import pytest

from paceline.speed_model import expected_tokens, fastest_length, round_s


@pytest.mark.parametrize(("k", "expected"), [(4, 2.7731), (8, 3.19882131)])
def test_independent_acceptance(k: int, expected: float) -> None:
    """(1 - a^(k+1)) / (1 - a) for a = 0.7."""
    survival = [0.7 ** (i + 1) for i in range(8)]
    assert expected == pytest.approx(expected_tokens(survival, k))


def test_a_round() -> None:
    """Three draft steps of 2 ms, 4 ms on the way, 10 ms at the target."""
    assert 0.020 == pytest.approx(round_s(3, 0.002, 0.004, 0.010))


@pytest.mark.parametrize(
    ("survival", "expected"),
    [
        ((0.0, 0.0, 0.0), 0),
        ((0.5, 0.25, 0.125), 1),  # 1.5/12 and 1.75/14 are equal: the shorter one
        ((0.5, 0.3, 0.125), 2),
        ((1.0, 1.0, 1.0), 3),
        ((0.2, 0.2, 0.2), 0),  # as fast as plain, never faster: the shorter of equals
        ((), 0),
    ],
)
def test_the_fastest_length(survival: tuple[float, ...], expected: int) -> None:
    """Of rounds of 10 ms and 2 more for each draft token."""
    found = fastest_length(survival, lambda k: 10.0 + 2.0 * k, 0, 1.0)
    assert expected == found


@pytest.mark.parametrize(("margin", "expected"), [(1.0, 3), (1.59, 3), (1.6, 1), (2.0, 1)])
def test_a_gain_under_the_margin_moves_nothing(margin: float, expected: int) -> None:
    """4 tokens instead of 2 in 15 ms instead of 12: 1.6 times as fast."""
    assert expected == fastest_length((1.0, 1.0, 1.0), lambda k: (10, 12, 14, 15)[k], 1, margin)


def test_the_preferred_length_is_bounded() -> None:
    """By the longest proposal that there is."""
    assert 1 == fastest_length((0.5,), lambda k: 1.0 + 0.5 * k, 7, 1.1)
