"""The lean attention against a plain one, row by row, for every way a step can be cut."""

from __future__ import annotations

import pytest
import torch

from paceline.engine.lean.attention import NativeAttention, StockAttention, read_rows
from paceline.engine.lean.cache import StackedCache
from paceline.engine.lean.decoder import HeadShape
from paceline.engine.step import Span, Step

Kind = type[NativeAttention] | type[StockAttention]

SIZE = 4
SHAPES = [HeadShape(6, 2, 16), HeadShape(4, 4, 16), HeadShape(3, 1, 16)]
CONTIGUOUS = (tuple(range(16)), tuple(range(16, 32)), tuple(range(32, 48)))
SCATTERED = tuple(tuple(range(first, 48, 3)) for first in range(3))


class Sequences:
    """Sequences of random rows, fed to one cache and remembered."""

    def __init__(
        self,
        shape: HeadShape,
        tables: tuple[tuple[int, ...], ...],
        window: int | None,
        kind: Kind,
    ) -> None:
        self._kind = kind
        self._shape = shape
        self._tables = tables
        self._window = window
        self._cache = StackedCache(2, shape, 48, SIZE, dtype=torch.float32)
        self._generator = torch.Generator().manual_seed(0)
        width = shape.num_heads + 2 * shape.num_kv_heads
        self.rows = [torch.zeros(0, width, shape.dim) for _ in tables]

    def feed(self, *counts: tuple[int, int]) -> None:
        """Runs (sequence, rows) in one step and compares each row with the plain attention."""
        spans, new = [], []
        for index, count in counts:
            start = len(self.rows[index])
            spans.append(Span((0,) * count, start, self._tables[index], 0, 1))
            shape = (count, *self.rows[index].shape[1:])
            new.append(torch.randn(shape, generator=self._generator))
            self.rows[index] = torch.cat([self.rows[index], new[-1]])
        # The second layer is the one that is looked at; the first sees all, and other numbers.
        attention = self._kind(
            Step(tuple(spans), SIZE), self._cache, self._shape, (None, self._window)
        )
        attention.attend(0, torch.cat(new) + 1.0)
        got = attention.attend(1, torch.cat(new))
        expected = [
            self._plain(self.rows[index], position)
            for (index, _), span in zip(counts, spans, strict=True)
            for position in range(span.start, span.end)
        ]
        torch.testing.assert_close(torch.stack(expected), got, atol=1e-5, rtol=1e-4)

    def _plain(self, rows: torch.Tensor, position: int) -> torch.Tensor:
        """One row's output [Hq * D], head by head."""
        num_heads, num_kv_heads = self._shape.num_heads, self._shape.num_kv_heads
        first = 0 if self._window is None else max(0, position + 1 - self._window)
        outputs = []
        for head in range(num_heads):
            key = rows[first : position + 1, num_heads + head % num_kv_heads]
            value = rows[first : position + 1, num_heads + num_kv_heads + head % num_kv_heads]
            scores = key @ rows[position, head] / self._shape.dim**0.5
            outputs.append(scores.softmax(0) @ value)
        return torch.cat(outputs)


@pytest.mark.parametrize("kind", [NativeAttention, StockAttention])
@pytest.mark.parametrize("window", [None, 5, 40])
@pytest.mark.parametrize("tables", [CONTIGUOUS, SCATTERED], ids=["contiguous", "scattered"])
@pytest.mark.parametrize("shape", SHAPES, ids=["grouped", "equal", "one key head"])
def test_every_row_sees_its_own_past(
    shape: HeadShape, tables: tuple[tuple[int, ...], ...], window: int | None, kind: Kind
) -> None:
    """B17, B51: prompts, chunks, decodes and proposals, alone and in company."""
    sequences = Sequences(shape, tables, window, kind)
    sequences.feed((0, 1))
    sequences.feed((0, 1))
    sequences.feed((1, 16))
    sequences.feed((2, 17))
    sequences.feed((0, 5), (1, 1), (2, 20))
    sequences.feed((0, 1), (1, 1), (2, 1))
    sequences.feed((2, 5), (0, 5), (1, 5))


