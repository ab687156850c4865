"""A step as one array: what stands where, and what fills it up."""

from __future__ import annotations

import pytest
import torch

from paceline.engine.lean.packed import PackedRows, PackedShape, pack
from paceline.engine.step import Span, Step

# A proposal over two blocks that are apart, and a decode.
STEP = Step((Span((7, 8, 9), 3, (5, 2), 2, 1), Span((4,), 0, (1,), 1, 1)), 4)
SPARE = 6


def packed(step: Step, shape: PackedShape) -> PackedRows:
    """The parts of a packed step, in memory that held something else."""
    numbers = torch.full((shape.size,), -1, dtype=torch.int64)
    pack(step, numbers, shape, SPARE)
    return PackedRows.of(numbers, shape)


def test_without_surplus() -> None:
    """Rows in order, each with its token, position and slot; sequences with rows and blocks."""
    shape = PackedShape.of(STEP)
    assert PackedShape(4, 2, 2) == shape
    parts = packed(STEP, shape)
    assert [7, 8, 9, 4] == parts.ids.tolist()
    assert [3, 4, 5, 0] == parts.positions.tolist()
    assert [5 * 4 + 3, 2 * 4, 2 * 4 + 1, 4] == parts.slots.tolist()
    assert [1, 2, 3] == parts.wanted[:3].tolist()
    assert [0, 3, 4] == parts.starts.tolist()
    assert [6, 1] == parts.lengths.tolist()
    assert [[5, 2], [1, SPARE]] == parts.tables.tolist()


def test_surplus_is_nobodys() -> None:
    """Surplus rows are sequences of one token in the spare block, then come empty sequences."""
    parts = packed(STEP, PackedShape(7, 7, 3))
    assert [7, 8, 9, 4, 0, 0, 0] == parts.ids.tolist()
    assert [3, 4, 5, 0, 0, 0, 0] == parts.positions.tolist()
    assert [SPARE * 4] * 3 == parts.slots[4:].tolist()
    assert [1, 2, 3, 0, 0, 0, 0] == parts.wanted.tolist()
    assert [0, 3, 4, 5, 6, 7, 7, 7] == parts.starts.tolist()
    assert [6, 1, 1, 1, 1, 1, 1] == parts.lengths.tolist()
    assert [[5, 2, SPARE], [1, SPARE, SPARE]] == parts.tables[:2].tolist()
    assert [[SPARE] * 3] * 5 == parts.tables[2:].tolist()


def test_nothing_but_surplus() -> None:
    """A step of no sequence is what a shape is recorded with."""
    parts = packed(Step((), 4), PackedShape(2, 2, 1))
    assert [0, 1, 2] == parts.starts.tolist()
    assert [SPARE * 4] * 2 == parts.slots.tolist()


@pytest.mark.parametrize(
    "shape", [PackedShape(1, 1, 1), PackedShape(1, 1, 2), PackedShape(5, 3, 4)]
)
def test_parts_fill_the_array(shape: PackedShape) -> None:
    """Every part has a place of its own, as the kernel wants it: 32 bits, dense."""
    numbers = torch.zeros(shape.size, dtype=torch.int64)
    parts = PackedRows.of(numbers, shape)
    small = (parts.starts, parts.lengths, parts.tables)
    for part in (parts.ids, parts.positions, parts.slots, parts.wanted, *small):
        assert part.is_contiguous() and not part.any()
        part.fill_(1)
    assert {torch.int32} == {part.dtype for part in small}
    num_small = sum(part.numel() for part in small)
    assert 4 * shape.num_rows + num_small == int(numbers.view(torch.int32).sum())
