"""Every prompt with one draft source, one proposal length and one way of sampling, as one record.

Figures are pooled over the prompts: sums over sums, never means of ratios. It knows no table and
no prediction.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from paceline.bench.prompts import Question
from paceline.cli.client import Generation, GenerationOptions, Stub, chat_prompt, generate
from paceline.v1 import gateway_pb2
from paceline.wire import seconds

NO_DRAFT = "none"


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a generation, by the client's clock."""

    has_proposal: bool
    duration_s: float
    is_first: bool = False
    """Whether its proposal is the generation's first, which waits for the draft's prompt."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of the prompts, in their order."""

    source: str
    num_draft_tokens: int
    generations: tuple[Generation, ...]
    rounds: tuple[Round, ...] = ()
    """Of all generations, without the first of each, which prefills."""

    @property
    def num_tokens(self) -> int:
        """Output tokens."""
        return sum(len(generation.token_ids) for generation in self.generations)

    @property
    def num_rounds(self) -> int:
        """Rounds with a proposal."""
        return sum(generation.stats.round_count for generation in self.generations)

    @property
    def num_drafted(self) -> int:
        """Draft tokens verified."""
        return sum(generation.stats.drafted_token_count for generation in self.generations)

    @property
    def num_accepted(self) -> int:
        """Draft tokens accepted."""
        return sum(generation.stats.accepted_token_count for generation in self.generations)

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted tokens; 0 without any."""
        return self.num_accepted / self.num_drafted if self.num_drafted else 0.0

    @property
    def acceptance_length(self) -> float:
        """Tokens that a round with a proposal commits, the next token included."""
        return 1 + (self.num_accepted / self.num_rounds if self.num_rounds else 0.0)

    @property
    def coverage(self) -> float:
        """Share of the rounds, each generation's first left out, that had a proposal."""
        num_plain = sum(max(0, g.stats.plain_round_count - 1) for g in self.generations)
        asked = self.num_rounds + num_plain
        return self.num_rounds / asked if asked else 0.0

    @property
    def survival(self) -> tuple[float, ...]:
        """Entry i: share of the proposals of more than i tokens of which more were accepted."""
        accepted = _by_place(g.stats.accepted_count_by_position for g in self.generations)
        return tuple(a / d for a, d in zip(accepted, self._drafted_by_place, strict=True))

    @property
    def reach(self) -> tuple[float, ...]:
        """Entry i: share of the proposals that have more than i tokens."""
        return tuple(count / self.num_rounds for count in self._drafted_by_place)

    @property
    def _drafted_by_place(self) -> list[int]:
        return _by_place(g.stats.drafted_count_by_position for g in self.generations)

    @property
    def draft_s_per_token(self) -> float:
        """Time of the draft tier per draft token, prompts left out, in seconds; 0 without any."""
        total_s = sum(seconds(generation.stats.draft_duration) for generation in self.generations)
        total_s -= self.first_wait_s * sum(one.is_first for one in self.rounds)
        return max(0.0, total_s) / self.num_drafted if self.num_drafted else 0.0

    @property
    def first_wait_s(self) -> float:
        """What the first round with a proposal takes beyond later ones, in seconds; at least 0."""
        first = [one.duration_s for one in self.rounds if one.is_first]
        later = [one.duration_s for one in self.rounds if one.has_proposal and not one.is_first]
        if not first or not later:
            return 0.0
        return max(0.0, statistics.mean(first) - statistics.median(later))

    @property
    def overhead_s(self) -> float:
        """Median over the prompts of a round's time outside both models, in seconds."""
        overheads = [seconds(g.stats.overhead_duration_p50) for g in self.generations]
        return statistics.median(overheads) if overheads else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Output tokens after each generation's first, over the time after it."""
        num_tokens = total_s = 0.0
        for generation in self.generations:
            rate = generation.stats.tokens_per_second
            if rate:
                num_tokens += len(generation.token_ids) - 1
                total_s += (len(generation.token_ids) - 1) / rate
        return num_tokens / total_s if total_s else 0.0

    def round_s(self, *, has_proposal: bool) -> float:
        """Median of a round with, or without, a proposal in seconds; 0 if there was none."""
        durations = [r.duration_s for r in self.rounds if r.has_proposal is has_proposal]
        return statistics.median(durations) if durations else 0.0

    def num_same(self, other: Trial) -> int:
        """Number of prompts that gave the same ids in both."""
        pairs = zip(self.generations, other.generations, strict=True)
        return sum(ours.token_ids == theirs.token_ids for ours, theirs in pairs)


async def run_interleaved(
    gateway: Stub,
    questions: Sequence[Question],
    wanted: Sequence[GenerationOptions],
    on_done: Callable[[], None] = lambda: None,
) -> list[Trial]:
    """Runs every question with each of the options in turn, so that a drift slows all alike.

    Each run is a tenant of its own: what another run made of the same prompts is not known to its
    caches, nor to a source that remembers finished outputs.
    """
    tenants = [f"/run-{uuid.uuid4()}" for _ in wanted]
    generations: list[list[Generation]] = [[] for _ in wanted]
    rounds: list[list[Round]] = [[] for _ in wanted]
    for question in questions:
        for index, options in enumerate(wanted):
            request = options.request(chat_prompt([("user", question.text)]))
            request.cache_domain = tenants[index]
            generation, own = await _timed(gateway, request)
            generations[index].append(generation)
            rounds[index] += own[1:]
            on_done()
    return [
        Trial(options.draft, options.num_draft_tokens or 0, tuple(generations[i]), tuple(rounds[i]))
        for i, options in enumerate(wanted)
    ]


def plainly(options: GenerationOptions) -> GenerationOptions:
    """The same generation without a draft."""
    return replace(options, draft=NO_DRAFT, num_draft_tokens=0)


def _by_place(counts: Iterable[Sequence[int]]) -> list[int]:
    """Sums by place of lists of any lengths."""
    return [sum(column) for column in zip_longest(*counts, fillvalue=0)]


async def _timed(
    gateway: Stub, request: gateway_pb2.GenerateRequest
) -> tuple[Generation, list[Round]]:
    """One generation, and how long each of its rounds took."""
    rounds: list[Round] = []
    last_s = time.perf_counter()

    async def note(tokens: gateway_pb2.Tokens) -> None:
        nonlocal last_s
        now_s = time.perf_counter()
        # An accepted end token cuts the target's own token off: a draft's is the last then.
        has_proposal = tokens.origins[-1] != gateway_pb2.TOKEN_ORIGIN_PLAIN
        is_first = has_proposal and not any(one.has_proposal for one in rounds)
        rounds.append(Round(has_proposal, now_s - last_s, is_first))
        last_s = now_s

    return await generate(gateway, request, note), rounds
