"""The scheduler: who goes first, who waits, and that somebody always goes."""

from __future__ import annotations

import random

import pytest

from paceline.engine.block_pool import BlockPool
from paceline.engine.scheduler import Demand, Plan, Scheduler
from paceline.engine.sequence import Sequence

SIZE = 4


class Bench:
    """A pool and a scheduler, with sequences that are run as an engine would run them."""

    def __init__(self, num_blocks: int = 64, max_rows: int = 32, max_short_rows: int = 9) -> None:
        self.pool = BlockPool(num_blocks, SIZE)
        self.scheduler = Scheduler(self.pool, max_rows=max_rows, max_short_rows=max_short_rows)

    def open(self, length: int, *, arrival: float = 0.0, first_id: int = 0) -> Sequence:
        """Opens a sequence of `length` tokens."""
        ids = range(first_id, first_id + length)
        sequence = Sequence(self.pool, ids, prompt_length=length, arrival_time_s=arrival)
        self.scheduler.open(sequence)
        return sequence

    def demand(self, sequence: Sequence, num_logits: int = 1) -> Demand:
        """Wants all of a sequence run."""
        return Demand(sequence, len(sequence), num_logits)

    def step(self, *demands: Demand) -> Plan:
        """Plans a step and does to the sequences what running it does."""
        plan = self.scheduler.plan(demands)
        for demand, span in zip(plan.demands, plan.spans, strict=True):
            assert demand.sequence.num_cached == span.start
            demand.sequence.num_cached = span.end
            demand.sequence.register_prefix()
        self.pool.check([sequence.block_table for sequence in self.scheduler.sequences])
        return plan

    def finish(self, *sequences: Sequence) -> None:
        """Runs sequences to their end."""
        pending = [self.demand(sequence) for sequence in sequences]
        while pending:
            plan = self.step(*pending)
            assert plan.spans
            pending = [d for d in pending if d.sequence.num_cached < d.length]


def planned(plan: Plan) -> list[Sequence]:
    """The sequences of a plan, in order."""
    return [demand.sequence for demand in plan.demands]


def num_rows(plan: Plan) -> list[int]:
    """Rows of each span."""
    return [len(span.token_ids) for span in plan.spans]


def test_everything_ready_shares_a_step() -> None:
    """B70: decodes, proposals and a prefill go together, each with its own rows and logits."""
    bench = Bench()
    decode, proposal, prompt = (bench.open(n, first_id=100 * n) for n in (10, 10, 12))
    bench.finish(decode, proposal)
    proposal.append(range(5))
    plan = bench.step(bench.demand(decode), bench.demand(proposal, 6), bench.demand(prompt))
    assert [decode, proposal, prompt] == planned(plan)
    assert [1, 6, 12] == num_rows(plan)
    assert [1, 6, 1] == [span.num_logits for span in plan.spans]


def test_short_spans_go_before_long_prompts() -> None:
    """A long prompt that came first delays nobody's round: it takes what the budget leaves."""
    bench = Bench(max_rows=20)
    prompt = bench.open(60, arrival=0.0)
    rounds = [bench.open(5, arrival=1.0, first_id=100 * n) for n in (1, 2)]
    plan = bench.step(bench.demand(prompt), *(bench.demand(each) for each in rounds))
    assert [*rounds, prompt] == planned(plan)
    assert [5, 5, 10] == num_rows(plan)
    assert [1, 1, 0] == [span.num_logits for span in plan.spans]


def test_budget_is_kept_and_nobody_is_lost() -> None:
    """A step has at most the budget's rows; what did not fit is in the next one."""
    bench = Bench(max_rows=16)
    sequences = [bench.open(7, first_id=100 * n) for n in range(5)]
    demands = [bench.demand(each) for each in sequences]
    first = bench.step(*demands)
    assert 16 >= sum(num_rows(first))
    assert sequences[:2] == planned(first)[:2]
    bench.finish(*sequences)


