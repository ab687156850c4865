"""Which steps are recorded, and which of them a step repeats."""

from __future__ import annotations

import pytest
import torch

from paceline.engine.lean.graphs import (
    MAX_TABLE_WIDTH,
    ROW_COUNTS,
    GraphRecorder,
    RecordedStep,
    find_recorded,
    find_recorder,
    recorded_shapes,
)
from paceline.engine.step import Span, Step

CPU = torch.device("cpu")


def step(*counts: int, width: int = 1) -> Step:
    """A step with so many rows of each sequence."""
    return Step(tuple(Span((0,) * n, 0, (0,) * width, n, 1) for n in counts), 256)


def recorded(num_blocks: int) -> list[RecordedStep]:
    """A recorded step of every shape."""
    return [
        RecordedStep(shape, torch.zeros(0), lambda: torch.zeros(0))
        for shape in recorded_shapes(num_blocks)
    ]


def test_the_largest_is_recorded_first() -> None:
    """Later ones fit into its memory; every row may be a sequence of its own."""
    shapes = recorded_shapes(1000)
    assert [128, 64, 32, 16, 8, 4, 2, 1] == [shape.num_rows for shape in shapes]
    assert sorted(ROW_COUNTS, reverse=True) == [shape.num_sequences for shape in shapes]
    assert {MAX_TABLE_WIDTH} == {shape.table_width for shape in shapes}
    assert {5} == {shape.table_width for shape in recorded_shapes(5)}


@pytest.mark.parametrize(
    ("counts", "num_rows"),
    [
        ((1,), 1),
        ((2,), 2),
        ((5,), 8),
        ((9,), 16),
        ((1,) * 16, 16),
        ((5,) * 16, 128),
        ((1, 5, 1), 8),
        ((128,), 128),
    ],
)
def test_the_least_with_room_is_taken(counts: tuple[int, ...], num_rows: int) -> None:
    """Decodes, proposals and both."""
    found = find_recorded(step(*counts), recorded(200))
    assert found is not None and num_rows == found.shape.num_rows


@pytest.mark.parametrize(
    "large",
    [step(129), step(100, 29), step(1, width=MAX_TABLE_WIDTH + 1)],
    ids=["rows", "rows of two", "blocks"],
)
def test_what_does_not_fit_is_not_recorded(large: Step) -> None:
    """Prompts, and sequences over more blocks than tables have room for."""
    assert find_recorded(large, recorded(1000)) is None
    assert find_recorded(step(1), []) is None


def test_the_cpu_records_nothing() -> None:
    """Every run computes anew there."""
    values = iter((1.0, 2.0))
    repeat = find_recorder(CPU)(lambda: torch.tensor(next(values)))
    assert [1.0, 2.0] == [float(repeat()), float(repeat())]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_graph_repeats_what_it_recorded() -> None:
    """It reads what is in its buffers now, and several share a pool of memory."""
    device = torch.device("cuda")
    recorder = GraphRecorder(device)
    x = torch.ones(64, device=device)
    double, square = recorder(lambda: (x + x).clone()), recorder(lambda: (x * x).clone())
    for value in (2.0, 3.0):
        x.fill_(value)
        assert 2 * value == float(double()[0])
        assert value * value == float(square()[0])
