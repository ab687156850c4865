"""The lean attention against a plain one, row by row, for every way a step can be cut."""

from __future__ import annotations

import pytest
import torch

from paceline.engine.lean.attention import CpuAttention
from paceline.engine.lean.cache import StackedCache
from paceline.engine.lean.decoder import HeadShape
from paceline.engine.step import Span, Step

SIZE = 4
SHAPES = [HeadShape(6, 2, 16), HeadShape(4, 4, 16), HeadShape(3, 1, 16)]
CONTIGUOUS = (tuple(range(16)), tuple(range(16, 32)), tuple(range(32, 48)))
SCATTERED = tuple(tuple(range(first, 48, 3)) for first in range(3))


class Sequences:
    """Sequences of random rows, fed to one cache and remembered."""

    def __init__(
        self, shape: HeadShape, tables: tuple[tuple[int, ...], ...], window: int | None
    ) -> None:
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
        attention = CpuAttention(
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


@pytest.mark.parametrize("window", [None, 5, 40])
@pytest.mark.parametrize("tables", [CONTIGUOUS, SCATTERED], ids=["contiguous", "scattered"])
@pytest.mark.parametrize("shape", SHAPES, ids=["grouped", "equal", "one key head"])
def test_every_row_sees_its_own_past(
    shape: HeadShape, tables: tuple[tuple[int, ...], ...], window: int | None
) -> None:
    """B17, B51: prompts, chunks, decodes and proposals, alone and in company."""
    sequences = Sequences(shape, tables, window)
    sequences.feed((0, 1))
    sequences.feed((0, 1))
    sequences.feed((1, 16))
    sequences.feed((2, 17))
    sequences.feed((0, 5), (1, 1), (2, 20))
    sequences.feed((0, 1), (1, 1), (2, 1))
    sequences.feed((2, 5), (0, 5), (1, 5))


def test_last_bits_do_not_depend_on_the_company() -> None:
    """A sequence's rows come out with the same bits, whoever shares the step."""
    shape = SHAPES[0]
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(40, 10, 16, generator=generator)
    alone = StackedCache(1, shape, 48, SIZE, dtype=torch.float32)
    shared = StackedCache(1, shape, 48, SIZE, dtype=torch.float32)
    for cache in (alone, shared):
        prompt = Step((Span((0,) * 30, 0, CONTIGUOUS[0], 0, 1),), SIZE)
        CpuAttention(prompt, cache, shape, (None,)).attend(0, rows[:30])
    mine = Span((0,) * 5, 30, CONTIGUOUS[0], 0, 1)
    other = Span((0,) * 5, 0, CONTIGUOUS[1], 0, 1)
    expected = CpuAttention(Step((mine,), SIZE), alone, shape, (None,)).attend(0, rows[30:35])
    together = CpuAttention(Step((other, mine), SIZE), shared, shape, (None,)).attend(
        0, torch.cat([rows[35:40], rows[30:35]])
    )
    assert torch.equal(expected, together[5:])