def test_chunks_keep_all_rows_with_logits_together() -> None:
    """The last chunk has every row whose law is wanted, and no other chunk has any."""
    bench = Bench(max_rows=8)
    sequence = bench.open(18)
    demand = bench.demand(sequence, 5)
    plans = [bench.step(demand) for _ in range(3)]
    assert [[8], [5], [5]] == [num_rows(plan) for plan in plans]
    assert [0, 0, 5] == [plan.spans[0].num_logits for plan in plans]


def test_logit_rows_wait_rather_than_split() -> None:
    """Rows that do not fit what is left of the budget wait for the next step, whole."""
    bench = Bench(max_rows=8)
    first, second = bench.open(6), bench.open(6, first_id=100)
    bench.finish(first)
    bench.finish(second)
    assert [first] == planned(bench.step(bench.demand(first, 6), bench.demand(second, 6)))
    assert [second] == planned(bench.step(bench.demand(second, 6)))


def test_arrival_decides_not_opening() -> None:
    """A generation that moved here keeps its place in the queue."""
    bench = Bench(max_rows=10, max_short_rows=4)
    young = bench.open(30, arrival=9.0, first_id=100)
    old = bench.open(30, arrival=1.0)
    assert [old] == planned(bench.step(bench.demand(young), bench.demand(old)))


def test_equal_arrivals_go_in_order_of_opening() -> None:
    """The order is total: two that arrived together do not take turns."""
    bench = Bench(max_rows=10, max_short_rows=4)
    first, second = bench.open(30), bench.open(30, first_id=100)
    assert [first] == planned(bench.step(bench.demand(second), bench.demand(first)))


def test_known_prefix_is_not_run_again() -> None:
    """B56: a second prompt runs only what differs, and at least one row for its logits."""
    bench = Bench()
    bench.finish(bench.open(17))
    plan = bench.step(bench.demand(bench.open(17)))
    assert (16, 1) == (plan.spans[0].start, len(plan.spans[0].token_ids))
    plan = bench.step(bench.demand(bench.open(16)))
    assert (12, 4) == (plan.spans[0].start, len(plan.spans[0].token_ids))


def test_cached_demand_without_logits_still_ends() -> None:
    """Keeping a cache warm that was preempted and found again is not waited for for ever."""
    bench = Bench()
    bench.finish(bench.open(16))
    waiting = bench.open(16)
    plan = bench.step(Demand(waiting, 16, 0))
    assert [waiting] == planned(plan)
    assert 16 == waiting.num_cached


def test_latest_arrival_is_preempted() -> None:
    """B71: the youngest gives its blocks back, the older ones keep theirs."""
    bench = Bench(num_blocks=6)
    oldest, middle, youngest = (
        bench.open(8, arrival=float(n), first_id=100 * n) for n in (1, 2, 3)
    )
    bench.finish(middle, youngest, oldest)
    oldest.append([50])
    assert [oldest] == planned(bench.step(bench.demand(oldest)))
    assert (0, 8) == (youngest.num_cached, middle.num_cached)
    assert [] == youngest.block_table
    assert 1 == bench.scheduler.num_preemptions


def test_younger_one_waits_for_older_ones() -> None:
    """Nobody takes blocks from a generation that arrived before."""
    bench = Bench(num_blocks=4)
    old = bench.open(12, arrival=1.0)
    bench.finish(old)
    young = bench.open(8, arrival=2.0, first_id=100)
    assert [] == planned(bench.step(bench.demand(young)))
    assert (12, 0) == (old.num_cached, bench.scheduler.num_preemptions)
    bench.scheduler.close(old)
    assert [young] == planned(bench.step(bench.demand(young)))


