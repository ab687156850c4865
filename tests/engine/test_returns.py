"""Who is waited for: those who were back sooner than a step takes, and no longer than one takes."""

from __future__ import annotations

from paceline.engine.block_pool import BlockPool
from paceline.engine.returns import Returns
from paceline.engine.sequence import Sequence

STEP_S = 8.0


def sequence() -> Sequence:
    """Any one."""
    pool = BlockPool(1, 4)
    return Sequence(pool, (1,), prompt_length=1, cache_domain="", arrival_time_s=0.0)


def away(absence_s: float, now: float = 100.0) -> tuple[Returns, Sequence]:
    """A sequence that was away so long once, and left again now."""
    returns, one = Returns(), sequence()
    for duration_s in (3 * STEP_S, STEP_S, 2 * STEP_S):
        returns.add_step(duration_s)
    returns.leave(one, 0.0)
    returns.come(one, absence_s)
    returns.leave(one, now)
    return returns, one


def test_the_shortest_step_bounds_the_wait() -> None:
    """From when it left on; past that the step goes on without it."""
    returns, _ = away(STEP_S)
    assert (8, 3, 0, 0) == tuple(returns.wait_s(now) for now in (100, 105, 108, 120))


def test_whoever_took_longer_is_not_waited_for() -> None:
    """And once it was quick again, it is."""
    returns, one = away(STEP_S + 1)
    assert 0 == returns.wait_s(100)
    returns.come(one, 101)
    returns.leave(one, 110)
    assert 8 == returns.wait_s(110)


def test_nobody_is_waited_for_before_a_first_return() -> None:
    """A prompt's round says nothing of when its session comes back."""
    returns, one = Returns(), sequence()
    returns.add_step(STEP_S)
    returns.leave(one, 5.0)
    assert 0 == returns.wait_s(5.0)
    returns.come(one, 6.0)
    assert 0 == returns.wait_s(6.0)


def test_the_last_one_decides() -> None:
    """Several are away: until all are back, or had their time."""
    returns, first = away(STEP_S, now=100)
    second = sequence()
    for left_at, back_at in ((90.0, 91.0), (102.0, None)):
        returns.leave(second, left_at)
        if back_at:
            returns.come(second, back_at)
    assert 10 == returns.wait_s(100)
    returns.come(second, 103)
    assert 5 == returns.wait_s(103)
    returns.forget(first)
    assert 0 == returns.wait_s(103)


def test_an_end_leaves_nothing() -> None:
    """A sequence that comes after its end is a new one."""
    returns, one = away(1.0)
    returns.forget(one)
    returns.come(one, 101)
    returns.leave(one, 102)
    assert 0 == returns.wait_s(102)
