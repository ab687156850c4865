"""Keys and values slot by slot, as paged kernels read them."""

from __future__ import annotations

import pytest
import torch

from paceline.engine.lean.decoder import HeadShape
from paceline.engine.lean.slot_cache import SlotCache

SHAPE = HeadShape(4, 2, 8)
SIZE = 4


@pytest.fixture
def cache() -> SlotCache:
    """Two layers, three blocks and a spare one."""
    return SlotCache(2, SHAPE, 3, SIZE, torch.zeros(0, dtype=torch.bfloat16))


def rows(count: int) -> torch.Tensor:
    """Keys and values of some rows, [T, 2 * Hkv, D]."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 4, 8, generator=generator).bfloat16()


def test_a_row_is_where_the_kernel_looks_for_it(cache: SlotCache) -> None:
    """Slot b * block_size + i is place i of block b; keys and values apart, layers apart."""
    new = rows(2)
    cache.write(1, torch.tensor([2 * SIZE + 3, 1]), new)
    keys, values = cache.view_layer(1)
    assert (4, SIZE, 2, 8) == keys.shape == values.shape
    assert torch.equal(new[0, :2], keys[2, 3]) and torch.equal(new[0, 2:], values[2, 3])
    assert torch.equal(new[1, :2], keys[0, 1]) and torch.equal(new[1, 2:], values[0, 1])
    assert new.count_nonzero() == keys.count_nonzero() + values.count_nonzero()
    assert not any(part.any() for part in cache.view_layer(0))


def test_the_spare_block_is_one_more(cache: SlotCache) -> None:
    """No block that can be given out is it."""
    assert 3 == cache.spare_block
    cache.write(0, torch.tensor([cache.spare_block * SIZE]), rows(1))
    assert not cache.view_layer(0)[0][:3].any()
    assert torch.bfloat16 == cache.view_layer(0)[0].dtype


def test_blocks_are_copied_in_all_layers(cache: SlotCache) -> None:
    """Copy on write: in order, so that a chain of copies carries on."""
    for layer in (0, 1):
        cache.write(layer, torch.arange(SIZE), (1 + layer) * rows(SIZE))
    cache.copy_blocks([(0, 2), (2, 1)])
    for layer in (0, 1):
        for part in cache.view_layer(layer):
            assert part[0].any()
            assert torch.equal(part[0], part[1]) and torch.equal(part[0], part[2])
            assert not part[3].any()
