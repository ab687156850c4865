"""The draft length policies: what they decide, and that nothing else moves them."""

from __future__ import annotations

import itertools
import random

import pytest

from gateway.draft_length import DraftLengthPolicy, FinishedRound, FixedLength, WindowLength


def finished(num_drafted: int, num_accepted: int) -> FinishedRound:
    """A round whose times do not matter."""
    return FinishedRound(num_drafted, num_drafted, num_accepted)


def lengths(policy: DraftLengthPolicy, outcomes: list[tuple[int, int]]) -> list[int]:
    """The length decided on after each outcome."""
    decided = []
    for outcome in outcomes:
        policy.observe(finished(*outcome))
        decided.append(policy.num_draft_tokens)
    return decided


def num_changes(decided: list[int]) -> int:
    """How often neighbours differ."""
    return sum(a != b for a, b in itertools.pairwise(decided))


def test_a_pinned_length_never_moves() -> None:
    """Fixed means fixed, whatever is accepted."""
    assert [3] * 50 == lengths(FixedLength(3), [(3, 0)] * 25 + [(3, 3)] * 25)


@pytest.mark.parametrize("center", [50, 70])
def test_no_flapping_around_a_rate(center: int) -> None:
    """B85: alternating just around a rate gives at most three changes in 200 rounds."""
    outcomes = [(100, center - 1 + 2 * (i % 2)) for i in range(200)]
    assert num_changes([WindowLength.START, *lengths(WindowLength(), outcomes)]) <= 3


def test_the_pivot_itself_changes_nothing() -> None:
    """B85: inside the dead band the length stays."""
    outcomes = [(100, 61 + 18 * (i % 2)) for i in range(200)]
    assert {WindowLength.START} == set(lengths(WindowLength(), outcomes))


def test_noise_around_the_pivot_does_not_swing() -> None:
    """B85: with independent draws at rate 0.7 the length stays near where it is."""
    draws = random.Random(0)
    policy = WindowLength()
    decided = []
    for _ in range(200):
        length = policy.num_draft_tokens
        policy.observe(finished(length, sum(draws.random() < 0.7 for _ in range(length))))
        decided.append(policy.num_draft_tokens)
    assert num_changes(decided) <= 20


@pytest.mark.parametrize("num_before", range(30, 40))
def test_a_true_shift_is_seen_within_ten_rounds(num_before: int) -> None:
    """B85: from 0.9 to 0.1 the length shrinks within ten rounds, wherever the window stands."""
    policy = WindowLength()
    before = lengths(policy, [(10, 9)] * num_before)[-1]
    assert lengths(policy, [(10, 1)] * 10)[-1] < before


def test_full_and_no_acceptance_reach_the_bounds() -> None:
    """The bounds are 2 and 10, and one round moves the length by at most one."""
    up = lengths(WindowLength(), [(4, 4)] * 100)
    down = lengths(WindowLength(), [(4, 0)] * 100)
    assert (10, 2) == (up[-1], down[-1])
    assert all(abs(a - b) <= 1 for a, b in itertools.pairwise([4, *up]))


def test_a_decision_rests_on_rounds_of_its_own_length() -> None:
    """After a change the window starts anew: what the old length earned moves nothing more."""
    assert [5] * 11 == lengths(WindowLength(), [(10, 9)] * 5 + [(10, 7)] * 10)[4:]


def test_a_rate_of_drafted_tokens_not_of_rounds() -> None:
    """Long proposals weigh more: 9 of 10 and 0 of 1 are a rate of 9/11, not of 0.45."""
    assert 5 == lengths(WindowLength(), [(10, 9), (1, 0), (10, 9), (1, 0), (10, 9)])[-1]


@pytest.mark.parametrize("longest", [0, 1, 3])
def test_a_cap_bounds_every_decision(longest: int) -> None:
    """A client's cap holds from the first proposal on, also under the usual shortest one."""
    policy = WindowLength(longest)
    assert policy.num_draft_tokens <= longest
    assert max(lengths(policy, [(1, 1)] * 50)) == longest


def test_sessions_learn_apart() -> None:
    """B86: what one session learned does not reach another, new or running."""
    first, second = WindowLength(), WindowLength()
    lengths(first, [(4, 0)] * 50)
    lengths(second, [(4, 4)] * 50)
    assert (2, 10, 4) == (
        first.num_draft_tokens,
        second.num_draft_tokens,
        WindowLength().num_draft_tokens,
    )


def test_a_replay_decides_the_same() -> None:
    """The decisions are a function of the outcomes alone."""
    draws = random.Random(1)
    outcomes = [(drafted := draws.randint(1, 8), draws.randint(0, drafted)) for _ in range(100)]
    assert lengths(WindowLength(), outcomes) == lengths(WindowLength(), outcomes)
