"""What one way of generating is asked, and what comes back: prompts, runs, groups of runs.

A row is one way of generating: plain or speculative through the services, or a peer in this
process. All rows are asked for the same ids and timed by the asker's clock, so that their figures
mean the same thing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from paceline.bench.prompts import Question
from paceline.v1 import gateway_pb2


@dataclass(frozen=True, slots=True)
class Prompt:
    """A question as the ids that every row is given."""

    question: Question
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Arrival:
    """Output tokens that came together."""

    at_s: float
    """Since the prompt was handed over."""
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Run:
    """One generation."""

    question: Question
    arrivals: tuple[Arrival, ...]
    """In order, at least one."""
    token_ids: tuple[int, ...] | None = None
    """None where the row tells no ids."""
    stats: gateway_pb2.GenerationStats | None = None
    """None of a peer."""

    @property
    def num_tokens(self) -> int:
        """Output tokens."""
        return sum(arrival.num_tokens for arrival in self.arrivals)

    @property
    def first_token_s(self) -> float:
        """To the first token."""
        return self.arrivals[0].at_s

    @property
    def end_s(self) -> float:
        """To the last token."""
        return self.arrivals[-1].at_s

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens after the first arrival over the time after it; None where all came at once."""
        rest_s = self.end_s - self.first_token_s
        return (self.num_tokens - self.arrivals[0].num_tokens) / rest_s if rest_s > 0 else None

    @property
    def between_tokens_s(self) -> list[float]:
        """One entry for each token after the first arrival: its share of the wait for it.

        Four tokens that come together 80 ms after the last ones count as 20 ms each.
        """
        shares = []
        for before, arrival in zip(self.arrivals, self.arrivals[1:], strict=False):
            share_s = (arrival.at_s - before.at_s) / arrival.num_tokens
            shares += [share_s] * arrival.num_tokens
        return shares


@dataclass(frozen=True, slots=True)
class Group:
    """Generations of one row that were started together."""

    row: str
    concurrency: int
    number: int
    """From 0; the groups of other rows with this number and concurrency had the same prompts."""
    runs: tuple[Run, ...]

    @property
    def tokens_per_second(self) -> float:
        """All output tokens over the time to the last of them, prompts included."""
        return sum(run.num_tokens for run in self.runs) / max(run.end_s for run in self.runs)

    @property
    def decode_tokens_per_second(self) -> float | None:
        """Tokens that came after every prompt was done, over that time; None without such time."""
        start_s = max(run.first_token_s for run in self.runs)
        rest_s = max(run.end_s for run in self.runs) - start_s
        arrivals = [arrival for run in self.runs for arrival in run.arrivals]
        num_tokens = sum(a.num_tokens for a in arrivals if a.at_s > start_s)
        return num_tokens / rest_s if rest_s > 0 else None


class Row(Protocol):
    """One way of generating."""

    @property
    def name(self) -> str:
        """Its name in tables."""

    @property
    def max_concurrency(self) -> int:
        """Most prompts that it takes at once."""

    async def run(self, prompts: Sequence[Prompt]) -> list[Run]:
        """Generates all prompts, started together, and returns their runs in order."""
