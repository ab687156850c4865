"""A sequence: what it believes to be cached is always what the cache holds."""

from __future__ import annotations

import random

import pytest

from paceline.engine.block_pool import BlockPool, OutOfBlocks
from paceline.engine.sequence import Sequence

SIZE = 4


@pytest.fixture
def pool() -> BlockPool:
    """A pool of 16 blocks of 4 tokens."""
    return BlockPool(16, SIZE)


def run(sequence: Sequence, length: int | None = None) -> list[tuple[int, int]]:
    """Does what a step does to a sequence: reserves, writes, counts, registers."""
    length = len(sequence) if length is None else length
    copies = sequence.reserve(length)
    sequence.num_cached = length
    sequence.register_prefix()
    return copies


def cached(pool: BlockPool, ids: list[int], cache_domain: str = "") -> Sequence:
    """A sequence of committed tokens, all of them run."""
    sequence = Sequence(pool, ids, prompt_length=len(ids), cache_domain=cache_domain)
    run(sequence)
    return sequence


@pytest.mark.parametrize(
    ("limit", "expected"), [(0, 0), (3, 0), (4, 4), (7, 4), (8, 8), (9, 8), (13, 12)]
)
def test_reuse_takes_whole_blocks_up_to_the_limit(
    pool: BlockPool, limit: int, expected: int
) -> None:
    """B56: the known prefix is taken over in whole blocks, never past the limit."""
    first = cached(pool, list(range(14)))
    second = Sequence(pool, list(range(14)), prompt_length=14)
    assert expected == second.reuse_prefix(limit)
    assert expected == second.num_cached
    assert first.block_table[: expected // SIZE] == second.block_table
    pool.check([first.block_table, second.block_table])


def test_reuse_stops_at_the_first_difference(pool: BlockPool) -> None:
    """Blocks behind a differing token are not the same prefix, however equal they look."""
    cached(pool, list(range(12)))
    other = Sequence(pool, [0, 1, 2, 3, 99, 5, 6, 7, 8, 9, 10, 11], prompt_length=12)
    assert 4 == other.reuse_prefix(12)


def test_reuse_stays_in_its_domain(pool: BlockPool) -> None:
    """Another tenant's equal prompt is not found."""
    cached(pool, list(range(8)), cache_domain="a")
    assert 0 == Sequence(pool, range(8), prompt_length=8, cache_domain="b").reuse_prefix(8)
    assert 0 == Sequence(pool, range(8), prompt_length=8).reuse_prefix(8)
    assert 8 == Sequence(pool, range(8), prompt_length=8, cache_domain="a").reuse_prefix(8)


def test_reuse_leaves_a_sequence_with_blocks_alone(pool: BlockPool) -> None:
    """Nothing is taken over by a sequence that has begun."""
    cached(pool, list(range(8)))
    sequence = Sequence(pool, range(8), prompt_length=8)
    run(sequence, 2)
    assert 2 == sequence.reuse_prefix(8)


def test_reuse_takes_committed_tokens_only(pool: BlockPool) -> None:
    """B71: a draft that happens to be known to others is not built on: it may be replaced."""
    cached(pool, list(range(8)))
    sequence = Sequence(pool, range(5), prompt_length=5)
    sequence.append([5, 6, 7])
    assert 4 == sequence.reuse_prefix(8)


def test_only_committed_full_cached_blocks_are_findable(pool: BlockPool) -> None:
    """Draft tokens are never hashed into the prefix cache; once committed they are."""

    def known() -> int:
        probe = Sequence(pool, range(9), prompt_length=9)
        probe.reuse_prefix(9)
        count = probe.num_cached
        probe.release()
        return count

    sequence = Sequence(pool, range(5), prompt_length=5)
    sequence.append([5, 6, 7, 8])
    run(sequence)
    assert 4 == known()
    sequence.commit()
    assert 8 == known()


def test_commit_registers_no_more_than_is_cached(pool: BlockPool) -> None:
    """A committed token that was not run yet is in no findable block."""
    sequence = Sequence(pool, range(7), prompt_length=7)
    run(sequence)
    sequence.append([7])
    sequence.commit()
    assert 4 == Sequence(pool, range(8), prompt_length=8).reuse_prefix(8)


def test_truncate_lowers_counts_and_returns_blocks(pool: BlockPool) -> None:
    """B16, B54: rolling back is a number, and surplus blocks go back at once."""
    sequence = Sequence(pool, range(6), prompt_length=6)
    sequence.append(range(6, 14))
    run(sequence)
    assert 4 == pool.num_held
    sequence.truncate(7)
    assert (7, 7, 2) == (len(sequence), sequence.num_cached, pool.num_held)
    pool.check([sequence.block_table])


def test_truncate_keeps_a_lower_cached_length(pool: BlockPool) -> None:
    """What was not run does not become cached by truncating behind it."""
    sequence = Sequence(pool, range(6), prompt_length=6)
    sequence.append(range(6, 14))
    run(sequence, 3)
    sequence.truncate(9)
    assert (9, 3) == (len(sequence), sequence.num_cached)


def test_committed_tokens_stay(pool: BlockPool) -> None:
    """B53: neither truncating nor replacing reaches what is committed."""
    sequence = Sequence(pool, range(6), prompt_length=6)
    with pytest.raises(AssertionError, match="6 tokens are committed, not 5"):
        sequence.truncate(5)
    with pytest.raises(AssertionError, match="6 tokens are committed, not 5"):
        sequence.replace_tail(5, [1])
    assert list(range(6)) == sequence.token_ids


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ([10, 11, 12, 13], 9),  # all accepted: the last draft token was never run
        ([10, 11, 99], 8),
        ([99], 6),
        ([10], 7),
        ([], 6),
    ],
    ids=["full", "partial", "none", "shorter", "empty"],
)
def test_replace_tail_keeps_the_cache_of_equal_tokens(
    pool: BlockPool, new: list[int], expected: int
) -> None:
    """B54, B55: after a verdict the draft's cache ends where the tokens begin to differ."""
    sequence = Sequence(pool, range(6), prompt_length=6)
    sequence.append([10, 11, 12])
    run(sequence)
    sequence.replace_tail(6, new)
    assert [*range(6), *new] == sequence.token_ids
    assert expected == sequence.num_cached
    assert -(-expected // SIZE) == len(sequence.block_table)


def test_digests_follow_a_truncation(pool: BlockPool) -> None:
    """Blocks that were rejected and filled anew are found under their new tokens only."""
    sequence = Sequence(pool, range(3), prompt_length=3)
    sequence.append([3, 4, 5, 6, 7])
    run(sequence)
    sequence.truncate(4)
    sequence.append([80, 81, 82, 83])
    run(sequence)
    sequence.commit()
    assert 4 == Sequence(pool, range(8), prompt_length=8).reuse_prefix(8)
    same = Sequence(pool, [0, 1, 2, 3, 80, 81, 82, 83], prompt_length=8)
    assert 8 == same.reuse_prefix(8)


def test_fork_shares_until_one_writes(pool: BlockPool) -> None:
    """Copy on write: the branch that writes first takes a copy of the last, half full block."""
    first = cached(pool, list(range(6)))
    twin = first.fork()
    assert first.block_table == twin.block_table
    assert 2 == pool.num_held
    shared = list(first.block_table)
    twin.append([50])
    copies = run(twin)
    assert shared[1] != twin.block_table[1]
    assert [(shared[1], twin.block_table[1])] == copies
    assert shared == first.block_table
    assert shared[0] == twin.block_table[0]
    pool.check([first.block_table, twin.block_table])
    first.append([60])
    assert [] == run(first)  # the only holder now
    assert shared == first.block_table


def test_fork_tells_which_block_to_copy(pool: BlockPool) -> None:
    """A half full shared block is copied, a full one is not, an empty one has nothing to copy."""
    first = cached(pool, list(range(6)))
    first.reserve(12)
    twin = first.fork()
    twin.append(range(50, 56))
    source = first.block_table[1]
    copies = twin.reserve(12)
    assert [(source, twin.block_table[1])] == copies
    assert 1 == len(set(first.block_table) & set(twin.block_table))
    pool.check([first.block_table, twin.block_table])


def test_fork_keeps_everything_that_decides_the_future(pool: BlockPool) -> None:
    """A branch has the same prompt, arrival, domain and commitment."""
    first = Sequence(pool, range(8), prompt_length=3, cache_domain="a", arrival_time_s=5.0)
    run(first)
    twin = first.fork()
    assert (3, 5.0, 8, 8) == (
        twin.prompt_length,
        twin.arrival_time_s,
        twin.num_committed,
        twin.num_cached,
    )
    twin.append(range(8, 12))
    run(twin)
    twin.commit()
    assert 12 == Sequence(pool, range(12), prompt_length=1, cache_domain="a").reuse_prefix(12)


def test_reserving_too_much_changes_nothing(pool: BlockPool) -> None:
    """A sequence that finds no room holds what it held, and owes no copy later."""
    first = cached(pool, list(range(6)))
    twin = first.fork()
    before = list(twin.block_table)
    rest = cached(pool, list(range(100, 100 + 13 * SIZE)))
    twin.append(range(6, 18))
    assert 1 + 3 == twin.num_missing_blocks(18)
    with pytest.raises(OutOfBlocks):
        twin.reserve(18)
    assert before == twin.block_table
    pool.check([first.block_table, twin.block_table, rest.block_table])


def test_registered_blocks_are_not_written_by_others(pool: BlockPool) -> None:
    """B56: whoever takes a prefix over and writes into its last block writes into a copy."""
    first = cached(pool, list(range(8)))
    second = Sequence(pool, range(8), prompt_length=8)
    second.reuse_prefix(8)
    second.num_cached = 7  # the last row has to run for its logits
    copies = second.reserve(8)
    assert [(first.block_table[1], second.block_table[1])] == copies
    assert first.block_table[0] == second.block_table[0]


def test_release_keeps_tokens_for_recomputing(pool: BlockPool) -> None:
    """B71: a preempted sequence has lost its blocks and nothing else."""
    sequence = cached(pool, list(range(10)))
    sequence.append([10])
    sequence.release()
    assert (11, 0, 0, []) == (
        len(sequence),
        sequence.num_cached,
        pool.num_held,
        sequence.block_table,
    )
    assert 8 == sequence.reuse_prefix(10)
    run(sequence)
    pool.check([sequence.block_table])


def test_span_is_what_is_not_cached(pool: BlockPool) -> None:
    """A span feeds the uncached tokens at their own positions."""
    sequence = Sequence(pool, range(20, 30), prompt_length=6)
    run(sequence, 5)
    sequence.reserve(9)
    span = sequence.span(9, 2)
    assert ((25, 26, 27, 28), 5, 9, 2, 6) == (
        span.token_ids,
        span.start,
        span.end,
        span.num_logits,
        span.prompt_length,
    )
    assert tuple(sequence.block_table) == span.block_table


@pytest.mark.parametrize("seed", range(4))
def test_cache_content_is_right_under_random_rounds(seed: int) -> None:
    """B54, B56, B58: whatever rounds do, slot by slot the cache holds the tokens it should.

    A shadow of the cache is written as a step would; found prefixes, forks, rejections and
    preemptions of five sequences must never make one read another's token.
    """
    dice = random.Random(seed)
    pool = BlockPool(14, 2)
    shadow: dict[int, int] = {}
    alive = [Sequence(pool, [0, 1, dice.randrange(2)], prompt_length=3) for _ in range(5)]

    def step(sequence: Sequence) -> None:
        if not sequence.block_table:
            sequence.reuse_prefix(len(sequence) - 1)
        sequence.num_cached = min(sequence.num_cached, len(sequence) - 1)
        try:
            copies = sequence.reserve(len(sequence))
        except OutOfBlocks:
            alive[dice.randrange(5)].release()
            return
        for source, destination in copies:
            for place in range(2):
                shadow[2 * destination + place] = shadow.get(2 * source + place, -1)
        for position in range(sequence.num_cached, len(sequence)):
            slot = 2 * sequence.block_table[position // 2] + position % 2
            shadow[slot] = sequence.token_ids[position]
        sequence.num_cached = len(sequence)
        sequence.register_prefix()

    for _ in range(600):
        index = dice.randrange(5)
        sequence = alive[index]
        tail = [dice.randrange(2) for _ in range(dice.randrange(1, 4))]
        match dice.randrange(5):
            case 0:
                sequence.append(tail)
                step(sequence)
                sequence.truncate(dice.randrange(sequence.num_committed, len(sequence) + 1))
            case 1:
                sequence.replace_tail(sequence.num_committed, tail)
                sequence.commit()
            case 2 if len(sequence) < 12:
                step(sequence)
            case 3:
                sequence.release()
            case _:
                other = dice.choice([i for i in range(5) if i != index])
                sequence.release()
                alive[index] = alive[other].fork()
        if len(alive[index]) > 11:
            alive[index].release()
            alive[index] = Sequence(pool, [0, 1, dice.randrange(2)], prompt_length=3)
        pool.check([each.block_table for each in alive])
        for each in alive:
            slots = [2 * each.block_table[p // 2] + p % 2 for p in range(each.num_cached)]
            assert each.token_ids[: each.num_cached] == [shadow[slot] for slot in slots]
