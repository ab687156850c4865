"""Keys and values of all layers, slot by slot: the layout that paged kernels read.

One block more than was asked for belongs to nobody: what fills a step up is written there. The
cache owns the memory and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paceline.engine.lean.decoder import HeadShape


class SlotCache:
    """Keys and values [L, num_slots, 2 * Hkv, D], those of a token side by side."""

    def __init__(
        self,
        num_layers: int,
        shape: HeadShape,
        num_blocks: int,
        block_size: int,
        like: torch.Tensor,
    ) -> None:
        """Allocates; type and device are those of `like`."""
        self.num_layers = num_layers
        self.spare_block = num_blocks
        self.block_size = block_size
        self.num_slots = (num_blocks + 1) * block_size
        # Kernels load whole tiles, and a NaN times a weight of 0 is a NaN.
        self._stack = like.new_zeros(
            (num_layers, self.num_slots, 2 * shape.num_kv_heads, shape.dim)
        )

    def write(self, layer: int, slots: torch.Tensor, rows: torch.Tensor) -> None:
        """Stores rows [T, 2 * Hkv, D], keys before values, in slots int64 [T] of a layer."""
        self._stack[layer].index_copy_(0, slots, rows)

    def view_layer(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [num_blocks + 1, block_size, Hkv, D] of a layer."""
        slots = self._stack[layer]
        keys, values = slots.view(-1, self.block_size, *slots.shape[1:]).chunk(2, dim=2)
        return keys, values

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies whole blocks, (source, destination), in all layers."""
        for source, destination in pairs:
            self._block(destination).copy_(self._block(source))

    def _block(self, index: int) -> torch.Tensor:
        return self._stack[:, index * self.block_size : (index + 1) * self.block_size]
