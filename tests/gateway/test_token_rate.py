"""Tokens a second, and what a million of them cost."""

from __future__ import annotations

import math

from gateway.token_rate import SPAN_S, TokenRate


class Clock:
    """A clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        """The time in seconds."""
        return self.now_s


def test_cost_at_the_rate_since_the_start() -> None:
    """36 an hour is 0.01 a second; at 100 tokens a second a million cost 100."""
    clock = Clock()
    rate = TokenRate(clock)
    for _ in range(50):
        rate.add(200)
        clock.now_s += 2.0
    assert math.isclose(100.0, rate.per_second())
    assert math.isclose(100.0, rate.cost(36.0))


def test_idle_time_is_paid_for_and_forgotten_in_the_end() -> None:
    """The rate falls while nothing comes, to nothing."""
    clock = Clock()
    rate = TokenRate(clock)
    rate.add(3000)
    clock.now_s += SPAN_S / 2
    assert math.isclose(3000 / (SPAN_S / 2), rate.per_second())
    clock.now_s += SPAN_S
    assert 0.0 == rate.per_second()


def test_old_pieces_are_dropped() -> None:
    """Days of traffic take no more room than the span."""
    clock = Clock()
    rate = TokenRate(clock)
    for _ in range(1000):
        rate.add(10)
        clock.now_s += 10.0
    assert math.isclose(1.0, rate.per_second(), rel_tol=0.05)
    assert len(rate._pieces) < 70


def test_without_a_price_or_tokens_there_is_no_cost() -> None:
    """NaN, which no dashboard draws."""
    rate = TokenRate(Clock())
    assert math.isnan(rate.cost(36.0))
    rate.add(10)
    assert math.isnan(rate.cost(0.0))
