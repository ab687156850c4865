"""Exact attention: right against a plain one, and the same bits however a step is cut."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from paceline.engine.lean.attention import CpuAttention
from paceline.engine.lean.cache import StackedCache
from paceline.engine.lean.decoder import HeadShape
from paceline.engine.lean.exact_attention import ExactAttention
from paceline.engine.lean.kernels import MakeAttention
from paceline.engine.step import Span, Step

SIZE = 4
LENGTH = 620
NUM_BLOCKS = -(-LENGTH // SIZE)
SHAPES = {
    "grouped": HeadShape(6, 2, 16),
    "no groups": HeadShape(4, 4, 64),
    "one key head": HeadShape(3, 1, 16),
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
        self, counts: Sequence[int], table: tuple[int, ...], make: MakeAttention
    ) -> torch.Tensor:
        """Outputs [T, Hq * D] of the first rows, so many of them in each step."""
        cache = StackedCache(1, self._shape, 2 * NUM_BLOCKS, SIZE, dtype=torch.float32)
        outputs, start = [], 0
        for count in counts:
            step = Step((Span((0,) * count, start, table, 0, 1),), SIZE)
            attention = make(step, cache, self._shape, (self._window,))
            outputs.append(attention.attend(0, self.heads[start : start + count]))
            start += count
        return torch.cat(outputs)


@pytest.fixture(params=list(SHAPES.values()), ids=list(SHAPES))
def shape(request: pytest.FixtureRequest) -> HeadShape:
    """Each shape in turn."""
    found: HeadShape = request.param
    return found


@pytest.mark.parametrize("window", [None, 7, 550])
def test_cuts_change_no_bit(shape: HeadShape, window: int | None) -> None:
    """B37: one row, a proposal, a chunk; blocks in a run, scattered, at the end of the cache."""
    rows = Rows(shape, window)
    at_the_end = tuple(range(NUM_BLOCKS, 2 * NUM_BLOCKS))
    expected = rows.run((512, LENGTH - 512), FORWARDS, ExactAttention)
    for counts in CUTS:
        for table in (FORWARDS, BACKWARDS, APART, at_the_end):
            got = rows.run(counts, table, ExactAttention)
            assert torch.equal(expected[: sum(counts)], got)


@pytest.mark.parametrize("window", [None, 7, 550])
def test_it_attends_as_the_fast_one_does(shape: HeadShape, window: int | None) -> None:
    """B17, B51: each row sees its own past and nothing else, up to rounding."""
    rows = Rows(shape, window)
    counts = (130, 1, 1, 5, 400, 17)
    expected = rows.run(counts, BACKWARDS, CpuAttention)
    got = rows.run(counts, BACKWARDS, ExactAttention)
    torch.testing.assert_close(expected, got, atol=1e-5, rtol=1e-4)


def test_the_fast_one_is_not_exact() -> None:
    """What is compared here can differ."""
    rows = Rows(SHAPES["no groups"], None)
    expected = rows.run((LENGTH,), FORWARDS, CpuAttention)
    assert not torch.equal(expected, rows.run(CUTS[0], FORWARDS, CpuAttention))


def test_company_changes_no_bit(shape: HeadShape) -> None:
    """B37: among other sequences, and beside their keys, a sequence's rows stay the same."""
    rows = Rows(shape, None)
    expected = rows.run((40, 5), FORWARDS, ExactAttention)[40:]
    cache = StackedCache(1, shape, 2 * NUM_BLOCKS, SIZE, dtype=torch.float32)
    mine, before, behind = FORWARDS[20:40], FORWARDS[:20], FORWARDS[40:60]

    def attend(*parts: tuple[slice, tuple[int, ...]]) -> torch.Tensor:
        spans = tuple(
            Span((0,) * (part.stop - part.start), part.start, table, 0, 1) for part, table in parts
        )
        heads = torch.cat([rows.heads[part] for part, _ in parts])
        return ExactAttention(Step(spans, SIZE), cache, shape, (None,)).attend(0, heads)

    attend((slice(0, 40), mine), (slice(0, 9), behind))
    got = attend((slice(0, 16), before), (slice(40, 45), mine), (slice(9, 50), behind))
    assert torch.equal(expected, got[16:21])
