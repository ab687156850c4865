"""Attention whose result for a row does not depend on the rows beside it, bit for bit.

The kernel multiplies tiles of queries with 512 keys at a time. A product sums in an order that
depends on its shape, so only shapes that sum alike occur: no tile has few queries, and the number
of keys is rounded up, the surplus masked. Knows no weights and no session.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from paceline.engine.attention import causal_mask, find_slots
from paceline.engine.lean.cache import StackedCache
from paceline.engine.lean.decoder import HeadShape
from paceline.engine.paged_cache import slot_runs
from paceline.engine.step import Span, Step

_STRETCH = 512
"""Keys that the kernel multiplies at a time; the last stretch may be shorter."""
_SHORT_STRETCH = 256
"""Up to here a last stretch may be short: longer ones are summed in two parts of any size."""
_KEY_UNIT = 64
_TILE_ROWS = 64
"""Rows that share their keys: more waste fewer products, but see more masked keys."""
_SMALL_HEAD = 128


@dataclass(frozen=True, slots=True)
class _Tile:
    """Some rows of one sequence, under one window."""

    first: int
    """Their first query among [T * groups]."""
    count: int
    """How many queries."""
    queries: torch.Tensor | None
    """Int64: which queries are multiplied, the last one repeated; None where they fit as is."""
    runs: Sequence[Sequence[torch.Tensor]]
    """The slots that any of its rows sees; see `StackedCache.view_run`."""
    padding: tuple[torch.Tensor, ...]
    """Zeros [1, Hkv, N, D] behind the runs, where the slots behind them are out of reach."""
    mask: torch.Tensor
    """Additive, [queries, N]."""

    def read(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Key and value [1, Hkv, N, D] of a layer: of one run a view, else a copy."""
        if len(self.runs) == 1 and not self.padding:
            return self.runs[0][2 * layer], self.runs[0][2 * layer + 1]
        return (
            torch.cat([*(run[2 * layer] for run in self.runs), *self.padding], dim=2),
            torch.cat([*(run[2 * layer + 1] for run in self.runs), *self.padding], dim=2),
        )


class ExactAttention:
    """The rows of one step; implements `decoder.Attention`."""

    def __init__(
        self, step: Step, cache: StackedCache, shape: HeadShape, windows: Sequence[int | None]
    ) -> None:
        self._cache = cache
        self._shape = shape
        self._groups = shape.num_heads // shape.num_kv_heads
        self._windows = windows
        self._slots = find_slots(step, torch.device("cpu"))
        self._tiles = {window: list(self._cut(step, window)) for window in set(windows)}

    def attend(self, layer: int, heads: torch.Tensor) -> torch.Tensor:
        """Stores the rows' keys and values, then attends tile by tile."""
        num_heads, num_kv_heads = self._shape.num_heads, self._shape.num_kv_heads
        self._cache.write(layer, self._slots, heads[:, num_heads:])
        queries = heads[:, :num_heads].reshape(-1, num_kv_heads, self._shape.dim).transpose(0, 1)
        outputs = [
            self._attend_tile(tile, layer, queries) for tile in self._tiles[self._windows[layer]]
        ]
        output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return output.reshape(len(heads), -1)

    def _attend_tile(self, tile: _Tile, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """One tile, queries [Hkv, T * groups, D] of all; gives its [count, Hkv, D]."""
        if tile.queries is None:
            query = queries[:, tile.first : tile.first + tile.count][None]
        else:
            query = queries.index_select(1, tile.queries)[None]
        key, value = tile.read(layer)
        if self._shape.num_kv_heads == 1:
            # A product that is the only one is cut among threads, in parts of any size.
            query, key, value = (x.expand(2, -1, -1, -1) for x in (query, key, value))
        output = F.scaled_dot_product_attention(query, key, value, attn_mask=tile.mask)
        return output[0].transpose(0, 1)[: tile.count]

    def _cut(self, step: Step, window: int | None) -> Iterator[_Tile]:
        row = 0
        for span in step.spans:
            for start in range(span.start, span.end, _TILE_ROWS):
                positions = range(start, min(start + _TILE_ROWS, span.end))
                yield self._make_tile(step, span, row, positions, window)
                row += len(positions)

    def _make_tile(
        self, step: Step, span: Span, row: int, positions: range, window: int | None
    ) -> _Tile:
        first_visible = 0 if window is None else max(0, positions.start + 1 - window)
        first_key = first_visible - first_visible % _STRETCH
        num_keys = _round_up_keys(positions.stop - first_key)
        first, count = row * self._groups, len(positions) * self._groups
        unit = 8 if self._shape.dim <= _SMALL_HEAD else 16
        places = torch.arange(-(-count // unit) * unit).clamp_(max=count - 1)
        runs = slot_runs(span.block_table, step.block_size, first_key, positions.stop)
        padding: tuple[torch.Tensor, ...] = ()
        if len(runs) == 1 and runs[0][0] + num_keys <= self._cache.num_slots:
            runs = [(runs[0][0], runs[0][0] + num_keys)]
        elif num_missing := num_keys - (positions.stop - first_key):
            size = (1, self._shape.num_kv_heads, num_missing, self._shape.dim)
            padding = (torch.zeros(size, dtype=self._cache.dtype),)
        keys = torch.arange(first_key, first_key + num_keys)
        rows = (positions.start + places // self._groups)[:, None]
        return _Tile(
            first,
            count,
            None if len(places) == count else first + places,
            [self._cache.view_run(*run) for run in runs],
            padding,
            causal_mask(keys, rows, window, self._cache.dtype),
        )


def _round_up_keys(count: int) -> int:
    """The least number of keys, `count` or more, that sums as any larger one does."""
    full, rest = divmod(count, _STRETCH)
    if rest > _SHORT_STRETCH:
        return (full + 1) * _STRETCH
    return full * _STRETCH + -(-rest // _KEY_UNIT) * _KEY_UNIT
