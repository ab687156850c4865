"""Figures: medians over prompts, pooled rounds, ratios of medians over the same prompts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from paceline.bench.figures import Measurement, ratio_of_medians, ratios, speculation, summarize
from paceline.bench.runs import Group, Run
from paceline.v1 import gateway_pb2
from paceline.wire import duration

MakeRun = Callable[..., Run]


def stats(rounds: int, drafted: int, accepted: int, plain: int = 0) -> gateway_pb2.GenerationStats:
    """Rounds of 30 ms, 10 of them drafting and 15 verifying."""
    return gateway_pb2.GenerationStats(
        round_count=rounds,
        plain_round_count=plain,
        drafted_token_count=drafted,
        accepted_token_count=accepted,
        draft_duration=duration(1e-3 * 10 * rounds),
        verify_duration=duration(1e-3 * 15 * (rounds + plain)),
        round_duration_p50=duration(1e-3 * 30),
        overhead_duration_p50=duration(1e-3 * 5),
        wire_bytes_per_token=100.0,
    )


@pytest.fixture
def measurement(make_run: MakeRun) -> Measurement:
    """Three prompts; `fast` needs half the time of `slow` for two of them and twice for one."""
    slow = [
        make_run((1.0, 1), (1.0 + s, 10), category=c, question_id=str(number), token_ids=(1,))
        for number, (s, c) in enumerate(PACES)
    ]
    fast = [
        make_run(
            *((0.5, 1), (0.5 + s * f, 10)),
            category=c,
            question_id=str(number),
            token_ids=(number,),
        )
        for number, ((s, c), f) in enumerate(zip(PACES, (0.5, 0.5, 2.0), strict=True))
    ]
    groups = [Group("fast", 1, n, (run,)) for n, run in reversed(list(enumerate(fast)))]
    groups += [Group("slow", 1, n, (run,)) for n, run in enumerate(slow)]
    return Measurement(("slow", "fast"), tuple(groups))


PACES = [(1.0, "code"), (2.0, "math"), (2.0, "math")]


def test_summary_of_all(measurement: Measurement) -> None:
    """Medians of runs and of groups, percentiles over all tokens, ids against the first row."""
    summary = summarize(measurement, "slow", 1)
    assert summary is not None
    assert (3, 3, None) == (summary.num_runs, summary.num_same, summary.speculation)
    assert (5.0, 1.0) == (summary.figures["tokens_per_second"], summary.figures["first_token_s"])
    assert 11 / 3 == summary.figures["group_tokens_per_second"]
    assert 5.0 == summary.figures["group_decode_tokens_per_second"]
    assert (0.2, 0.2) == (
        summary.figures["between_tokens_s_p50"],
        summary.figures["between_tokens_s_p99"],
    )
    fast = summarize(measurement, "fast", 1)
    assert fast is not None and 1 == fast.num_same


def test_summary_of_a_category(measurement: Measurement) -> None:
    """Only its runs; a group mixes categories, so it has no figure there."""
    summary = summarize(measurement, "fast", 1, "code")
    assert summary is not None
    assert (1, 20.0) == (summary.num_runs, summary.figures["tokens_per_second"])
    assert "group_tokens_per_second" not in summary.figures
    assert None is summarize(measurement, "fast", 4)
    assert ["code", "math", "all"] == measurement.categories


def test_rows_that_tell_no_ids_are_not_compared(make_run: MakeRun) -> None:
    """The same text in another tokenization would count as different."""
    groups = (Group("a", 1, 0, (make_run((1.0, 1)),)),)
    summary = summarize(Measurement(("a",), groups), "a", 1)
    assert summary is not None and None is summary.num_same
    assert 0.0 == summary.figures["tokens_per_second"]


def test_rounds_are_pooled(make_run: MakeRun) -> None:
    """Sums over generations, divided by the rounds that they belong to."""
    runs = [
        make_run((1.0, 9), stats=stats(2, 8, 6, plain=1)),
        make_run((1.0, 3), stats=stats(2, 8, 0, plain=1)),
    ]
    figures = speculation(runs)
    assert figures is not None
    assert (6 / 16, 1 + 6 / 4) == (figures["acceptance_rate"], figures["acceptance_length"])
    assert 4.0 == figures["tokens_drafted_per_proposal"]
    stages = [figures[f"{name}_ms"] for name in ("draft", "verify", "overhead", "round")]
    assert pytest.approx([10.0, 15.0, 5.0, 30.0]) == stages
    assert 100 * 12 / 6 == figures["wire_bytes"]


def test_nothing_drafted(make_run: MakeRun) -> None:
    """Without drafts there is no rate, and a round commits one token."""
    figures = speculation([make_run((1.0, 3), stats=stats(0, 0, 0, plain=3))])
    assert figures is not None
    assert (0.0, 1.0, 0.0) == (
        figures["acceptance_rate"],
        figures["acceptance_length"],
        figures["draft_ms"],
    )


def test_ratios_pair_the_same_prompts(measurement: Measurement) -> None:
    """By number of the group, whatever order groups came in; medians are divided."""
    found = {(r.figure, r.category): r for r in ratios(measurement, "fast", "slow")}
    rate = found["tokens_per_second", "all"]
    assert (10.0 / 5.0, 3) == (rate.value, rate.num_pairs)
    assert (0.5, 2.0) == (rate.low, rate.high)
    one = found["tokens_per_second", "code"]
    assert (2.0, None, None, 1) == (one.value, one.low, one.high, one.num_pairs)
    assert 0.5 == found["first_token_s", "all"].value
    assert ("group_tokens_per_second", "code") not in found
    assert found["group_tokens_per_second", "all"].num_pairs == 3


def test_no_ratio_without_pairs(measurement: Measurement, make_run: MakeRun) -> None:
    """A row that does not take so many prompts has none."""
    more = Group("slow", 4, 0, (make_run((1.0, 1), (2.0, 1)),))
    wider = Measurement(measurement.rows, (*measurement.groups, more))
    assert {1} == {ratio.concurrency for ratio in ratios(wider, "fast", "slow")}


def test_a_prompt_that_is_run_again_is_one(make_run: MakeRun) -> None:
    """A group that is filled up from the beginning has its prompt twice, both drawn together."""
    ends = {"1": 3.0, "2": 2.0}

    def group(row: str, number: int, ids: str, factor: float) -> Group:
        runs = [make_run((1.0, 1), (ends[i] * factor, 1), question_id=i) for i in ids]
        return Group(row, 2, number, tuple(runs))

    def intervals(*groups: str) -> dict[str, tuple[int, float | None]]:
        rows = [group("a", n, ids, 2.0) for n, ids in enumerate(groups)]
        rows += [group("b", n, ids, 1.0) for n, ids in enumerate(groups)]
        found = ratios(Measurement(("a", "b"), tuple(rows)), "a", "b")
        return {r.figure: (r.num_pairs, r.low) for r in found if r.category == "all"}

    alone = intervals("11", "11")
    assert (4, None) == alone["tokens_per_second"]
    assert (2, None) == alone["group_tokens_per_second"]
    filled = intervals("12", "11")
    assert filled["tokens_per_second"][1] is not None
    assert filled["group_tokens_per_second"][1] is not None


def test_pairs_of_a_prompt_are_drawn_together() -> None:
    """Twelve pairs of two prompts: one draw in four has one prompt alone, so it bounds."""
    slow, fast = [(1.0, 1.0)] * 2, [(4.0, 1.0)] * 10
    assert (4.0, 1.0, 4.0) == ratio_of_medians([slow, fast])
    value, low, _ = ratio_of_medians([[pair] for pair in slow + fast])
    assert (4.0, 4.0) == (value, low)


def test_what_both_share_cancels() -> None:
    """Prompts differ a hundredfold, rows by exactly 2: the interval is that one number."""
    costs = np.geomspace(1.0, 100.0, 25)
    assert (2.0, 2.0, 2.0) == ratio_of_medians([[(2 * cost, cost)] for cost in costs])


def test_interval_covers_the_truth() -> None:
    """Of 200 measurements of a ratio of 1.5, about 95 % hold it in their interval."""
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(200):
        base = rng.lognormal(0.0, 0.3, 40)
        noisy = 1.5 * base * rng.lognormal(0.0, 0.1, 40)
        _, low, high = ratio_of_medians([[pair] for pair in zip(noisy, base, strict=True)])
        assert low is not None and high is not None
        held += low <= 1.5 <= high
    assert 180 <= held <= 200
