"""Whether generations beside others draft, on machines that are scripted."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
import structlog

from gateway.draft_length import FixedLength
from gateway.turns import ENOUGH, LONGEST_HOLD, SHORTEST_HOLD, Place, Turns

NUM_TOKENS = 60


@dataclass(frozen=True, slots=True)
class Machine:
    """What a round takes in seconds where all that run are alike, and what drafts do to others."""

    plain_s: float = 1.0
    drafting_s: float = 1.5
    drafted_tokens: int = 3
    prompt_s: float = 5.0
    slowed: float = 0.0
    """How much longer everybody's rounds are where everybody drafts."""

    def round_s(self, drafts: bool, share: float, *, is_first: bool) -> float:
        """A round among generations of which a share drafts."""
        alone_s = self.prompt_s if is_first else self.drafting_s if drafts else self.plain_s
        return alone_s * (1 + self.slowed * share)


OWN_CORES = Machine()
SHARED_CORES = Machine(slowed=3.0)
"""A token takes 2 s where all draft and 1 s where none does; a plain round among drafts 4 s."""


class Gateway:
    """So many clients, each of which asks again as soon as it is answered."""

    def __init__(self, machine: Machine, num_clients: int) -> None:
        self.machine = machine
        self.turns = Turns()
        self.kinds: list[bool] = []
        """Whether each generation drafted, in the order of their beginnings."""
        self.now_s = 0.0
        self._draws = random.Random(num_clients)
        self._running: list[tuple[float, int, Place, float, int]] = []
        for _ in range(num_clients):
            self._begin()

    def run(self, count: int) -> float:
        """Runs until so many generations more have begun; returns the seconds that it took."""
        wanted, started_s = len(self.kinds) + count, self.now_s
        while len(self.kinds) < wanted:
            self.now_s, number, place, round_s, left = heapq.heappop(self._running)
            num_tokens = self.machine.drafted_tokens if place.drafts else 1
            place.observe(num_tokens, round_s)
            if left > num_tokens:
                self._next(number, place, left - num_tokens)
            else:
                place.leave()
                self._begin()
        return self.now_s - started_s

    def share(self, count: int) -> float:
        """Share of the last generations that drafted."""
        return sum(self.kinds[-count:]) / count

    def _begin(self) -> None:
        place = self.turns.begin()
        self.kinds.append(place.drafts)
        self._next(len(self.kinds), place, int(NUM_TOKENS * self._draws.uniform(0.5, 1.5)), True)

    def _next(self, number: int, place: Place, left: int, is_first: bool = False) -> None:
        running = [one[2].drafts for one in self._running] + [place.drafts]
        share = sum(running) / len(running)
        round_s = self.machine.round_s(place.drafts, share, is_first=is_first)
        round_s *= self._draws.uniform(0.8, 1.2)
        heapq.heappush(self._running, (self.now_s + round_s, number, place, round_s, left))


def plainly_s(machine: Machine, num_clients: int, count: int) -> float:
    """What so many generations take where none drafts."""
    return count * (machine.prompt_s + NUM_TOKENS * machine.plain_s) / num_clients


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    """What is logged."""
    with structlog.testing.capture_logs() as captured:
        yield captured


@pytest.mark.parametrize("num_clients", [4, 16])
def test_drafts_that_slow_everybody_are_left(num_clients: int, lines: list[Any]) -> None:
    """B84: on the target's cores none drafts but in rare turns, and it costs little to know."""
    gateway = Gateway(SHARED_CORES, num_clients)
    gateway.run(200)
    taken_s = gateway.run(4000)
    assert 0 < gateway.share(4000) < 0.05
    assert taken_s < 1.03 * plainly_s(SHARED_CORES, num_clients, 4000)
    assert [(False, "speculation_beside_others")] == [
        (one["drafts"], one["event"]) for one in lines
    ]
    assert lines[0]["gain"] < 0.7


@pytest.mark.parametrize("num_clients", [4, 16])
def test_drafts_on_cores_of_their_own_are_kept(num_clients: int) -> None:
    """They take nothing from anybody: all draft but in rare turns."""
    gateway = Gateway(OWN_CORES, num_clients)
    gateway.run(200)
    gateway.run(2000)
    assert 0.9 < gateway.share(2000)


def test_a_prompt_that_is_run_twice_counts() -> None:
    """Tokens come faster from drafts here, which does not make up for long prompts."""
    machine = Machine(prompt_s=40.0, slowed=0.6)
    gateway = Gateway(machine, 8)
    gateway.run(1000)
    assert gateway.share(500) < 0.15
    shorter = Gateway(replace(machine, prompt_s=1.0), 8)
    shorter.run(1000)
    assert 0.85 < shorter.share(500)


