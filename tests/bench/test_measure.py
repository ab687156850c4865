"""What is asked of the gateway: both kinds of every question, interleaved, a few at once."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.bench.measure import measure
from paceline.bench.prompts import Question
from paceline.bench.rounds import RoundCost, measure_rounds
from paceline.cli.client import GenerationOptions

QUESTIONS = [Question(str(number), "a", f"question {number}") for number in range(6)]


async def test_every_question_both_ways(counting: Any) -> None:
    """Plain asks for no draft, speculative for what was wanted; who is first alternates."""
    gateway, stub = counting
    done: list[int] = []
    options = GenerationOptions(max_tokens=3, draft="ngram", num_draft_tokens=4)
    pairs = await measure(stub, QUESTIONS[:2], options, 1, lambda: done.append(1))
    assert [pair.question for pair in pairs] == QUESTIONS[:2]
    assert len(done) == 2
    asked = [
        (request.speculation.draft_source, request.speculation.draft_token_count)
        for request in gateway.requests
    ]
    assert asked == [("none", 0), ("ngram", 4), ("ngram", 4), ("none", 0)]
    assert {request.max_tokens for request in gateway.requests} == {3}
    assert all(pair.is_same and pair.speedup == 1.0 for pair in pairs)


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_concurrency_is_bounded(counting: Any, concurrency: int) -> None:
    """No more questions run at once than were asked for."""
    gateway, stub = counting
    await measure(stub, QUESTIONS, GenerationOptions(), concurrency, lambda: None)
    assert 1 <= gateway.most_running <= concurrency
    assert len(gateway.requests) == 2 * len(QUESTIONS)


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
