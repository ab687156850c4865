"""What is asked of the rows: every prompt of every row, interleaved, as many at once as wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.bench.measure import ServedRow, Turn, able, measure, tokenize, turns, warm_up
from paceline.bench.prompts import Question
from paceline.bench.rounds import RoundCost, measure_rounds
from paceline.bench.runs import Arrival, Prompt, Row, Run
from paceline.cli.client import GenerationOptions

PROMPTS = [Prompt(Question(str(number), "a", "?"), (number,)) for number in range(6)]


@dataclass
class NotingRow:
    """Notes who was asked for what."""

    name: str
    asked: list[tuple[str, list[str]]]
    max_concurrency: int = 16

    async def run(self, prompts: Sequence[Prompt]) -> list[Run]:
        """Answers at once."""
        self.asked.append((self.name, [prompt.question.id for prompt in prompts]))
        return [Run(prompt.question, (Arrival(1.0, 1),)) for prompt in prompts]


@dataclass
class Asked:
    """Two rows that note into one list."""

    seen: list[tuple[str, list[str]]] = field(default_factory=list)

    def rows(self, *limits: int) -> list[Row]:
        """Rows a and b with these limits."""
        return [NotingRow(name, self.seen, limit) for name, limit in zip("ab", limits, strict=True)]


async def test_each_prompt_goes_through_every_row() -> None:
    """One prompt after another, each first through another row."""
    asked = Asked()
    done: list[int] = []
    groups = await measure(asked.rows(16, 16), turns(PROMPTS[:3], [1]), lambda: done.append(1))
    order = [("a", ["0"]), ("b", ["0"]), ("b", ["1"]), ("a", ["1"]), ("a", ["2"]), ("b", ["2"])]
    assert order == asked.seen
    assert [("a", 1, 0), ("b", 1, 0), ("b", 1, 1)] == [
        (group.row, group.concurrency, group.number) for group in groups[:3]
    ]
    assert 6 == len(done)


def test_sizes_are_interleaved() -> None:
    """A group of two follows the two prompts that it holds, and so on."""
    plan = turns(PROMPTS[:4], [1, 2, 4])
    assert [1, 1, 2, 1, 1, 2, 4] == [turn.concurrency for turn in plan]
    assert [0, 1, 0, 2, 3, 1, 0] == [turn.number for turn in plan]


def test_last_group_is_full() -> None:
    """Groups compare only where they have one size: the last is filled up from the beginning."""
    *_, last = turns(PROMPTS, [4])
    assert Turn(4, 1, (PROMPTS[4], PROMPTS[5], PROMPTS[0], PROMPTS[1])) == last
    (only,) = turns(PROMPTS[:2], [4])
    assert (*PROMPTS[:2], *PROMPTS[:2]) == only.prompts


def test_rows_that_cannot_are_left_out() -> None:
    """A peer of one prompt at a time takes no part in larger groups."""
    rows = Asked().rows(1, 16)
    assert ["b", "a"] == [row.name for row in able(rows, Turn(1, 1, ()))]
    assert ["b"] == [row.name for row in able(rows, Turn(2, 1, ()))]


async def test_warm_up_runs_every_row_once() -> None:
    """With one prompt."""
    asked = Asked()
    await warm_up(asked.rows(1, 16), PROMPTS)
    assert [("a", ["0"]), ("b", ["0"])] == asked.seen


async def test_prompts_are_chat_turns(counting: Any) -> None:
    """Each question is tokenized by the gateway as what the user says."""
    _, stub = counting
    questions = [Question("1", "a", "xyz"), Question("2", "a", "x")]
    assert [(3,), (1,)] == [prompt.token_ids for prompt in await tokenize(stub, questions)]


async def test_served_prompts_go_out_together(counting: Any) -> None:
    """All at once, with the ids as they are, and no prefix to share in a cache."""
    gateway, stub = counting
    gateway.together = asyncio.Barrier(3)  # one after another would never get past it
    row = ServedRow("x", stub, GenerationOptions(max_tokens=3, draft="ngram", num_draft_tokens=4))
    runs = await row.run(PROMPTS[:3])
    assert ["0", "1", "2"] == [run.question.id for run in runs]
    assert {(0, 1, 2)} == {run.token_ids for run in runs}
    assert {(1, 1, 1)} == {tuple(arrival.num_tokens for arrival in run.arrivals) for run in runs}
    assert [2, 2, 2] == [run.stats.round_count for run in runs if run.stats is not None]
    asked = [list(request.prompt.token_ids.token_ids) for request in gateway.requests]
    assert [[0], [1], [2]] == sorted(asked)
    assert {("ngram", 4, 3)} == {
        (r.speculation.draft_source, r.speculation.draft_token_count, r.max_tokens)
        for r in gateway.requests
    }
    assert 3 == len({r.cache_domain for r in gateway.requests} - {""})


async def test_rounds_are_counted_over_all_sessions(counting: Any) -> None:
    """Rounds with and without a proposal count; every session runs with its own stream."""
    gateway, stub = counting
    cost = await measure_rounds(stub, num_sessions=4, num_draft_tokens=2, max_tokens=5)
    assert (cost.num_sessions, cost.num_rounds, cost.num_tokens) == (4, 12, 12)
    assert {request.speculation.draft_token_count for request in gateway.requests} == {2}
    assert all(request.sampling.ignore_eos for request in gateway.requests)


def test_rate_of_rounds() -> None:
    """Rounds of all sessions over the time they took together."""
    cost = RoundCost(num_sessions=2, num_rounds=30, num_tokens=90, wall_s=1.5)
    assert cost.as_json()["rounds_per_second"] == 20.0
