"""Attention of the lean decoder on the CPU: one product per sequence and layer.

Whatever is the same for all layers is made once per step: views of the keys and values, masks,
slots. Knows no weights and no session.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from paceline.engine.attention import causal_mask, find_slots
from paceline.engine.lean.cache import StackedCache
from paceline.engine.lean.decoder import HeadShape
from paceline.engine.paged_cache import slot_runs
from paceline.engine.step import Step

# Up to this many rows a sequence's query heads that share a key head are rows of one product;
# beyond it the masks would outgrow the gain.
_MAX_GROUPED_ROWS = 16


@dataclass(frozen=True, slots=True)
class _Part:
    """One sequence's share of a step, under one window."""

    first: int
    """Its first row in the step."""
    last: int
    """One past its last row."""
    runs: Sequence[Sequence[torch.Tensor]]
    """The slots that any of its rows sees; see `StackedCache.view_run`."""
    mask: torch.Tensor | None
    """Additive, [rows, N]; None where every row sees all keys, or `is_causal`."""
    is_causal: bool
    """The rows are the sequence from its beginning: row i sees keys 0 .. i."""

    def read(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Key and value [1, Hkv, N, D] of a layer: of one run a view, of several a copy."""
        if len(self.runs) == 1:
            return self.runs[0][2 * layer], self.runs[0][2 * layer + 1]
        return (
            torch.cat([run[2 * layer] for run in self.runs], dim=2),
            torch.cat([run[2 * layer + 1] for run in self.runs], dim=2),
        )


class CpuAttention:
    """The rows of one step; implements `decoder.Attention`."""

    def __init__(
        self, step: Step, cache: StackedCache, shape: HeadShape, windows: Sequence[int | None]
    ) -> None:
        self._cache = cache
        self._shape = shape
        self._windows = windows
        self._slots = find_slots(step, torch.device("cpu"))
        self._parts = {window: self._cut(step, window) for window in set(windows)}

    def attend(self, layer: int, heads: torch.Tensor) -> torch.Tensor:
        """Stores the rows' keys and values, then attends sequence by sequence."""
        num_heads, num_kv_heads = self._shape.num_heads, self._shape.num_kv_heads
        self._cache.write(layer, self._slots, heads[:, num_heads:])
        # By place in the group first, so the rows of a key head are [T * groups, D] as one view.
        queries = heads[:, :num_heads].reshape(-1, num_kv_heads, self._shape.dim).transpose(0, 1)
        outputs = [
            self._attend_part(part, layer, queries) for part in self._parts[self._windows[layer]]
        ]
        output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return output.view(len(heads), -1)

    def _attend_part(self, part: _Part, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """One sequence, queries [Hkv, T * groups, D] of all; gives its [rows * groups, Hkv, D]."""
        groups = self._shape.num_heads // self._shape.num_kv_heads
        num_rows = part.last - part.first
        query = queries[:, part.first * groups : part.last * groups][None]
        key, value = part.read(layer)
        if num_rows <= _MAX_GROUPED_ROWS:
            output = F.scaled_dot_product_attention(query, key, value, attn_mask=part.mask)
            return output[0].transpose(0, 1)
        # [groups, Hkv, rows, D]: each place in the group is a batch entry over the same keys.
        query = query.view(-1, num_rows, groups, self._shape.dim).permute(2, 0, 1, 3)
        output = F.scaled_dot_product_attention(
            query,
            key.expand(groups, -1, -1, -1),
            value.expand(groups, -1, -1, -1),
            attn_mask=part.mask,
            is_causal=part.is_causal,
        )
        return output.permute(2, 0, 1, 3).flatten(0, 1)

    def _cut(self, step: Step, window: int | None) -> list[_Part]:
        parts, row = [], 0
        for span in step.spans:
            num_rows = len(span.token_ids)
            first_key = 0 if window is None else max(0, span.start + 1 - window)
            runs = slot_runs(span.block_table, step.block_size, first_key, span.end)
            is_grouped = num_rows <= _MAX_GROUPED_ROWS
            is_causal = not is_grouped and span.start == 0 and window is None
            mask = None
            if num_rows > 1 and not is_causal:
                keys = torch.arange(first_key, span.end)
                rows = torch.arange(span.start, span.end)[:, None]
                mask = causal_mask(keys, rows, window, self._cache.dtype)
            if mask is not None and is_grouped:
                groups = self._shape.num_heads // self._shape.num_kv_heads
                mask = mask.repeat_interleave(groups, dim=0)
            views = [self._cache.view_run(first, last) for first, last in runs]
            parts.append(_Part(row, row + num_rows, views, mask, is_causal))
            row += num_rows
        return parts
