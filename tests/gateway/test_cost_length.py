"""The policy that weighs costs, on machines and drafts that are scripted."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from gateway.cost_length import CostLength, Survival
from gateway.draft_length import DraftLengthPolicy, FinishedRound, FixedLength
from gateway.round_times import Load, RoundTimes
from paceline.bench.sheet import Sheet, SourceSheet, predict
from paceline.records import Proposal, ReplicaLoad, Verdict, VerdictKind

Accepted = Callable[[int], int]
"""How many of so many draft tokens are accepted."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What rounds take, in seconds."""

    draft_s: float = 0.001
    step_s: float = 0.005
    row_s: float = 0.0005
    draft_trip_s: float = 0.0005
    verify_trip_s: float = 0.0005

    def lead_s(self, length: int) -> float:
        """From the decision to the arrival at the target."""
        return length * self.draft_s + self.verify_trip_s + (self.draft_trip_s if length else 0.0)

    def finished(
        self, length: int, num_accepted: int, num_sessions: int = 1, num_rows: int = 0
    ) -> FinishedRound:
        """A round in a step of so many rows; without any, of as many sessions just like it."""
        num_rows = num_rows or num_sessions * (length + 1)
        forward_s = self.step_s + self.row_s * num_rows
        return FinishedRound(
            num_asked=length,
            num_drafted=length,
            num_accepted=num_accepted,
            round_s=self.lead_s(length) + forward_s,
            draft_s=length * self.draft_s,
            forward_s=forward_s,
            num_rows=num_rows,
            num_open_sessions=num_sessions,
        )


MACHINE = Machine()
"""That of B84: 1 ms a draft token, 5 ms and half a millisecond a row to verify."""


class Scene:
    """One session of a source."""

    def __init__(self, machine: Machine = MACHINE, longest: int = 10) -> None:
        self.machine = machine
        self.times = RoundTimes()
        self.policy = CostLength(longest, lambda: self.times)

    def run(self, count: int, accepted: Accepted, num_sessions: int = 1) -> list[int]:
        """Rounds as the loop runs them; gives the lengths asked for."""
        asked = []
        for _ in range(count):
            length = self.policy.num_draft_tokens
            finished = self.machine.finished(length, accepted(length), num_sessions)
            self.times.observe(finished)
            self.policy.observe(finished)
            asked.append(length)
        return asked


def nothing(length: int) -> int:
    """A worthless draft."""
    return 0


def everything(length: int) -> int:
    """A perfect one."""
    return length


def test_it_begins_without_knowing_anything() -> None:
    """The first round is plain, to have something to compare with; the next one drafts."""
    assert [0, CostLength.START] == Scene().run(2, everything)


def test_before_there_is_a_source() -> None:
    """The usual start, and nothing is learnt from rounds in which nobody drafted."""
    policy = CostLength(10, lambda: None)
    for _ in range(50):
        policy.observe(FinishedRound(CostLength.START, round_s=1.0))
    assert CostLength.START == policy.num_draft_tokens


def test_a_perfect_draft_gets_the_longest_proposals() -> None:
    """Every further token is worth more than it costs."""
    scene = Scene()
    scene.run(20, everything)
    assert {10} == set(scene.run(40, everything))


def test_a_worthless_draft_gets_none_but_probes() -> None:
    """0 within a few rounds, then two tokens once in a while."""
    scene = Scene()
    scene.run(16, nothing)
    asked = scene.run(4 * CostLength.PROBE_PERIOD, nothing)
    assert 4 == sum(length == CostLength.PROBE_LENGTH for length in asked)
    assert {0, CostLength.PROBE_LENGTH} == set(asked)


def test_it_comes_back() -> None:
    """Once a probe is accepted in full it asks again at once, until the draft pays."""
    scene = Scene()
    scene.run(200, nothing)
    asked = scene.run(2 * CostLength.PROBE_PERIOD, everything)
    assert 4 <= asked[-1]
    first = asked.index(CostLength.PROBE_LENGTH)
    assert all(asked[first:])


def test_a_draft_that_costs_more_than_it_gives() -> None:
    """Perfect and slower than the target: not worth asking, however often it is right."""
    scene = Scene(replace(MACHINE, draft_s=0.02))
    scene.run(10, everything)
    assert {0, 2} >= set(scene.run(100, everything))


