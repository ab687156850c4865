"""Keys and values of layers that are all alike, in one tensor that is cut into slots.

One tensor, so that what a step needs of all layers is cut out once instead of once per layer. The
cache owns the memory and nothing else; which slot belongs to whom is the block pool's business.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from paceline.engine.lean.decoder import HeadShape
from paceline.engine.native.rows import store_heads

_ALIGNMENT = 64
"""Bytes of a cache line and of the widest vector."""


class StackedCache:
    """Keys and values [L, 2, 1, Hkv, num_slots, D]; a run of slots is a dense matrix per head."""

    def __init__(
        self,
        num_layers: int,
        shape: HeadShape,
        num_blocks: int,
        block_size: int,
        *,
        dtype: torch.dtype,
    ) -> None:
        self._block_size = block_size
        size = (num_layers, 2, 1, shape.num_kv_heads, num_blocks * block_size, shape.dim)
        # What a step reads was written before, by it or by an earlier one.
        self._stack = _allocate_zeros(size, dtype)
        self._by_layer = [(keys[0], values[0]) for keys, values in self._stack.unbind(0)]

    @property
    def dtype(self) -> torch.dtype:
        """Element type."""
        return self._stack.dtype

    @property
    def num_slots(self) -> int:
        """Slots in all."""
        return self._stack.shape[-2]

    def write(self, layer: int, slots: torch.Tensor, rows: torch.Tensor) -> None:
        """Stores rows [T, 2 * Hkv, D], keys before values, in slots [T] of a layer."""
        keys, values = self._by_layer[layer]
        if rows.dtype == keys.dtype == torch.float32:
            store_heads(rows, keys, values, slots)
            return
        new_keys, new_values = rows.transpose(0, 1).chunk(2)
        keys.index_copy_(1, slots, new_keys)
        values.index_copy_(1, slots, new_values)

    def view_layer(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [Hkv, num_slots, D] of a layer."""
        return self._by_layer[layer]

    def view_run(self, first: int, last: int) -> Sequence[torch.Tensor]:
        """Views [1, Hkv, N, D] of slots first .. last - 1: key and value of each layer in turn."""
        return self._stack[..., first:last, :].flatten(0, 1).unbind(0)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies whole blocks, (source, destination), in all layers."""
        size = self._block_size
        for source, destination in pairs:
            block = self._stack[..., source * size : (source + 1) * size, :]
            self._stack[..., destination * size : (destination + 1) * size, :] = block


def _allocate_zeros(size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Zeros that take no memory until they are written; those of torch are written at once."""
    num_bytes = math.prod(size) * dtype.itemsize
    memory = np.zeros(num_bytes + _ALIGNMENT, dtype=np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return torch.from_numpy(memory[start : start + num_bytes]).view(dtype).view(size)
