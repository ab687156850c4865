"""Attention of the lean decoder on the CPU: one product per sequence and layer, or one loop.

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
from paceline.engine.native import attend
from paceline.engine.native.attend import SingleRows
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
        # Spans of so many rows are left to the loop; longer ones are faster as products.
        is_native = cache.dtype == torch.float32 and attend.serves(shape.dim)
        self._most_rows = 1 if is_native else 0
        self._singles = {w: find_seen(step, w, self._most_rows) for w in set(windows)}
        self._parts = {window: self._cut(step, window) for window in set(windows)}

    def attend(self, layer: int, heads: torch.Tensor) -> torch.Tensor:
        """Stores keys and values, then attends: single rows at once, others one by one."""
        num_heads, num_kv_heads = self._shape.num_heads, self._shape.num_kv_heads
        self._cache.write(layer, self._slots, heads[:, num_heads:])
        output = heads.new_empty((len(heads), num_heads, self._shape.dim))
        window = self._windows[layer]
        if singles := self._singles[window]:
            attend.attend(heads, *self._cache.view_layer(layer), singles, output)
        if parts := self._parts[window]:
            # By place in the group first: the rows of a key head are [T * groups, D] as one view.
            queries = heads[:, :num_heads].reshape(-1, num_kv_heads, self._shape.dim)
            for part in parts:
                rows = output[part.first : part.last].view(-1, num_kv_heads, self._shape.dim)
                rows.copy_(self._attend_part(part, layer, queries.transpose(0, 1)))
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
            if num_rows <= self._most_rows:
                row += num_rows
                continue
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


def find_seen(step: Step, window: int | None, most_rows: int) -> SingleRows | None:
    """What each row sees, of spans with at most so many rows; None where there are none."""
    rows: list[tuple[int, int, int]] = []
    runs: list[tuple[int, int]] = []
    num_keys = longest = row = 0
    for span in step.spans:
        num_rows = len(span.token_ids)
        for index in range(num_rows if num_rows <= most_rows else 0):
            last_key = span.start + index + 1
            first_key = 0 if window is None else max(0, last_key - window)
            found = slot_runs(span.block_table, step.block_size, first_key, last_key)
            rows.append((row + index, len(runs), len(runs) + len(found)))
            runs += found
            num_keys += last_key - first_key
            longest = max(longest, last_key - first_key)
        row += num_rows
    if not rows:
        return None
    return SingleRows(torch.tensor(rows), torch.tensor(runs), num_keys, longest)