def test_survival_that_falls_off() -> None:
    """Two tokens are always accepted and a third never: two it is, with a look beyond at times."""
    scene = Scene()
    scene.run(40, lambda length: min(length, 2))
    asked = scene.run(100, lambda length: min(length, 2))
    assert 2 == max(set(asked), key=asked.count)
    assert 65 <= asked.count(2)
    assert {0, 2, 3} == set(asked)


def test_distance_makes_long_proposals() -> None:
    """With half of the tokens accepted: few at the target's side, more from afar."""
    draws = random.Random(5)

    def half(length: int) -> int:
        return next((i for i in range(length) if draws.random() < 0.5), length)

    near, far = Scene(), Scene(replace(MACHINE, verify_trip_s=0.1))
    means = [sum(scene.run(400, half)[100:]) / 300 for scene in (near, far)]
    assert means[0] + 2 < means[1]


@pytest.mark.parametrize(("num_sessions", "lengths"), [(1, {4, 5, 6, 7, 8}), (32, {0, 1})])
def test_a_loaded_verifier(num_sessions: int, lengths: set[int]) -> None:
    """B84: four of five are accepted; alone at least 4, with 32 sessions at most one."""
    numbers = iter(range(10_000))

    def most(length: int) -> int:
        return next((i for i in range(length) if next(numbers) % 5 == 4), length)

    scene = Scene()
    scene.run(60, most, num_sessions)
    asked = [n for n in scene.run(200, most, num_sessions) if n != CostLength.PROBE_LENGTH]
    usual = [n for n in asked if n in lengths]
    assert len(usual) >= 0.8 * len(asked)


def serve(policies: Sequence[DraftLengthPolicy], times: RoundTimes, num_tokens: int) -> float:
    """Seconds until sessions that share one target have so many tokens, four of five accepted.

    A step takes whatever has arrived, and the next one begins when it ends.
    """
    draws, now, total = random.Random(3), 0.0, 0
    asked = [policy.num_draft_tokens for policy in policies]
    arrivals = [draws.random() * 0.01 for _ in policies]
    while total < num_tokens:
        now = max(now, min(arrivals))
        ready = [i for i, arrival in enumerate(arrivals) if arrival <= now]
        num_rows = sum(asked[i] + 1 for i in ready)
        begun, now = now, now + MACHINE.step_s + MACHINE.row_s * num_rows
        for i in ready:
            length = asked[i]
            num_accepted = next((n for n in range(length) if draws.random() < 0.2), length)
            total += num_accepted + 1
            finished = MACHINE.finished(length, num_accepted, len(policies), num_rows)
            queue_s = begun - arrivals[i]
            finished = replace(finished, queue_s=queue_s, round_s=finished.round_s + queue_s)
            times.observe(finished)
            policies[i].observe(finished)
            asked[i] = policies[i].num_draft_tokens
            arrivals[i] = now + MACHINE.lead_s(asked[i])
    return now


@pytest.mark.parametrize(("num_sessions", "num_tokens"), [(1, 2_000), (32, 16_000)])
def test_total_time_under_load(num_sessions: int, num_tokens: int) -> None:
    """B84: within 1.05 of the best fixed length, and of plain decoding."""

    def fixed(length: int) -> float:
        policies = [FixedLength(length)] * num_sessions
        return serve(policies, RoundTimes(), num_tokens)

    times = RoundTimes()
    policies = [CostLength(10, lambda: times) for _ in range(num_sessions)]
    best = min(fixed(length) for length in (0, 1, 2, 3, 4, 6, 8))
    assert serve(policies, times, num_tokens) <= 1.05 * best


def test_it_agrees_with_the_sheet() -> None:
    """The length is the one that the predictions from a measured sheet call the fastest."""
    for draft_s, accepted in ((0.0005, 3), (0.001, 2), (0.002, 5)):
        machine = replace(MACHINE, draft_s=draft_s)
        survival = Survival(8)
        times = RoundTimes()
        for length in (0, 8, 4, 8) * 50:
            finished = machine.finished(length, min(length, accepted))
            times.observe(finished)
            if length:
                survival.observe(finished)
        source = SourceSheet("draft", draft_s, machine.draft_trip_s, tuple(survival.by_place))
        steps = {k: machine.step_s + machine.row_s * (k + 1) for k in (0, 8)}
        sheet = Sheet(steps, machine.verify_trip_s, (source,))
        for k in range(1, 9):
            ratio = times.plain_s(Load()) / times.drafted_s(k, Load())
            assert predict(sheet, source, k).speedup == pytest.approx(
                ratio * (1 + sum(survival.by_place[:k])), rel=0.02
            )


