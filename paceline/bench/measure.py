"""Several ways of generating the same prompts, interleaved.

Every group of prompts goes through all rows before the next group does, each time beginning with
another row, so that a machine that drifts slows all alike. One row runs at a time. Services and
peers are alike here.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from paceline.bench.prompts import Question
from paceline.bench.runs import Arrival, Group, Prompt, Row, Run
from paceline.cli.client import GenerationOptions, Stub, chat_prompt, generate, ids_prompt
from paceline.v1 import gateway_pb2

OnDone = Callable[[], None]


@dataclass(frozen=True, slots=True)
class ServedRow:
    """Generation through a running system."""

    name: str
    gateway: Stub
    options: GenerationOptions
    max_concurrency: int = sys.maxsize

    async def run(self, prompts: Sequence[Prompt]) -> list[Run]:
        """See Row."""
        return await asyncio.gather(*(self._run(prompt) for prompt in prompts))

    async def _run(self, prompt: Prompt) -> Run:
        request = self.options.request(ids_prompt(prompt.token_ids))
        # A domain of its own: nobody's prefix is found in a cache, so each run pays its prompt.
        request.cache_domain = f"/{secrets.token_hex(8)}"
        arrivals: list[Arrival] = []
        start = time.perf_counter()

        async def note(tokens: gateway_pb2.Tokens) -> None:
            arrivals.append(Arrival(time.perf_counter() - start, len(tokens.token_ids)))

        generation = await generate(self.gateway, request, note)
        return Run(prompt.question, tuple(arrivals), generation.token_ids, generation.stats)


async def tokenize(gateway: Stub, questions: Sequence[Question], model: str = "") -> list[Prompt]:
    """The ids of each question as the user's turn of a chat, from the target's own tokenizer."""
    prompts = []
    for question in questions:
        form = chat_prompt([("user", question.text)])
        answer = await gateway.Tokenize(gateway_pb2.TokenizeRequest(model=model, prompt=form))
        prompts.append(Prompt(question, tuple(answer.token_ids)))
    return prompts


@dataclass(frozen=True, slots=True)
class Turn:
    """One group of prompts, before it goes through the rows."""

    concurrency: int
    number: int
    prompts: tuple[Prompt, ...]


def turns(prompts: Sequence[Prompt], concurrencies: Sequence[int]) -> list[Turn]:
    """The prompts in groups of each size, sizes interleaved.

    A last group that is not full is filled up from the beginning.
    """
    every = [
        Turn(size, number, tuple(islice(cycle(prompts), number * size, (number + 1) * size)))
        for size in concurrencies
        for number in range(-(-len(prompts) // size))
    ]
    return sorted(every, key=lambda turn: (turn.number + 1) * turn.concurrency)


def able(rows: Sequence[Row], turn: Turn) -> list[Row]:
    """The rows that take this many prompts at once, beginning with another one at each turn."""
    found = [row for row in rows if turn.concurrency <= row.max_concurrency]
    shift = turn.number % len(found)
    return found[shift:] + found[:shift]


async def warm_up(rows: Sequence[Row], prompts: Sequence[Prompt]) -> None:
    """Runs one prompt through every row: first calls pay for what later ones do not."""
    for row in rows:
        await row.run(prompts[:1])


async def measure(rows: Sequence[Row], plan: Sequence[Turn], on_done: OnDone) -> list[Group]:
    """Takes all turns, calling `on_done` after each row of each."""
    groups = []
    for turn in plan:
        for row in able(rows, turn):
            runs = await row.run(turn.prompts)
            groups.append(Group(row.name, turn.concurrency, turn.number, tuple(runs)))
            on_done()
    return groups
