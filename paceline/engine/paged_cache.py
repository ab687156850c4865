"""Keys and values of every layer, in one tensor per layer that is cut into slots.

The cache owns the memory and nothing else: which slot belongs to whom is the block pool's and the
sequences' business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one attention layer stores per token."""

    num_kv_heads: int
    key_dim: int
    value_dim: int


class PagedCache:
    """Keys and values by layer, each [num_slots, num_kv_heads, head_dim].

    On the CPU the memory behind that shape is head-major, [num_kv_heads, num_slots, head_dim], so
    that a run of slots is one dense matrix per head and attention reads it as a view; on CUDA it is
    slot-major, which is the layout of paged kernels.
    """

    def __init__(
        self,
        layers: Sequence[LayerShape],
        num_blocks: int,
        block_size: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.block_size = block_size
        self.num_slots = num_blocks * block_size

        def storage(num_heads: int, dim: int) -> torch.Tensor:
            if device.type == "cpu":
                shape = (num_heads, self.num_slots, dim)
                # Not zeroed: no slot is read before it is written, and untouched memory is free.
                return torch.empty(shape, dtype=dtype, device=device).transpose(0, 1)
            # Paged kernels load whole blocks, and a NaN times a weight of 0 is a NaN.
            return torch.zeros((self.num_slots, num_heads, dim), dtype=dtype, device=device)

        self.keys = [storage(layer.num_kv_heads, layer.key_dim) for layer in layers]
        self.values = [storage(layer.num_kv_heads, layer.value_dim) for layer in layers]

    def write(
        self, layer: int, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Stores key and value [num_kv_heads, T, dim] in slots [T] of a layer."""
        # Head-major on both sides: the transposes are views and nothing is laid out anew.
        self.keys[layer].transpose(0, 1).index_copy_(1, slots, key)
        self.values[layer].transpose(0, 1).index_copy_(1, slots, value)

    def read(
        self, layer: int, runs: Sequence[tuple[int, int]]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Key and value [num_kv_heads, N, dim] of runs of slots (first, one past last).

        One run is a view; several are copied together.
        """
        keys, values = self.keys[layer].transpose(0, 1), self.values[layer].transpose(0, 1)
        if len(runs) == 1:
            first, last = runs[0]
            return keys[:, first:last], values[:, first:last]
        return (
            torch.cat([keys[:, first:last] for first, last in runs], dim=1),
            torch.cat([values[:, first:last] for first, last in runs], dim=1),
        )

    def blocks(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Key and value [num_blocks, block_size, num_kv_heads, dim], as paged kernels read them."""
        key, value = self.keys[layer], self.values[layer]
        return (
            key.view(-1, self.block_size, *key.shape[1:]),
            value.view(-1, self.block_size, *value.shape[1:]),
        )

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies whole blocks, (source, destination)."""
        size = self.block_size
        for tensor in (*self.keys, *self.values):
            for source, destination in pairs:
                tensor[destination * size : (destination + 1) * size] = tensor[
                    source * size : (source + 1) * size
                ]


def slot_runs(
    block_table: Sequence[int], block_size: int, first: int, last: int
) -> list[tuple[int, int]]:
    """The slots of positions first .. last - 1 as the fewest runs (first, one past last)."""
    runs: list[tuple[int, int]] = []
    position = first
    while position < last:
        index, offset = divmod(position, block_size)
        start = block_table[index] * block_size + offset
        count = min(block_size - offset, last - position)
        if runs and runs[-1][1] == start:
            runs[-1] = (runs[-1][0], start + count)
        else:
            runs.append((start, start + count))
        position += count
    return runs