LENGTH = 620
NUM_BLOCKS = -(-LENGTH // SIZE)
ALL_SHAPES = {
    "grouped": HeadShape(6, 2, 16),
    "no groups": HeadShape(4, 4, 64),
    "one key head": HeadShape(3, 1, 16),
    "many in a group": HeadShape(14, 2, 64),
    "wide heads": HeadShape(4, 2, 128),
    "odd heads": HeadShape(4, 2, 80),
    "widest heads": HeadShape(2, 2, 256),
}
BACKWARDS = tuple(reversed(range(NUM_BLOCKS)))
FORWARDS = tuple(range(NUM_BLOCKS))
APART = tuple(range(0, 2 * NUM_BLOCKS, 2))
CUTS = ((1,) * 17 + (5, 9, 16, 200, 137, 1, 80, 5, 63, 87), (300, 1, 1, 9, 200, 5, 104))


class Rows:
    """Random rows of one sequence, run in steps over a cache of their own."""

    def __init__(self, shape: HeadShape, window: int | None) -> None:
        self._shape = shape
        self._window = window
        size = (LENGTH, shape.num_heads + 2 * shape.num_kv_heads, shape.dim)
        self.heads = torch.randn(size, generator=torch.Generator().manual_seed(0))

    def run(
        self, counts: tuple[int, ...], table: tuple[int, ...], kind: Kind = NativeAttention
    ) -> torch.Tensor:
        """Outputs [T, Hq * D] of the first rows, so many of them in each step."""
        cache = StackedCache(1, self._shape, 2 * NUM_BLOCKS, SIZE, dtype=torch.float32)
        outputs, start = [], 0
        for count in counts:
            step = Step((Span((0,) * count, start, table, 0, 1),), SIZE)
            attention = kind(step, cache, self._shape, (self._window,))
            outputs.append(attention.attend(0, self.heads[start : start + count]))
            start += count
        return torch.cat(outputs)


@pytest.fixture(params=list(ALL_SHAPES.values()), ids=list(ALL_SHAPES))
def shape(request: pytest.FixtureRequest) -> HeadShape:
    """Each shape in turn."""
    found: HeadShape = request.param
    return found


@pytest.mark.parametrize("window", [None, 7, 550])
def test_cuts_change_no_bit(shape: HeadShape, window: int | None) -> None:
    """B37: one row, a proposal, a chunk; blocks in a run, scattered, at the end of the cache."""
    rows = Rows(shape, window)
    at_the_end = tuple(range(NUM_BLOCKS, 2 * NUM_BLOCKS))
    expected = rows.run((512, LENGTH - 512), FORWARDS)
    for counts in CUTS:
        for table in (FORWARDS, BACKWARDS, APART, at_the_end):
            assert torch.equal(expected[: sum(counts)], rows.run(counts, table))


@pytest.mark.parametrize("window", [None, 7, 550])
def test_long_sequences(shape: HeadShape, window: int | None) -> None:
    """B17, B51: each row sees its own past and nothing else, as stock products have it."""
    rows = Rows(shape, window)
    counts = (130, 1, 1, 5, 400, 17)
    expected = rows.run(counts, BACKWARDS, StockAttention)
    torch.testing.assert_close(expected, rows.run(counts, BACKWARDS), atol=1e-5, rtol=1e-4)


def test_company_changes_no_bit(shape: HeadShape) -> None:
    """B37: among other sequences, and beside their keys, a sequence's rows stay the same."""
    rows = Rows(shape, None)
    expected = rows.run((40, 5), FORWARDS)[40:]
    cache = StackedCache(1, shape, 2 * NUM_BLOCKS, SIZE, dtype=torch.float32)
    mine, before, behind = FORWARDS[20:40], FORWARDS[:20], FORWARDS[40:60]

    def attend(*parts: tuple[slice, tuple[int, ...]]) -> torch.Tensor:
        spans = tuple(
            Span((0,) * (part.stop - part.start), part.start, table, 0, 1) for part, table in parts
        )
        heads = torch.cat([rows.heads[part] for part, _ in parts])
        return NativeAttention(Step(spans, SIZE), cache, shape, (None,)).attend(0, heads)

    attend((slice(0, 40), mine), (slice(0, 9), behind))
    got = attend((slice(0, 16), before), (slice(40, 45), mine), (slice(9, 50), behind))
    assert torch.equal(expected, got[16:21])


@pytest.mark.parametrize(
    ("dim", "dtype", "kind"),
    [
        (16, torch.float32, NativeAttention),
        (10, torch.float32, StockAttention),
        (16, torch.bfloat16, StockAttention),
    ],
)
def test_kind_by_type_and_size(dim: int, dtype: torch.dtype, kind: Kind) -> None:
    """Own loops take float32 in whole vectors."""
    shape = HeadShape(2, 1, dim)
    cache = StackedCache(1, shape, 1, SIZE, dtype=dtype)
    step = Step((Span((0,), 0, (0,), 0, 1),), SIZE)
    assert kind is type(read_rows(step, cache, shape, (None,)))
