"""The statistics: counted as in verdicts, sums before ratios."""

from __future__ import annotations

import pytest

from gateway.stats import SpeculationStats
from paceline.records import Proposal, Verdict, VerdictKind


def observe(
    stats: SpeculationStats, num_drafted: int, num_accepted: int, round_s: float = 0.01
) -> None:
    """One round with 2 ms of drafting and 5 ms of verifying."""
    proposal = Proposal(1, 10, (1,) * num_drafted, draft_s=0.002)
    kind = VerdictKind.BONUS if num_drafted else VerdictKind.PLAIN
    verdict = Verdict(1, num_accepted, 1, kind, 11 + num_accepted, forward_s=0.005)
    stats.observe(proposal, verdict, num_drafted, round_s)


def test_counts_of_three_rounds() -> None:
    """B81: 4, 0 and 2 of 4 accepted: 12, 6, rate 0.5, length 3, by position 2/3 2/3 1/3 1/3."""
    stats = SpeculationStats()
    for num_accepted in (4, 0, 2):
        observe(stats, 4, num_accepted)
    assert (3, 0, 12, 6) == (
        stats.num_rounds,
        stats.num_plain_rounds,
        stats.num_drafted,
        stats.num_accepted,
    )
    assert (0.5, 3.0) == (stats.acceptance_rate, stats.acceptance_length)
    assert [3, 3, 3, 3] == stats.drafted_by_position
    assert [2, 2, 1, 1] == stats.accepted_by_position


@pytest.mark.parametrize(("num_accepted", "rate"), [(4, 1.0), (0, 0.0)])
def test_the_rate_stays_in_bounds(num_accepted: int, rate: float) -> None:
    """B81: all accepted is exactly 1, none exactly 0: the bonus token is not an accepted one."""
    stats = SpeculationStats()
    for _ in range(5):
        observe(stats, 4, num_accepted)
    assert rate == stats.acceptance_rate


def test_plain_rounds_count_apart() -> None:
    """A round without draft tokens moves neither the rate nor the length."""
    stats = SpeculationStats()
    observe(stats, 2, 1)
    before = stats.acceptance_rate, stats.acceptance_length
    observe(stats, 0, 0)
    assert before == (stats.acceptance_rate, stats.acceptance_length)
    assert (1, 1) == (stats.num_rounds, stats.num_plain_rounds)


def test_no_rounds_at_all() -> None:
    """B82: a generation that drafted nothing has a rate of 0, and adds nothing to sums."""
    stats = SpeculationStats()
    assert (0.0, 1.0, 0.0, 0.0) == (
        stats.acceptance_rate,
        stats.acceptance_length,
        stats.round_p50_s,
        stats.overhead_p50_s,
    )


def test_the_rate_is_a_ratio_of_sums() -> None:
    """B82: 1 of 2 and 9 of 10 make 10 of 12, not the mean of two ratios."""
    stats = SpeculationStats()
    observe(stats, 2, 1)
    observe(stats, 10, 9)
    assert 10 / 12 == stats.acceptance_rate
    assert [2, 2, 1, 1, 1, 1, 1, 1, 1, 1] == stats.drafted_by_position
    assert [2, 1, 1, 1, 1, 1, 1, 1, 1, 0] == stats.accepted_by_position


def test_medians_leave_the_first_round_out() -> None:
    """The first round prefills: it is not what a round costs."""
    stats = SpeculationStats()
    for round_s in (9.0, 0.010, 0.020, 0.012):
        observe(stats, 4, 4, round_s)
    assert 0.012 == stats.round_p50_s
    assert pytest.approx(0.005) == stats.overhead_p50_s
    assert pytest.approx((0.008, 0.020)) == (stats.draft_s, stats.verify_s)


def test_overhead_is_never_negative() -> None:
    """Clocks of three machines may disagree; the report stays sensible."""
    stats = SpeculationStats()
    observe(stats, 4, 4, 0.001)
    assert 0.0 == stats.overhead_p50_s


def test_the_wait_for_a_step_is_no_overhead() -> None:
    """It is the target's being busy with others, and the metrics tell it apart as well."""
    stats = SpeculationStats()
    verdict = Verdict(1, 0, 1, VerdictKind.PLAIN, 11, queue_s=0.004, forward_s=0.005)
    stats.observe(Proposal(1, 10), verdict, 0, 0.010)
    assert pytest.approx(0.001) == stats.overhead_s
    assert (0.004, 0.005) == (stats.queue_s, stats.verify_s)
