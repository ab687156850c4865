"""Whether a source is found to earn its keep, and how long its proposals may be."""

from __future__ import annotations

import math
from typing import Any

import pytest
import structlog
from prometheus_client import CollectorRegistry

from gateway.cost_length import CostLength
from gateway.draft_length import FinishedRound, FixedLength, WindowLength
from gateway.metrics import GatewayMetrics
from gateway.round_times import PLAIN_PERIOD
from gateway.watch import (
    ENOUGH_PLAIN,
    ENOUGH_PROBES,
    ENOUGH_ROUNDS,
    PROBE_LENGTH,
    PROBE_PERIOD,
    Watch,
)

PLAIN_S = 0.010


class Scene:
    """A watch, its metrics, and sessions of one source that adapt their length."""

    def __init__(self, low_acceptance: float = 0.6) -> None:
        self.registry = CollectorRegistry()
        self.watch = Watch(GatewayMetrics(self.registry), low_acceptance)
        self.policy = self.watch.watched(WindowLength(8), lambda: "draft")

    def plain(self, count: int = ENOUGH_PLAIN, round_s: float = PLAIN_S) -> None:
        """Rounds of generations without a draft."""
        for _ in range(count):
            self.watch.observe("", FinishedRound(0, round_s=round_s))

    def run(self, count: int, acceptance: float, drafted_s: float) -> list[int]:
        """Rounds of a session as the loop runs them; gives the lengths asked for."""
        asked = []
        for number in range(count):
            length = self.policy.num_draft_tokens
            num_accepted = round(length * acceptance + 0.49 * ((number % 3) - 1)) if length else 0
            num_accepted = min(length, max(0, num_accepted))
            round_s = drafted_s if length else PLAIN_S
            self.policy.observe(FinishedRound(length, length, num_accepted, round_s))
            asked.append(length)
        return asked

    def value(self, name: str, **labels: str) -> float | None:
        """A metric of the source."""
        return self.registry.get_sample_value(name, {"source": "draft", **labels})

    @property
    def cap(self) -> int | None:
        """The cap of the source."""
        return self.watch.pool("draft").cap


@pytest.fixture
def lines() -> Any:
    """What is logged."""
    with structlog.testing.capture_logs() as captured:
        yield captured


def test_a_good_source_is_left_alone(lines: Any) -> None:
    """Faster than plain and well accepted: no cap, no warning, and the estimate is told."""
    scene = Scene()
    scene.plain()
    scene.run(4 * ENOUGH_ROUNDS, acceptance=0.8, drafted_s=0.015)
    assert None is scene.cap
    assert [] == lines
    speedup = scene.value("paceline_speculation_speedup")
    assert speedup is not None and speedup > 2
    assert math.inf == scene.value("paceline_draft_length_cap")


def test_the_estimate_is_plain_time_over_time_per_token() -> None:
    """4 of 4 accepted are 5 tokens in 20 ms; a plain one takes 10 ms: 2.5 times as fast."""
    scene = Scene()
    scene.plain()
    for _ in range(ENOUGH_ROUNDS):
        scene.watch.observe("draft", FinishedRound(4, 4, 4, 0.020))
    speedup = scene.watch.speedup("draft")
    assert speedup is not None
    assert math.isclose(2.5, speedup)
    assert 1.0 == scene.value("paceline_speculation_acceptance")


def test_it_is_not_known_without_plain_rounds() -> None:
    """Too few of them say nothing."""
    scene = Scene()
    scene.plain(ENOUGH_PLAIN - 1)
    scene.watch.observe("draft", FinishedRound(4, 4, 4, 0.020))
    assert None is scene.watch.speedup("draft")
    assert None is scene.watch.speedup("another")


def test_a_slow_source_is_lowered_to_nothing(lines: Any) -> None:
    """Slower than plain: shorter and shorter proposals, then plain rounds and probes."""
    scene = Scene()
    scene.plain()
    caps = []
    for _ in range(6):
        scene.run(ENOUGH_ROUNDS + PLAIN_PERIOD, acceptance=0.7, drafted_s=0.1)
        caps.append(scene.cap)
    assert sorted((cap for cap in caps if cap is not None), reverse=True) == caps
    assert 0 == caps[-1]
    assert "slower" in lines[0]["found"]
    assert "warning" == lines[0]["log_level"]
    assert 0.0 == scene.value("paceline_draft_length_cap")
    assert 1.0 == scene.value("paceline_speculation_warnings_total", reason="slower")


def test_at_nothing_only_probes_draft() -> None:
    """One round in so many, with few tokens."""
    scene = Scene()
    scene.watch.pool("draft").cap = 0
    asked = scene.run(2 * PROBE_PERIOD, acceptance=0.7, drafted_s=0.1)
    assert [PROBE_LENGTH, *[0] * (PROBE_PERIOD - 1)] * 2 == asked


