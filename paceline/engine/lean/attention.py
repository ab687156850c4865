"""Attention of the lean decoder on the CPU: own loops in float32, stock products elsewhere.

Whatever is the same for all layers is made once per step: what each sequence's rows see, slots,
masks. Knows no weights and no session.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from paceline.engine.attention import causal_mask, find_slots
from paceline.engine.lean.cache import StackedCache
from paceline.engine.lean.decoder import Attention, HeadShape
from paceline.engine.native import attend
from paceline.engine.native.attend import Seen
from paceline.engine.paged_cache import slot_runs
from paceline.engine.step import Step


def read_rows(
    step: Step, cache: StackedCache, shape: HeadShape, windows: Sequence[int | None]
) -> Attention:
    """What the rows of a step mean, given the window of each layer."""
    is_native = cache.dtype == torch.float32 and attend.serves(shape.dim)
    return (NativeAttention if is_native else StockAttention)(step, cache, shape, windows)


class NativeAttention:
    """The rows of one step, in float32; a row's bits depend on its own sequence alone."""

    def __init__(
        self, step: Step, cache: StackedCache, shape: HeadShape, windows: Sequence[int | None]
    ) -> None:
        self._cache = cache
        self._num_heads = shape.num_heads
        self._windows = windows
        self._slots = find_slots(step, torch.device("cpu"))
        self._seen = {window: find_seen(step, window) for window in set(windows)}

    def attend(self, layer: int, heads: torch.Tensor) -> torch.Tensor:
        """Stores keys and values, then attends; see `Attention`."""
        self._cache.write(layer, self._slots, heads[:, self._num_heads :])
        output = heads.new_empty((len(heads), self._num_heads, heads.shape[2]))
        seen = self._seen[self._windows[layer]]
        attend.attend(heads, *self._cache.view_layer(layer), seen, output)
        return output.view(len(heads), -1)


def find_seen(step: Step, window: int | None) -> Seen:
    """What the rows of each sequence see."""
    spans: list[tuple[int, int, int, int, int]] = []
    runs: list[tuple[int, int]] = []
    row = num_keys = 0
    for span in step.spans:
        found = slot_runs(span.block_table, step.block_size, 0, span.end)
        num_rows = len(span.token_ids)
        spans.append((row, num_rows, span.start, len(runs), len(runs) + len(found)))
        runs += found
        row += num_rows
        num_keys += num_rows * min(span.end, window or span.end)
    longest = max(span.end for span in step.spans)
    return Seen(torch.tensor(spans), torch.tensor(runs), window or 0, num_keys, longest)


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
    """Additive, [rows, N]; None where every row sees all keys."""

    def read(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Key and value [1, Hkv, N, D] of a layer: of one run a view, of several a copy."""
        if len(self.runs) == 1:
            return self.runs[0][2 * layer], self.runs[0][2 * layer + 1]
        return (
            torch.cat([run[2 * layer] for run in self.runs], dim=2),
            torch.cat([run[2 * layer + 1] for run in self.runs], dim=2),
        )


class StockAttention:
    """The rows of one step, in half precision or heads of odd sizes, sequence by sequence."""

    def __init__(
        self, step: Step, cache: StackedCache, shape: HeadShape, windows: Sequence[int | None]
    ) -> None:
        self._cache = cache
        self._shape = shape
        self._windows = windows
        self._slots = find_slots(step, torch.device("cpu"))
        self._parts = {window: self._cut(step, window) for window in set(windows)}

    def attend(self, layer: int, heads: torch.Tensor) -> torch.Tensor:
        """Stores keys and values, then attends; see `Attention`."""
        num_heads, num_kv_heads = self._shape.num_heads, self._shape.num_kv_heads
        self._cache.write(layer, self._slots, heads[:, num_heads:])
        # [groups, Hkv, T, D]: each place in the group is a batch entry over the same keys.
        queries = heads[:, :num_heads].view(len(heads), -1, num_kv_heads, self._shape.dim)
        queries = queries.permute(1, 2, 0, 3)
        output = heads.new_empty((len(heads), num_heads, self._shape.dim))
        for part in self._parts[self._windows[layer]]:
            query = queries[:, :, part.first : part.last]
            key, value = (cached.expand(len(query), -1, -1, -1) for cached in part.read(layer))
            found = F.scaled_dot_product_attention(query, key, value, attn_mask=part.mask)
            output[part.first : part.last] = found.permute(2, 0, 1, 3).flatten(1, 2)
        return output.view(len(heads), -1)

    def _cut(self, step: Step, window: int | None) -> list[_Part]:
        parts, row = [], 0
        for span in step.spans:
            num_rows = len(span.token_ids)
            first_key = 0 if window is None else max(0, span.start + 1 - window)
            runs = slot_runs(span.block_table, step.block_size, first_key, span.end)
            mask = None
            if num_rows > 1:
                keys = torch.arange(first_key, span.end)
                rows = torch.arange(span.start, span.end)[:, None]
                mask = causal_mask(keys, rows, window, self._cache.dtype)
            views = [self._cache.view_run(first, last) for first, last in runs]
            parts.append(_Part(row, row + num_rows, views, mask))
            row += num_rows
        return parts
