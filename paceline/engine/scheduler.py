"""Which rows go into the next step: continuous batching, chunked prefill, preemption.

Integers only. It owns the open sequences and asks the block pool for room on their behalf; it runs
nothing and knows no logits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

from paceline.engine.block_pool import BlockPool, OutOfBlocks
from paceline.engine.sequence import Sequence
from paceline.engine.step import Span, Step


@dataclass(frozen=True, slots=True)
class Demand:
    """A sequence that wants its first `length` tokens run, and logits for the last rows."""

    sequence: Sequence
    length: int
    num_logits: int

    @property
    def num_rows(self) -> int:
        """Rows still to run."""
        return self.length - self.sequence.num_cached


@dataclass(slots=True)
class Plan:
    """A step with the demands that its spans serve, and the block copies owed before it."""

    demands: list[Demand] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)

    def step(self, block_size: int) -> Step:
        """The step as the runner takes it."""
        return Step(tuple(self.spans), block_size)


class Scheduler:
    """Chooses rows up to a budget. Sequences never wait for one another's rounds.

    Short spans (a decode, a proposal) go first, so that a long prompt delays nobody by more than
    one step; within a kind, the generation that arrived first. When blocks run out, the generation
    that arrived last gives its blocks back and is recomputed later: it notices nothing but time.
    """

    def __init__(self, pool: BlockPool, *, max_rows: int, max_short_rows: int) -> None:
        self._pool = pool
        self._max_rows = max_rows
        self._max_short_rows = max_short_rows
        self._serial = itertools.count()
        self._order: dict[Sequence, tuple[float, int]] = {}
        self.num_preemptions = 0

    @property
    def sequences(self) -> list[Sequence]:
        """The open sequences."""
        return list(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._order

    def open(self, sequence: Sequence) -> None:
        """Takes a sequence in."""
        self._order[sequence] = (sequence.arrival_time_s, next(self._serial))

    def close(self, sequence: Sequence) -> None:
        """Lets a sequence go and returns its blocks. Closing twice is allowed."""
        if self._order.pop(sequence, None) is not None:
            sequence.release()

    def plan(self, demands: Iterable[Demand]) -> Plan:
        """The next step. Empty when nothing is demanded, or when all of it waits for blocks."""
        plan = Plan()
        budget = self._max_rows
        for demand in sorted(demands, key=self._urgency):
            sequence = demand.sequence
            first_logit = demand.length - demand.num_logits
            is_new = not sequence.block_table
            if is_new:  # at least one row has to run, or nothing would end the demand
                sequence.reuse_prefix(min(first_logit, demand.length - 1))
            sequence.num_cached = min(sequence.num_cached, first_logit)
            end = min(sequence.num_cached + budget, demand.length)
            if end < demand.length:  # a chunk: all rows that want logits stay together
                end = min(end, first_logit)
            if end <= sequence.num_cached or not self._make_room(sequence, end, plan):
                if is_new:  # whoever waits without progress to keep holds nothing
                    sequence.release()
                continue
            num_logits = demand.num_logits if end == demand.length else 0
            plan.demands.append(demand)
            plan.spans.append(sequence.span(end, num_logits))
            budget -= end - sequence.num_cached
        return plan

    def _urgency(self, demand: Demand) -> tuple[bool, tuple[float, int]]:
        return demand.num_rows > self._max_short_rows, self._order[demand.sequence]

    def _make_room(self, sequence: Sequence, end: int, plan: Plan) -> bool:
        """Reserves room up to `end`, at the cost of later arrivals that are not in the plan."""
        try:
            copies = sequence.reserve(end)
        except OutOfBlocks:
            if not self._preempt_for(sequence, end, plan):
                return False
            copies = sequence.reserve(end)
        plan.copies.extend(copies)
        return True

    def _preempt_for(self, sequence: Sequence, end: int, plan: Plan) -> bool:
        """Takes blocks from the latest arrivals, if that can be enough."""
        planned = {demand.sequence for demand in plan.demands}
        place = self._order[sequence]
        victims = [s for s, p in self._order.items() if p > place and s not in planned]
        num_missing = sequence.num_missing_blocks(end)
        if self._pool.num_free + sum(len(s.block_table) for s in victims) < num_missing:
            return False
        for victim in sorted(victims, key=self._order.__getitem__, reverse=True):
            if victim.block_table:
                victim.release()
                self.num_preemptions += 1
            if self._pool.num_free >= num_missing:
                return True
        return False