def test_who_is_alone_drafts() -> None:
    """Whatever was found beside others, and nothing is learnt from it."""
    gateway = Gateway(SHARED_CORES, 1)
    gateway.run(300)
    assert 1.0 == gateway.share(300)
    assert gateway.turns.drafts


def test_the_first_of_a_burst_is_not_alone() -> None:
    """Who finds nobody after many came at once is one of many; the next one is alone again."""
    turns = Turns()
    turns.drafts = False
    kinds = []
    for _ in range(2):
        burst = [turns.begin() for _ in range(3)]
        kinds.append([place.drafts for place in burst])
        for place in burst:
            place.leave()
    for _ in range(2):
        place = turns.begin()
        kinds.append([place.drafts])
        place.leave()
    assert [[True, False, False], [False] * 3, [False], [True]] == kinds


def test_one_that_began_alone_gives_way() -> None:
    """To others, while drafting is known to slow them; others' own kinds stay what they are."""
    turns = Turns()
    place = turns.begin()
    policy = place.shared(FixedLength(4))
    assert 4 == policy.num_draft_tokens
    other = turns.begin()
    assert 4 == policy.num_draft_tokens  # it is not known yet
    turns.drafts = False
    assert 0 == policy.num_draft_tokens
    other.leave()
    assert 4 == policy.num_draft_tokens
    pinned = FixedLength(4)
    assert pinned is turns.begin_pinned(drafts=True).shared(pinned)
    assert pinned is other.shared(pinned)


def test_it_comes_back() -> None:
    """A draft that gets cores of its own is found out by its next turn."""
    gateway = Gateway(SHARED_CORES, 8)
    gateway.run(200)
    assert not gateway.turns.drafts
    gateway.machine = OWN_CORES
    gateway.run(LONGEST_HOLD + 8 * ENOUGH)
    assert 1.0 == gateway.share(20)


def test_what_was_long_ago_is_forgotten() -> None:
    """Plain rounds that were fast for long and are slow now are held as slow against drafts."""
    gateway = Gateway(SHARED_CORES, 8)
    gateway.run(3 * LONGEST_HOLD)
    gateway.machine = replace(SHARED_CORES, plain_s=3.0)
    gateway.run(2 * LONGEST_HOLD)
    assert 0.7 < gateway.share(LONGEST_HOLD // 2)


def test_turns_are_as_rare_as_they_are_dear() -> None:
    """Kinds that take as long take turns all the time; a slow one has its turn now and then."""
    distances = []
    for slowed in (1.1, 3.0, 8.0):
        gateway = Gateway(Machine(prompt_s=0.1, slowed=slowed), 8)
        gateway.run(3 * LONGEST_HOLD)
        begun = [i for i, (a, b) in enumerate(pairwise(gateway.kinds)) if b and not a]
        distances.append(min(b - a for a, b in pairwise(begun)))
    near, some, far = distances
    assert SHORTEST_HOLD < near < SHORTEST_HOLD + 8 * ENOUGH
    assert 4 * SHORTEST_HOLD < some < LONGEST_HOLD
    assert LONGEST_HOLD < far < LONGEST_HOLD + 8 * ENOUGH


def test_pinned_generations_are_neighbours() -> None:
    """They are of the kind they are and are not compared; those beside them count as not alike."""
    turns = Turns()
    pinned = [turns.begin_pinned(drafts=False) for _ in range(3)]
    assert not any(place.drafts for place in pinned)
    place = turns.begin()
    assert (True, 4) == (place.drafts, turns.num_running)
    for _ in range(100 * ENOUGH):
        for one in (*pinned, place):
            one.observe(1, 1.0)
    assert turns.drafts
    for one in (*pinned, place):
        one.leave()
    assert 0 == turns.num_running


@pytest.mark.parametrize(("drafted_s", "plain_s"), [(40.0, 30.0), (30.0, 40.0)])
def test_the_length_of_outputs_is_no_merit(drafted_s: float, plain_s: float) -> None:
    """Turns whose generations happened to be long and short are compared for the same length."""
    turns = Turns()
    for drafts, prompt_s, num_rounds in ((True, drafted_s, 400), (False, plain_s, 40)):
        neighbour = turns.begin_pinned(drafts=drafts)
        for _ in range(ENOUGH):
            place = turns.begin()
            assert drafts == place.drafts
            place.observe(1, prompt_s)
            for _ in range(num_rounds):
                place.observe(1, 1.0)
            place.leave()
        neighbour.leave()
    assert turns.drafts == (drafted_s < plain_s)


def test_a_replay_decides_the_same() -> None:
    """The kinds are a function of finished rounds alone, in counts and seconds."""
    kinds = []
    for _ in range(2):
        gateway = Gateway(SHARED_CORES, 8)
        gateway.run(600)
        kinds.append(gateway.kinds)
    assert kinds[0] == kinds[1]
