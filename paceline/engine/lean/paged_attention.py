"""Attention of the lean decoder on CUDA: one call of torch's paged kernel per layer.

The kernel's window and mask are given in one form for any number of rows, and it may not split the
keys of a sequence among blocks of threads: so a row's sum does not depend on the rows beside it.
Knows no weights and no session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from paceline.engine.lean.decoder import HeadShape
from paceline.engine.lean.packed import PackedRows
from paceline.engine.lean.slot_cache import SlotCache


@dataclass(frozen=True, slots=True)
class PagedCall:
    """One layer's call."""

    query: torch.Tensor
    """[R, Hq, D], by key head and then by place in the group; each row dense, wherever it lies."""
    key: torch.Tensor
    """[num_blocks, block_size, Hkv, D]; each head of a token dense, wherever it lies."""
    value: torch.Tensor
    output: torch.Tensor
    """[R, Hq, D], to be written."""
    rows: PackedRows
    window: int | None
    """Number of positions a row sees, itself included; None sees all before it."""


PagedKernel = Callable[[PagedCall], None]


def attend_flash(call: PagedCall) -> None:
    """Attends with torch's kernel, which takes 16-bit numbers and blocks of 256 slots.

    Rows of a sequence are its last ones. The kernel only wants to know bounds on rows and keys, so
    it is told those of the step's shape and of the cache: nothing here depends on values.
    """
    from torch.nn.attention.varlen import varlen_attn_out  # kept off the CPU's path

    rows = call.rows
    varlen_attn_out(
        call.output,
        call.query,
        call.key,
        call.value,
        rows.starts,
        rows.starts,  # The kernel demands starts of keys, too, and reads tables instead.
        len(call.query),
        call.key.shape[0] * call.key.shape[1],
        window_size=(-1 if call.window is None else call.window - 1, 0),
        enable_gqa=call.query.shape[1] != call.key.shape[2],
        seqused_k=rows.lengths,
        block_table=rows.tables,
        num_splits=1,
    )


class PagedAttention:
    """The rows of one step; implements `decoder.Attention`, query heads in the model's order."""

    def __init__(
        self,
        rows: PackedRows,
        cache: SlotCache,
        shape: HeadShape,
        windows: Sequence[int | None],
        kernel: PagedKernel,
    ) -> None:
        self._rows = rows
        self._cache = cache
        self._shape = shape
        self._windows = windows
        self._kernel = kernel

    def attend(self, layer: int, heads: torch.Tensor) -> torch.Tensor:
        """Stores the rows' keys and values, then attends to the cache; see `Attention`."""
        num_heads, dim = self._shape.num_heads, self._shape.dim
        self._cache.write(layer, self._rows.slots, heads[:, num_heads:])
        key, value = self._cache.view_layer(layer)
        output = heads.new_empty((len(heads), num_heads, dim))
        query = heads[:, :num_heads]
        self._kernel(PagedCall(query, key, value, output, self._rows, self._windows[layer]))
        return output.view(len(heads), -1)
