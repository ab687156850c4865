"""The integers of a step in one array, so that one copy brings them to the device.

The array is filled up to a given shape, since a recorded step has a fixed one: each surplus row is
a sequence of one token in a spare block, and the sequences that are left have no row. Knows no
weights and no device.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch

from paceline.engine.paged_cache import slot_runs
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
        count = shape.num_sequences
        ids, positions, slots, wanted = numbers[: 4 * shape.num_rows].chunk(4)
        small = numbers[4 * shape.num_rows :].view(torch.int32)
        starts, lengths = small[: count + 1], small[count + 1 : 2 * count + 1]
        tables = small[2 * count + 1 : (2 + shape.table_width) * count + 1]
        return cls(ids, positions, slots, wanted, starts, lengths, tables.view(count, -1))


def pack(step: Step, numbers: torch.Tensor, shape: PackedShape, spare_block: int) -> None:
    """Writes a step that fits into int64 [shape.size] on the CPU."""
    parts = PackedRows.of(numbers, shape)
    num_rows, num_sequences = step.num_rows, len(step.spans)
    first_spare = spare_block * step.block_size
    slots = [
        slot
        for span in step.spans
        for run in slot_runs(span.block_table, step.block_size, span.start, span.end)
        for slot in range(*run)
    ]
    ends = list(accumulate(len(span.token_ids) for span in step.spans))
    wanted = [
        row
        for span, end in zip(step.spans, ends, strict=True)
        for row in range(end - span.num_logits, end)
    ]
    _fill(parts.ids, [token_id for span in step.spans for token_id in span.token_ids], 0)
    _fill(parts.positions, [p for span in step.spans for p in range(span.start, span.end)], 0)
    _fill(parts.slots, slots, first_spare)
    _fill(parts.wanted, wanted, 0)
    _fill(parts.lengths, [span.end for span in step.spans], 1)
    starts = parts.starts.numpy()
    starts[: num_sequences + 1] = [0, *ends]
    surplus = np.arange(1, shape.num_sequences - num_sequences + 1)
    starts[num_sequences + 1 :] = np.minimum(num_rows + surplus, shape.num_rows)
    tables = parts.tables.numpy()
    tables.fill(spare_block)
    for index, span in enumerate(step.spans):
        tables[index, : len(span.block_table)] = span.block_table


def _fill(part: torch.Tensor, values: list[int], surplus: int) -> None:
    places = part.numpy()
    places[: len(values)] = values
    places[len(values) :] = surplus
