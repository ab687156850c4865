"""The paged cache: what is written to a slot is what is read from it."""

from __future__ import annotations

import pytest
import torch

from paceline.engine.paged_cache import LayerShape, PagedCache, slot_runs

LAYERS = (LayerShape(2, 8, 8), LayerShape(3, 4, 6))
CPU = torch.device("cpu")


@pytest.fixture
def cache() -> PagedCache:
    """Two layers of different shapes, 6 blocks of 4 slots."""
    return PagedCache(LAYERS, 6, 4, dtype=torch.float32, device=CPU)


def write(cache: PagedCache, layer: int, slots: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Writes random keys and values to slots, and returns them."""
    shape = LAYERS[layer]
    key = torch.randn(shape.num_kv_heads, len(slots), shape.key_dim)
    value = torch.randn(shape.num_kv_heads, len(slots), shape.value_dim)
    cache.write(layer, torch.tensor(slots), key, value)
    return key, value


@pytest.mark.parametrize("layer", [0, 1])
def test_one_run_is_read_as_a_view(cache: PagedCache, layer: int) -> None:
    """A run of slots comes back as written, dense per head and without a copy."""
    torch.manual_seed(0)
    expected = write(cache, layer, list(range(5, 14)))
    read = cache.read(layer, [(5, 14)])
    storages = (cache.keys[layer], cache.values[layer])
    for wanted, got, storage in zip(expected, read, storages, strict=True):
        assert torch.equal(wanted, got)
        assert storage.untyped_storage().data_ptr() == got.untyped_storage().data_ptr()
        assert got[0].is_contiguous()


def test_several_runs_are_read_in_order(cache: PagedCache) -> None:
    """Fragments come back in the order of the runs, whatever their slots."""
    torch.manual_seed(0)
    key, value = write(cache, 1, [20, 21, 3, 4, 5, 12])
    read_key, read_value = cache.read(1, [(20, 22), (3, 6), (12, 13)])
    assert torch.equal(key, read_key)
    assert torch.equal(value, read_value)


def test_layers_do_not_share(cache: PagedCache) -> None:
    """Writing to one layer, or to one slot, leaves all others alone."""
    torch.manual_seed(0)
    before = write(cache, 0, [0, 1, 2])
    write(cache, 1, [0, 1, 2])
    write(cache, 0, [3])
    assert torch.equal(before[0], cache.read(0, [(0, 3)])[0])
    assert torch.equal(before[1], cache.read(0, [(0, 3)])[1])


def test_copied_blocks_are_equal_and_apart(cache: PagedCache) -> None:
    """Copy on write: a copy holds the same, in every layer, and then goes its own way."""
    torch.manual_seed(0)
    written = [write(cache, layer, list(range(4, 8))) for layer in (0, 1)]
    cache.copy_blocks([(1, 5), (5, 0)])
    for layer, (key, value) in enumerate(written):
        for run in ((4, 8), (20, 24), (0, 4)):
            assert torch.equal(key, cache.read(layer, [run])[0])
            assert torch.equal(value, cache.read(layer, [run])[1])
    write(cache, 0, [20])
    assert torch.equal(written[0][0], cache.read(0, [(4, 8)])[0])


def test_blocks_are_the_same_memory(cache: PagedCache) -> None:
    """The block view of a layer shows slot `4 * block + place` at [block, place]."""
    torch.manual_seed(0)
    key, value = write(cache, 1, [9])
    key_blocks, value_blocks = cache.blocks(1)
    assert ((6, 4, 3, 4), (6, 4, 3, 6)) == (key_blocks.shape, value_blocks.shape)
    assert torch.equal(key[:, 0], key_blocks[2, 1])
    assert torch.equal(value[:, 0], value_blocks[2, 1])


def test_layout_is_the_device_s_own() -> None:
    """Head-major on the CPU for views per head; slot-major elsewhere for paged kernels."""
    here = PagedCache(LAYERS, 6, 4, dtype=torch.float32, device=CPU)
    there = PagedCache(LAYERS, 6, 4, dtype=torch.float32, device=torch.device("meta"))
    assert here.keys[1].shape == there.keys[1].shape == (24, 3, 4)
    assert here.keys[1].transpose(0, 1).is_contiguous()
    assert there.keys[1].is_contiguous()
    assert all(part.is_contiguous() for part in there.blocks(1))


@pytest.mark.parametrize(
    ("table", "first", "last", "expected"),
    [
        ([2, 3, 4], 0, 12, [(8, 20)]),
        ([2, 3, 4], 3, 9, [(11, 17)]),
        ([5, 1, 2], 0, 10, [(20, 24), (4, 10)]),
        ([3, 2, 1], 2, 9, [(14, 16), (8, 12), (4, 5)]),
        ([0], 0, 1, [(0, 1)]),
        ([4, 0], 4, 8, [(0, 4)]),
        ([4, 0], 3, 3, []),
    ],
)
def test_slot_runs(
    table: list[int], first: int, last: int, expected: list[tuple[int, int]]
) -> None:
    """Positions map to the fewest runs of slots."""
    assert expected == slot_runs(table, 4, first, last)