def test_it_comes_back(lines: Any) -> None:
    """Once probes are faster than plain, lengths grow again, and the warning is taken back."""
    scene = Scene()
    scene.plain()
    while scene.cap != 0:
        scene.run(ENOUGH_ROUNDS, acceptance=0.7, drafted_s=0.1)
    for _ in range(2 * ENOUGH_PROBES):  # a probe each; those before the change count as well
        if scene.cap == 0:
            scene.run(PROBE_PERIOD, acceptance=0.9, drafted_s=0.012)
    assert PROBE_LENGTH == scene.cap
    scene.run(4 * ENOUGH_ROUNDS + PLAIN_PERIOD, acceptance=0.9, drafted_s=0.012)
    assert None is scene.cap
    assert ("info", []) == (lines[-1]["log_level"], lines[-1]["found"])


def test_poor_acceptance_is_warned_of(lines: Any) -> None:
    """Under the bound, without a word on speed: shorter proposals, and never none."""
    scene = Scene()
    for _ in range(10 * ENOUGH_ROUNDS):  # every round drafts: no plain one to compare with
        scene.watch.observe("draft", FinishedRound(4, 4, 1, 0.010))
    assert ["acceptance"] == lines[0]["found"]
    assert 2 == scene.cap
    assert 1.0 == scene.value("paceline_speculation_warnings_total", reason="acceptance")


def test_poor_acceptance_that_is_faster_all_the_same_keeps_its_length(lines: Any) -> None:
    """Speed is what counts; the warning stays."""
    scene = Scene()
    scene.plain()
    for _ in range(4 * ENOUGH_ROUNDS):
        scene.watch.observe("draft", FinishedRound(8, 8, 3, 0.012))
    assert None is scene.cap
    assert [["acceptance"]] == [line["found"] for line in lines]


def test_fallbacks_cost_their_source(lines: Any) -> None:
    """A draft that is asked and does not come in time takes time and gives nothing."""
    scene = Scene()
    scene.plain()
    for _ in range(ENOUGH_ROUNDS):
        scene.watch.observe("draft", FinishedRound(4, 0, 0, 5.0))
    speedup = scene.value("paceline_speculation_speedup")
    assert speedup is not None
    assert math.isclose(PLAIN_S / 5.0, speedup)
    assert "slower" in lines[0]["found"]


def test_plain_rounds_are_had_from_sessions_that_draft() -> None:
    """One in so many, so that there is something to compare with."""
    scene = Scene()
    asked = scene.run(2 * PLAIN_PERIOD, acceptance=0.7, drafted_s=0.010)
    assert [PLAIN_PERIOD - 1, 2 * PLAIN_PERIOD - 1] == [i for i, n in enumerate(asked) if n == 0]


def test_pinned_lengths_are_left_alone() -> None:
    """What a client or a setting pins is not the watch's business; who weighs costs needs none."""
    scene = Scene()
    scene.watch.pool("draft").cap = 0
    for policy in (FixedLength(4), CostLength(8, lambda: None)):
        watched = scene.watch.watched(policy, lambda: "draft")
        assert 0 < policy.num_draft_tokens == watched.num_draft_tokens


def test_times_are_kept_by_source() -> None:
    """Plain rounds of a session count for its source; without a source there are none."""
    scene = Scene()
    scene.watch.observe("draft", FinishedRound(4, 4, 4, 0.020, draft_s=0.004))
    assert None is scene.watch.times("")
    times = [scene.watch.times(name) for name in ("draft", "another")]
    assert [True, False] == [one is not None and one.is_known for one in times]


def test_a_session_without_a_draft_yet_gets_what_it_wants() -> None:
    """No source in use, no cap."""
    scene = Scene()
    scene.watch.pool("").cap = 0
    policy = scene.watch.watched(WindowLength(8), lambda: "")
    assert WindowLength.START == policy.num_draft_tokens


def test_sources_are_judged_apart() -> None:
    """One that is slow lowers no other."""
    scene = Scene()
    scene.plain()
    for _ in range(ENOUGH_ROUNDS):
        scene.watch.observe("slow", FinishedRound(4, 4, 0, 1.0))
        scene.watch.observe("fast", FinishedRound(4, 4, 4, 0.01))
    assert 2 == scene.watch.pool("slow").cap
    assert None is scene.watch.pool("fast").cap


def test_the_cap_sees_counts_and_no_tokens() -> None:
    """Two histories with the same counts and times give the same lengths: no value is looked at."""
    lengths = []
    for _ in range(2):
        scene = Scene()
        scene.plain()
        lengths.append(scene.run(3 * ENOUGH_ROUNDS, acceptance=0.5, drafted_s=0.03))
    assert lengths[0] == lengths[1]
