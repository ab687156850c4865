"""The stacked cache: what is written is read back, layer by layer, and blocks copy whole."""

from __future__ import annotations

import resource
from pathlib import Path

import torch

from paceline.engine.lean.cache import StackedCache
from paceline.engine.lean.decoder import HeadShape


def build() -> tuple[StackedCache, list[torch.Tensor]]:
    """Two layers of 3 key heads, 4 blocks of 4 slots; rows 0 .. 5 in scattered slots."""
    cache = StackedCache(2, HeadShape(6, 3, 8), 4, 4, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(6, 6, 8, generator=generator) for _ in range(2)]
    for layer in range(2):
        cache.write(layer, torch.tensor([5, 6, 7, 8, 15, 0]), rows[layer])
    return cache, rows


def test_run_is_read_back() -> None:
    """Key and value of each layer in turn, heads before slots."""
    cache, rows = build()
    views = cache.view_run(5, 9)
    assert 4 == len(views)
    for layer in range(2):
        key, value = views[2 * layer], views[2 * layer + 1]
        assert torch.equal(rows[layer][:4, :3].transpose(0, 1)[None], key)
        assert torch.equal(rows[layer][:4, 3:].transpose(0, 1)[None], value)


def test_views_see_later_writes() -> None:
    """A step cuts its views before it writes its own rows."""
    cache, rows = build()
    key, other = cache.view_run(2, 4)[2], cache.view_run(2, 4)[0]
    cache.write(0, torch.tensor([2, 3]), torch.zeros(2, 6, 8))
    cache.write(1, torch.tensor([3]), rows[1][:1])
    assert torch.equal(rows[1][0, :3], key[0, :, 1])
    assert 0.0 == other.abs().max()  # the other layer is as it was


def test_blocks_copy_in_all_layers() -> None:
    """Copy on write: the whole block, keys and values, and no other slot."""
    cache, _ = build()
    for layer in range(2):  # equal to itself, which memory that was never written may not be
        cache.write(layer, torch.tensor([1, 2, 3, 4, 9, 10, 11, 12, 13, 14]), torch.ones(10, 6, 8))
    before = [view.clone() for view in cache.view_run(0, 16)]
    cache.copy_blocks([(1, 3), (0, 2)])
    for old, new in zip(before, cache.view_run(0, 16), strict=True):
        assert torch.equal(old[:, :, :8], new[:, :, :8])
        assert torch.equal(old[:, :, 4:8], new[:, :, 12:])
        assert torch.equal(old[:, :, :4], new[:, :, 8:12])


def test_fresh_slots_are_0_and_cost_nothing() -> None:
    """Whatever the memory held before; and a large cache takes none until it is written."""
    size = 2 * 2 * 3 * 16 * 8
    spoiled = [torch.full((size,), float("nan")) for _ in range(8)]
    del spoiled
    cache = StackedCache(2, HeadShape(6, 3, 8), 4, 4, dtype=torch.float32)
    assert all(0.0 == view.abs().max() for view in cache.view_run(0, 16))
    assert 0 == cache.view_run(0, 16)[0].data_ptr() % 64
    before = resident_bytes()
    large = StackedCache(8, HeadShape(8, 8, 64), 1024, 16, dtype=torch.float32)
    assert resident_bytes() - before < 64 << 20
    assert 16384 == large.num_slots


def resident_bytes() -> int:
    """Memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
