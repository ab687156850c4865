"""Plain and speculative decoding of the same prompts through the same stack, interleaved.

Each question is generated plainly (no draft tokens) and speculatively right after one another,
alternating which goes first, so that a machine that drifts slows both alike. Figures of a single
generation are the gateway's own; throughput is taken from the client's clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from paceline.bench.prompts import Question
from paceline.cli.client import Generation, GenerationOptions, Stub, chat_prompt, generate

OnDone = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Timed:
    """One generation with the client's clock beside it."""

    generation: Generation
    wall_s: float

    @property
    def tokens_per_second(self) -> float:
        """Output tokens over the whole time, that to the first token included."""
        return len(self.generation.token_ids) / self.wall_s


@dataclass(frozen=True, slots=True)
class Pair:
    """Both generations of one question."""

    question: Question
    plain: Timed
    speculative: Timed

    @property
    def speedup(self) -> float:
        """Speculative over plain tokens per second, each without its time to the first token."""
        plain = self.plain.generation.stats.tokens_per_second
        speculative = self.speculative.generation.stats.tokens_per_second
        return speculative / plain if plain else 0.0

    @property
    def is_same(self) -> bool:
        """Whether both gave the same ids; expected of greedy decoding."""
        return self.plain.generation.token_ids == self.speculative.generation.token_ids


async def measure(
    gateway: Stub,
    questions: Sequence[Question],
    options: GenerationOptions,
    concurrency: int,
    on_done: OnDone,
) -> list[Pair]:
    """Measures every question, `concurrency` of them at once, in the order given."""
    slots = asyncio.Semaphore(concurrency)

    async def one(number: int, question: Question) -> Pair:
        async with slots:
            pair = await _pair(gateway, question, options, is_plain_first=number % 2 == 0)
        on_done()
        return pair

    return await asyncio.gather(*(one(*numbered) for numbered in enumerate(questions)))


async def _pair(
    gateway: Stub, question: Question, options: GenerationOptions, *, is_plain_first: bool
) -> Pair:
    plainly = replace(options, draft="none", num_draft_tokens=0)
    if is_plain_first:
        plain = await _timed(gateway, question, plainly)
        speculative = await _timed(gateway, question, options)
    else:
        speculative = await _timed(gateway, question, options)
        plain = await _timed(gateway, question, plainly)
    return Pair(question, plain, speculative)


async def _timed(gateway: Stub, question: Question, options: GenerationOptions) -> Timed:
    request = options.request(chat_prompt([("user", question.text)]))
    start = time.perf_counter()
    generation = await generate(gateway, request)
    return Timed(generation, time.perf_counter() - start)
