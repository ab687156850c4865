"""Attention of many sequences with one row each, whose blocks stand side by side: one call a layer.

Sequence i of a step holds block i alone, which is as long as a sequence may become, so the cache is
a slab [sequences, positions] and one masked product serves all. Steps of another form (prompts) go
to the paged attention. Knows no weights and no text.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from paceline.engine.attention import causal_mask
from paceline.engine.lean.attention import CpuAttention
from paceline.engine.lean.cache import StackedCache
from paceline.engine.lean.decoder import Attention, HeadShape
from paceline.engine.step import Step


def attend_side_by_side(
    step: Step, cache: StackedCache, shape: HeadShape, windows: Sequence[int | None]
) -> Attention:
    """What the rows of a step mean; see `kernels.MakeAttention`."""
    is_slab = all(
        len(span.token_ids) == 1 and span.block_table == (index,)
        for index, span in enumerate(step.spans)
    )
    return (SlabAttention if is_slab else CpuAttention)(step, cache, shape, windows)


class SlabAttention:
    """One row of each of the first B blocks; implements `decoder.Attention`."""

    def __init__(
        self, step: Step, cache: StackedCache, shape: HeadShape, windows: Sequence[int | None]
    ) -> None:
        self._cache = cache
        self._shape = shape
        self._windows = windows
        count, size = len(step.spans), step.block_size
        positions = torch.tensor([span.start for span in step.spans])
        self._slots = torch.arange(count) * size + positions
        length = int(positions.max()) + 1
        # [Hkv, B, N, D] of each layer's keys and values in turn, then sequences first.
        self._views = [
            run[0].view(shape.num_kv_heads, count, size, shape.dim)[:, :, :length].transpose(0, 1)
            for run in cache.view_run(0, count * size)
        ]
        # [B, 1, 1, N]: each row sees its own sequence up to itself.
        self._masks = {
            window: causal_mask(torch.arange(length), positions[:, None], window, cache.dtype)[
                :, None, None
            ]
            for window in set(windows)
        }

    def attend(self, layer: int, heads: torch.Tensor) -> torch.Tensor:
        """Stores the rows' keys and values, then attends once for all; see `Attention`."""
        num_heads, num_kv_heads = self._shape.num_heads, self._shape.num_kv_heads
        self._cache.write(layer, self._slots, heads[:, num_heads:])
        # Queries that share a key head are rows of one product: [B, Hkv, groups, D].
        queries = heads[:, :num_heads].reshape(len(heads), -1, num_kv_heads, self._shape.dim)
        output = F.scaled_dot_product_attention(
            queries.transpose(1, 2),
            self._views[2 * layer],
            self._views[2 * layer + 1],
            attn_mask=self._masks[self._windows[layer]],
        )
        return output.transpose(1, 2).reshape(len(heads), -1)
