"""The ways of the invariance run, what is compared, and what counts as having shown something."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paceline.bench.invariance import (
    DRAFT_KILLED,
    PLAIN,
    RESUMED,
    VERIFY_KILLED,
    Finding,
    Fuse,
    Runner,
    Way,
    judge,
    table_of,
    ways,
)
from paceline.cli.client import Generation, GenerationOptions
from paceline.v1 import gateway_pb2

OPTIONS = GenerationOptions(max_tokens=3, seed=1)
QUIET = Finding(Way("ngram", 2, 1), 9, 0, 0, 0, 0, 0, 0)


def generation(*token_ids: int, **stats: Any) -> Generation:
    """A generation of these ids."""
    finished = gateway_pb2.Finished(stats=gateway_pb2.GenerationStats(**stats))
    return Generation("", token_ids, (), gateway_pb2.Started(), finished)


def test_every_way_is_another_one() -> None:
    """Each source with each length alone and in company; what kills a service comes last."""
    found = ways(["int8", "ngram"], 30)
    assert len(found) == len(set(found)) == 1 + 2 * 2 * 3 + 3
    assert PLAIN not in found
    assert {("int8", 2, 1), ("ngram", None, 8), ("none", 0, 8)} <= {
        (way.draft, way.num_draft_tokens, way.concurrency) for way in found
    }
    assert [RESUMED, VERIFY_KILLED, DRAFT_KILLED] == [way.loss for way in found[-3:]]
    assert {30} == {way.concurrency for way in found[-3:]}


class Act:
    """Counts how often something went wrong."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self) -> None:
        """Goes wrong once more."""
        self.count += 1


async def test_a_fuse_acts_once_when_all_are_under_way() -> None:
    """The slowest decides, and nothing is done twice."""
    act = Act()
    fuse = Fuse(2, 3, act)
    for index, count in ((0, 9), (1, 2)):
        await fuse.note(index, count)
    assert 0 == act.count
    for _ in range(2):
        await fuse.note(1, 1)
        assert 1 == act.count


def test_differences_are_counted() -> None:
    """By id and by prompt; a text that is longer or shorter differs there."""
    expected = [generation(1, 2, 3), generation(4, 5), generation(6)]
    found = [
        generation(1, 9, 9, drafted_token_count=4, accepted_token_count=3, reopened_count=1),
        generation(4, fallbacks={"lost": 2, "stalled": 1}),
        generation(6),
    ]
    one = judge(PLAIN, expected, found)
    assert (5, 3, 2) == (one.num_tokens, one.num_differing_ids, one.num_differing_prompts)
    assert (4, 3, 1, 3) == (one.num_drafted, one.num_accepted, one.num_reopened, one.num_fallbacks)
    same = judge(PLAIN, expected, expected)
    assert (0, 0) == (same.num_differing_ids, same.num_differing_prompts)
    assert 2 == table_of([one, same]).row_count


@pytest.mark.parametrize(
    ("loss", "shown"),
    [
        ("", {"num_drafted": 1}),
        (RESUMED, {"num_drafted": 1}),
        (VERIFY_KILLED, {"num_reopened": 1}),
        (DRAFT_KILLED, {"num_accepted": 1, "num_fallbacks": 1}),
    ],
)
def test_a_way_that_shows_nothing_is_no_proof(loss: str, shown: dict[str, int]) -> None:
    """What it is for must have happened."""
    quiet = replace(QUIET, way=replace(QUIET.way, loss=loss))
    assert not quiet.is_conclusive
    assert replace(quiet, **shown).is_conclusive  # type: ignore[arg-type]  # counts
    assert replace(QUIET, way=PLAIN).is_conclusive


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_prompts_are_generated_in_one_way(counting: Any, concurrency: int) -> None:
    """So many at once, with the way's draft and the seed; the act comes in mid-stream."""
    gateway, stub = counting
    act, runner = Act(), Runner(stub, [[1], [2], [3]], OPTIONS)
    way = Way("ngram", 2, concurrency)
    found = await runner.run(way, act)
    assert [(0, 1, 2)] * 3 == [one.token_ids for one in found]
    assert 1 <= gateway.most_running <= concurrency
    assert 1 == act.count
    asked = {
        (r.speculation.draft_source, r.speculation.draft_token_count, r.seed)
        for r in gateway.requests
    }
    assert {("ngram", 2, 1)} == asked


async def test_a_resumed_way_begins_with_the_expected_ids(counting: Any) -> None:
    """They are sent as committed, and are part of what is compared."""
    gateway, stub = counting
    runner = Runner(stub, [[1], [2]], replace(OPTIONS, max_tokens=16))
    expected = [generation(7, 8, 9), generation(5, 6, 7)]
    found = await runner.run(Way("ngram", None, 2, RESUMED), Act(), expected)
    assert {(7, 8), (5, 6)} == {tuple(r.committed_token_ids) for r in gateway.requests}
    assert [(7, 8, 0, 1, 2), (5, 6, 0, 1, 2)] == [one.token_ids for one in found]
