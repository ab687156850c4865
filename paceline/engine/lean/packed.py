"""The integers of a step in one array, so that one copy brings them to the device.

The array is filled up to a given shape, since a recorded step has a fixed one: each surplus row is
a sequence of one token in a spare block, and the sequences that are left have no row. Knows no
weights and no device.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from paceline.engine.attention import list_slots
from paceline.engine.model_runner import find_logit_rows
from paceline.engine.step import Step


@dataclass(frozen=True, slots=True)
class PackedShape:
    """What an array has room for."""

    num_rows: int
    num_sequences: int
    table_width: int
    """Blocks of the longest sequence."""

    @classmethod
    def of(cls, step: Step) -> PackedShape:
        """What a step takes without surplus."""
        width = max(len(span.block_table) for span in step.spans)
        return cls(step.num_rows, len(step.spans), width)

    @property
    def size(self) -> int:
        """Numbers of 8 bytes in the array."""
        num_small = 1 + self.num_sequences * (2 + self.table_width)
        return 4 * self.num_rows + -(-num_small // 2)


@dataclass(frozen=True, slots=True)
class PackedRows:
    """An array's parts, as views: R rows, S sequences, tables of W blocks."""

    ids: torch.Tensor
    """Int64 [R]."""
    positions: torch.Tensor
    """Int64 [R], each in its own sequence."""
    slots: torch.Tensor
    """Int64 [R]: where each row's key and value go."""
    wanted: torch.Tensor
    """Int64 [R]: the rows whose logits are wanted; as many as the step says, then zeros."""
    starts: torch.Tensor
    """Int32 [S + 1]: the first row of each sequence, and the number of rows."""
    lengths: torch.Tensor
    """Int32 [S]: tokens of each sequence in the cache after the step."""
    tables: torch.Tensor
    """Int32 [S, W]: the blocks of each sequence."""

    @classmethod
    def of(cls, numbers: torch.Tensor, shape: PackedShape) -> PackedRows:
        """Cuts int64 [shape.size] into its parts."""
        ids, positions, slots, wanted, starts, lengths, tables = _cut(
            numbers, numbers.view(torch.int32), shape
        )
        tables = tables.view(shape.num_sequences, -1)
        return cls(ids, positions, slots, wanted, starts, lengths, tables)


Numbers = TypeVar("Numbers", torch.Tensor, npt.NDArray[Any])


def _cut(numbers: Numbers, halves: Numbers, shape: PackedShape) -> tuple[Numbers, ...]:
    """The parts as they follow one another; `halves` are the same numbers, 32 bits at a time."""
    rows, sequences = shape.num_rows, shape.num_sequences
    starts = 8 * rows
    lengths = starts + sequences + 1
    tables = lengths + sequences
    return (
        numbers[:rows],
        numbers[rows : 2 * rows],
        numbers[2 * rows : 3 * rows],
        numbers[3 * rows : 4 * rows],
        halves[starts:lengths],
        halves[lengths:tables],
        halves[tables : tables + sequences * shape.table_width],
    )


def pack(step: Step, numbers: torch.Tensor, shape: PackedShape, spare_block: int) -> None:
    """Writes a step that fits into int64 [shape.size] on the CPU."""
    array = numbers.numpy()
    ids, positions, slots, wanted, starts, lengths, tables = _cut(array, array.view("i4"), shape)
    ends = list(accumulate(len(span.token_ids) for span in step.spans))
    _fill(ids, [token_id for span in step.spans for token_id in span.token_ids], 0)
    _fill(positions, [p for span in step.spans for p in range(span.start, span.end)], 0)
    _fill(slots, list_slots(step), spare_block * step.block_size)
    _fill(wanted, find_logit_rows(step), 0)
    _fill(lengths, [span.end for span in step.spans], 1)
    surplus = np.arange(1, shape.num_sequences - len(ends) + 1)
    starts[: len(ends) + 1] = [0, *ends]
    starts[len(ends) + 1 :] = np.minimum(step.num_rows + surplus, shape.num_rows)
    tables.fill(spare_block)
    for index, span in enumerate(step.spans):
        first = index * shape.table_width
        tables[first : first + len(span.block_table)] = span.block_table


def _fill(part: npt.NDArray[Any], values: list[int], surplus: int) -> None:
    part[: len(values)] = values
    part[len(values) :] = surplus