@pytest.mark.parametrize("longest", [0, 1, 3])
def test_a_cap_bounds_every_decision(longest: int) -> None:
    """A client's cap holds from the first proposal on, for probes too."""
    for accepted in (everything, nothing):
        assert max(Scene(longest=longest).run(100, accepted)) == longest


def test_no_flapping_around_a_rate() -> None:
    """B85: outcomes that alternate move the length at most three times in 200 rounds."""
    scene = Scene()
    turns = iter(range(10_000))
    scene.run(60, lambda length: min(length, 2 + next(turns) % 2))
    asked = [n for n in scene.run(200, lambda length: min(length, 2 + next(turns) % 2)) if n]
    assert sum(a != b for a, b in pairwise(asked)) <= 3


def test_a_true_shift_is_seen_within_ten_rounds() -> None:
    """B85: a draft that was right and is wrong now."""
    scene = Scene()
    before = scene.run(60, everything)[-1]
    assert scene.run(10, nothing)[-1] < before / 2


def test_sessions_learn_apart() -> None:
    """B86: what survives is each session's own; a new one begins as the first one did."""
    times = RoundTimes()
    right, wrong = (CostLength(10, lambda: times) for _ in range(2))
    for _ in range(30):
        for policy, accepted in ((right, everything), (wrong, nothing)):
            length = policy.num_draft_tokens
            finished = MACHINE.finished(length, accepted(length))
            times.observe(finished)
            policy.observe(finished)
    new = CostLength(10, lambda: times)
    assert right.num_draft_tokens > new.num_draft_tokens > wrong.num_draft_tokens


def test_a_silent_source_is_not_asked() -> None:
    """Draft tokens that do not come did not survive; they cost no rows either."""
    survival = Survival(4)
    for _ in range(20):
        survival.observe(FinishedRound(4, num_drafted=0))
    assert (0.0, True) == (survival.coverage, survival.by_place[0] < 0.2)


def test_an_untried_place_is_like_the_one_before_it() -> None:
    """Where two of two are always accepted a third one is believed in as much."""
    survival = Survival(4)
    for _ in range(30):
        survival.observe(FinishedRound(2, 2, 2))
    first, second, third, fourth = survival.by_place
    assert second < first
    assert third / second == pytest.approx(fourth / third)
    assert third / second == pytest.approx(second / first, abs=0.05)


def test_what_is_not_tried_fades() -> None:
    """A place that failed long ago gets another chance."""
    survival = Survival(3)
    for _ in range(20):
        survival.observe(FinishedRound(3, 3, 2))
    failed = survival.by_place[2]
    for _ in range(60):
        survival.observe(FinishedRound(2, 2, 2))
    assert failed < 0.3 < 0.8 < survival.by_place[2]


def test_a_replay_decides_the_same() -> None:
    """The decisions are a function of finished rounds alone."""
    draws = random.Random(1)
    outcomes = [draws.random() for _ in range(300)]

    def lengths() -> list[int]:
        shares = iter(outcomes)
        return Scene().run(300, lambda length: int(length * next(shares)))

    assert lengths() == lengths()


def test_dropped_tokens_have_no_say() -> None:
    """Proposals that differ in what was rejected are one and the same finished round."""
    verdict = Verdict(
        2, 1, 9, VerdictKind.RECOVERED, 12, queue_s=0.1, forward_s=0.2, load=ReplicaLoad(3, 1, 7)
    )
    first, second = (
        FinishedRound.of(Proposal(2, 10, ids, law=law, draft_s=0.3), verdict, 4, 0.7)
        for ids, law in (((5, 6, 7), b"a"), ((5, 1, 2), b"b"))
    )
    assert FinishedRound(4, 3, 1, 0.7, 0.3, 0.1, 0.2, 7, 3) == first == second


@pytest.mark.parametrize(
    ("num_rows", "num_open", "expected"), [(0, 0, 1), (5, 1, 1), (40, 0, 8), (40, 6, 6), (3, 9, 1)]
)
def test_who_shares_a_step(num_rows: int, num_open: int, expected: float) -> None:
    """Rows over a session's own five, and no more than there are sessions."""
    finished = FinishedRound(4, 4, 0, num_rows=num_rows, num_open_sessions=num_open)
    assert expected == finished.num_sharing