def test_nobody_is_preempted_in_vain() -> None:
    """Where even all younger ones' blocks are not enough, they keep them."""
    bench = Bench(num_blocks=8)
    oldest, young = bench.open(16, arrival=1.0), bench.open(4, arrival=3.0, first_id=100)
    bench.finish(oldest, young)
    middle = bench.open(24, arrival=2.0, first_id=200)
    assert [] == planned(bench.step(bench.demand(middle)))
    assert (4, 0) == (young.num_cached, bench.scheduler.num_preemptions)


def test_planned_sequences_are_not_preempted() -> None:
    """Blocks that a step is about to write are nobody else's in that step."""
    bench = Bench(num_blocks=6)
    prompt = bench.open(20, arrival=1.0)
    decode = bench.open(7, arrival=2.0, first_id=100)
    bench.finish(decode)
    decode.append([50])
    plan = bench.step(bench.demand(prompt), bench.demand(decode))
    assert [decode] == planned(plan)
    assert [prompt] == planned(bench.step(bench.demand(prompt)))
    assert [] == decode.block_table


def test_waiting_sequence_holds_nothing() -> None:
    """One that waits for room does not keep blocks of a prefix it merely found."""
    bench = Bench(num_blocks=5)
    bench.finish(bench.open(8, arrival=1.0))
    holder = bench.open(8, arrival=1.0, first_id=100)
    bench.finish(holder)
    young = bench.open(16, arrival=2.0)
    assert [] == planned(bench.step(bench.demand(young)))
    assert [] == young.block_table


def test_copies_of_a_fork_are_in_the_plan() -> None:
    """A branch that writes into a shared block has its copy made before the step."""
    bench = Bench()
    trunk = bench.open(6)
    bench.finish(trunk)
    branch = trunk.fork()
    bench.scheduler.open(branch)
    branch.append([50])
    shared = trunk.block_table[1]
    plan = bench.step(bench.demand(branch))
    assert [(shared, branch.block_table[1])] == plan.copies


def test_closing_returns_blocks_once() -> None:
    """B73: closing twice, or closing what was never run, is harmless."""
    bench = Bench()
    sequence, fresh = bench.open(9), bench.open(5, first_id=100)
    bench.finish(sequence)
    for each in (sequence, sequence, fresh):
        bench.scheduler.close(each)
    assert (0, 0) == (bench.pool.num_held, len(bench.scheduler))
    assert sequence not in bench.scheduler


@pytest.mark.parametrize("seed", range(6))
def test_no_deadlock_in_a_small_pool(seed: int) -> None:
    """B71: with room for two sequences of six, every one of them finishes.

    Each step must plan something as long as somebody wants rows: the oldest can always go.
    """
    dice = random.Random(seed)
    bench = Bench(num_blocks=12, max_rows=10, max_short_rows=5)
    alive = {
        bench.open(dice.randrange(1, 20), arrival=dice.random(), first_id=100 * n): 12
        for n in range(6)
    }
    for _ in range(3000):
        if not alive:
            break
        demands = [
            bench.demand(each, min(len(each), dice.randrange(1, 5)))
            for each in dice.sample(list(alive), dice.randrange(1, len(alive) + 1))
        ]
        oldest = min(alive, key=lambda each: each.arrival_time_s)
        plan = bench.step(*demands)
        assert plan.spans or oldest not in [demand.sequence for demand in demands]
        for demand, span in zip(plan.demands, plan.spans, strict=True):
            sequence = demand.sequence
            if span.end < demand.length:
                continue
            sequence.append([dice.randrange(100)])
            sequence.commit()
            alive[sequence] -= 1
            if alive[sequence] == 0:
                del alive[sequence]
                bench.scheduler.close(sequence)
    assert not alive
    assert 0 == bench.pool.num_held


@pytest.mark.parametrize("length", [1, 4, 5, 31, 32])
def test_a_sequence_alone_always_progresses(length: int) -> None:
    """A pool that just holds one sequence runs it to its end, in chunks."""
    bench = Bench(num_blocks=8, max_rows=5)
    bench.finish(bench.open(length))
