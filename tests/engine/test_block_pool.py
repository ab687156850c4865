"""The block pool: nothing is lost, nothing is given out twice, and prefixes stay findable."""

from __future__ import annotations

import random

import pytest

from paceline.engine.block_pool import BlockPool, OutOfBlocks, domain_digest, prefix_digest


def fill(pool: BlockPool, count: int) -> list[int]:
    """Allocates a run of blocks."""
    blocks: list[int] = []
    for _ in range(count):
        blocks.append(pool.allocate(blocks[-1] if blocks else None))
    return blocks


def digest_of(number: int) -> bytes:
    """A digest that is different for every number."""
    return prefix_digest(domain_digest(""), [number])


@pytest.mark.parametrize("seed", range(5))
def test_blocks_are_conserved_under_random_operations(seed: int) -> None:
    """2,000 random operations: counts hold, no block is given out while it is held (B69)."""
    dice = random.Random(seed)
    pool = BlockPool(12, 4)
    tables: list[list[int]] = [[] for _ in range(4)]
    contents: dict[int, bytes] = {}
    for step in range(2000):
        table, other = dice.sample(tables, 2)
        action = dice.randrange(5)
        if action == 0:
            try:
                block = pool.allocate(table[-1] if table else None)
            except OutOfBlocks:
                assert 12 == len({held for each in tables for held in each})
            else:
                assert all(block not in each for each in tables)
                contents.pop(block, None)
                table.append(block)
        elif action == 1 and other and other[-1] not in table:
            pool.retain(other[-1])
            table.append(other[-1])
        elif action == 2:
            pool.release(table)
            table.clear()
        elif action == 3 and table and table[-1] not in contents:
            contents[table[-1]] = digest_of(step)
            pool.register(table[-1], digest_of(step))
        elif action == 4 and contents:
            block = dice.choice(list(contents))
            assert block == pool.find(contents[block])
            if block not in table:
                pool.retain(block)
                table.append(block)
        pool.check(tables)
        held = {block for each in tables for block in each}
        assert (len(held), 12 - len(held)) == (pool.num_held, pool.num_free)


def test_digest_covers_all_tokens_before_it() -> None:
    """Equal blocks after different beginnings have different digests."""
    first, second = (prefix_digest(domain_digest(""), [1, token]) for token in (2, 3))
    assert prefix_digest(first, [4, 5]) == prefix_digest(first, [4, 5])
    assert prefix_digest(first, [4, 5]) != prefix_digest(second, [4, 5])
    assert prefix_digest(first, [4, 5]) != prefix_digest(first, [5, 4])


def test_domains_share_nothing() -> None:
    """The same tokens of two tenants have different digests, whatever follows."""
    ours, theirs = (prefix_digest(domain_digest(name), [7]) for name in ("a", "b"))
    assert ours != theirs
    assert prefix_digest(ours, [8]) != prefix_digest(theirs, [8])
    assert domain_digest("") != domain_digest("a")


def test_idle_blocks_go_least_recently_used_first() -> None:
    """Of idle prefixes the one let go longest ago makes room, and of one prefix its tail."""
    pool = BlockPool(4, 2)
    old, new = fill(pool, 2), fill(pool, 2)
    for number, block in enumerate(old + new):
        pool.register(block, digest_of(number))
    pool.release(old)
    pool.release(new)
    assert 4 == pool.num_free
    evicted = [pool.allocate() for _ in range(4)]
    assert [old[1], old[0], new[1], new[0]] == evicted
    assert [None] * 4 == [pool.find(digest_of(number)) for number in range(4)]


def test_blank_blocks_go_before_idle_ones() -> None:
    """A prefix is not forgotten while there is room that holds nothing."""
    pool = BlockPool(4, 2)
    kept = fill(pool, 2)
    pool.register(kept[0], digest_of(0))
    pool.register(kept[1], digest_of(1))
    pool.release(kept)
    assert not set(fill(pool, 2)) & set(kept)
    assert kept == [pool.find(digest_of(0)), pool.find(digest_of(1))]


def test_found_block_is_used_again() -> None:
    """Retaining an idle block makes it held, and it is not evicted."""
    pool = BlockPool(2, 2)
    block = pool.allocate()
    pool.register(block, digest_of(0))
    pool.release([block])
    pool.retain(block)
    assert 1 == pool.references(block)
    assert block != pool.allocate()
    with pytest.raises(OutOfBlocks):
        pool.allocate()


def test_runs_are_contiguous() -> None:
    """Blocks of one sequence follow one another, also while two grow in turn."""
    pool = BlockPool(16, 4)
    first, second = [pool.allocate()], [pool.allocate()]
    for _ in range(3):
        first.append(pool.allocate(first[-1]))
        second.append(pool.allocate(second[-1]))
    for blocks in (first, second):
        assert list(range(blocks[0], blocks[0] + 4)) == blocks


def test_new_run_starts_in_the_longest_blank_stretch() -> None:
    """A run leaves a held neighbour room to grow, and short holes alone."""
    pool = BlockPool(12, 4)
    blocks = fill(pool, 12)
    pool.release([blocks[1]])
    pool.release(blocks[4:10])
    assert 4 + 3 == pool.allocate()


def test_taken_neighbour_starts_a_new_run() -> None:
    """A sequence whose next block is held goes on elsewhere."""
    pool = BlockPool(4, 4)
    blocks = fill(pool, 4)
    pool.release([blocks[3]])
    assert 3 == pool.allocate(blocks[0])


def test_out_of_blocks() -> None:
    """Every block held is told, and changes nothing."""
    pool = BlockPool(3, 4)
    blocks = fill(pool, 3)
    with pytest.raises(OutOfBlocks):
        pool.allocate()
    pool.check([blocks])
    assert 0 == pool.num_free


def test_double_release_is_caught() -> None:
    """Giving a block back twice fails at once, not when somebody else's tokens show up."""
    pool = BlockPool(2, 4)
    block = pool.allocate()
    pool.release([block])
    with pytest.raises(AssertionError, match=f"block {block} was released once too often"):
        pool.release([block])


def test_blank_block_cannot_be_shared() -> None:
    """Only what holds something can be retained."""
    with pytest.raises(AssertionError, match="holds nothing"):
        BlockPool(2, 4).retain(1)


def test_first_registered_block_stays() -> None:
    """Of two blocks of the same tokens, the first one is found; the other becomes blank again."""
    pool = BlockPool(2, 4)
    first, second = fill(pool, 2)
    pool.register(first, digest_of(0))
    pool.register(second, digest_of(0))
    assert first == pool.find(digest_of(0))
    pool.release([first, second])
    assert second == pool.allocate()
    assert first == pool.find(digest_of(0))


@pytest.mark.parametrize("tables", [[], [[0, 1]], [[0], [0]]], ids=["lost", "extra", "twice"])
def test_check_tells_of_wrong_counts(tables: list[list[int]]) -> None:
    """B73: a block that no table holds, or one more than was given out, does not pass."""
    pool = BlockPool(2, 4)
    assert 0 == pool.allocate()
    pool.check([[0]])
    with pytest.raises(AssertionError, match="wrong reference count"):
        pool.check(tables)
