"""Times of rounds, from rounds that were scripted with known ones."""

from __future__ import annotations

import pytest

from gateway.draft_length import FinishedRound
from gateway.round_times import PLAIN_PERIOD, Line, Load, RoundTimes

DRAFT_S, DRAFT_TRIP_S, VERIFY_TRIP_S = 0.002, 0.003, 0.004


def step_s(num_rows: float) -> float:
    """5 ms and half a millisecond a row."""
    return 0.005 + 0.0005 * num_rows


def finished(length: int, num_rows: int = 0, queue_s: float = 0.0) -> FinishedRound:
    """A round of a session that shares its step with what else is in `num_rows`."""
    forward_s = step_s(num_rows or length + 1)
    outside_s = VERIFY_TRIP_S + (DRAFT_TRIP_S if length else 0.0)
    return FinishedRound(
        num_asked=length,
        num_drafted=length,
        round_s=length * DRAFT_S + outside_s + queue_s + forward_s,
        draft_s=length * DRAFT_S,
        queue_s=queue_s,
        forward_s=forward_s,
        num_rows=num_rows,
    )


def known(*lengths: int) -> RoundTimes:
    """What rounds of these lengths told."""
    times = RoundTimes()
    for length in lengths:
        times.observe(finished(length))
    return times


def test_a_line_through_steps() -> None:
    """With rows that vary it is the line that they lie on, between and beyond them."""
    line = Line()
    for num_rows in (1, 5, 9, 3) * 40:
        line.observe(num_rows, step_s(num_rows))
    assert [step_s(n) for n in (1, 4, 20)] == pytest.approx([line.at(n) for n in (1, 4, 20)], 0.01)


def test_old_steps_are_forgotten() -> None:
    """A machine that became half as fast is seen as that."""
    line = Line()
    for factor in (1, 2):
        for num_rows in (1, 9) * 400:
            line.observe(num_rows, factor * step_s(num_rows))
    assert 2 * step_s(5) == pytest.approx(line.at(5), 0.01)


def test_rows_that_do_not_vary() -> None:
    """Their own time is known; half of it is taken to grow with rows."""
    line = Line()
    for _ in range(50):
        line.observe(4, 0.010)
    assert (0.010, 0.015) == pytest.approx((line.at(4), line.at(8)))


@pytest.mark.parametrize("seconds", [(0.02, 0.01), (0.001, 0.2)])
def test_rows_neither_save_time_nor_come_before_it(seconds: tuple[float, float]) -> None:
    """Noise makes no step that more rows shorten, and none that costs less than nothing."""
    line = Line()
    for num_rows, second in zip((2, 4), seconds, strict=True):
        line.observe(num_rows, second)
    assert 0.0 < line.at(0.1) <= line.at(1) <= line.at(100)


def test_a_line_of_nothing() -> None:
    """No step is free, so that no rate is infinite."""
    assert 0.0 < Line().at(5)


def test_rounds_add_up() -> None:
    """A round is what was put into it: drafting, both ways, a step; a plain one has no draft."""
    times = known(*(0, 4, 8, 2) * 40)
    expected = [finished(length).round_s for length in (0, 1, 4, 10)]
    found = [times.plain_s(Load()), *(times.drafted_s(k, Load()) for k in (1, 4, 10))]
    assert expected == pytest.approx(found, 0.02)


def test_everybody_in_the_step_drafts_alike() -> None:
    """Of 8 sessions with 3 draft tokens each a step has 32 rows, and is waited for again."""
    times = known(*(0, 4, 8, 2) * 40)
    grown = times.drafted_s(3, Load(8, 0.5)) - times.drafted_s(3, Load())
    assert 1.5 * step_s(32) - step_s(4) == pytest.approx(grown, 0.03)


def test_a_hiccup_is_not_typical() -> None:
    """One proposal that took a second changes nothing."""
    times, slow = known(0, 4, 4, 4), known(0, 4, 4, 4)
    slow.observe(FinishedRound(4, 4, 0, round_s=2.0, draft_s=1.0, forward_s=step_s(5), num_rows=5))
    assert times.drafted_s(4, Load()) == pytest.approx(slow.drafted_s(4, Load()), 0.02)


def test_what_is_known() -> None:
    """Plain rounds and silent drafts say nothing of the time of a draft token."""
    times = known(0, 0)
    times.observe(FinishedRound(4, 0, 0, round_s=0.01))
    assert not times.is_known
    times.observe(finished(4))
    assert times.is_known


def test_plain_is_unknown_without_plain_rounds() -> None:
    """Until there is one, it is taken to take the same way."""
    times = known(4)
    assert times.drafted_s(0, Load()) == times.plain_s(Load())


def test_plain_rounds_fall_due() -> None:
    """The first round, and one in so many, whoever has them."""
    times, plain = RoundTimes(), []
    for number in range(3 * PLAIN_PERIOD):
        length = 0 if times.is_plain_due else 4
        plain += [number] if length == 0 else []
        times.observe(finished(length))
    assert [0, PLAIN_PERIOD, 2 * PLAIN_PERIOD] == plain
