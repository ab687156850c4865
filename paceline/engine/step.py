"""What one forward pass is asked to do, as one plain record, and who can do it.

A step is integers only, so that it can be logged, replayed and sent to other ranks. It knows no
model and no session.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class Span:
    """The rows that one sequence contributes to a step.

    Row `j` feeds `token_ids[j]` at position `start + j`; its key and value are written to the slot
    of that position, and it sees positions 0 .. start + j of its own sequence only.
    """

    token_ids: tuple[int, ...]
    start: int
    """Position of the first row; everything before it is already in the cache."""
    block_table: tuple[int, ...]
    """Blocks that hold positions 0 .. start + len(token_ids) - 1, in order."""
    num_logits: int
    """How many of the last rows want logits, in [0, len(token_ids)]."""
    prompt_length: int
    """How many leading tokens of the sequence are prompt."""

    @property
    def end(self) -> int:
        """Length of the sequence in the cache after the step."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass over the rows of several sequences."""

    spans: tuple[Span, ...]
    block_size: int

    @property
    def num_rows(self) -> int:
        """Rows in all."""
        return sum(len(span.token_ids) for span in self.spans)


class ModelRunner(Protocol):
    """A model with its cache. Slot `b * block_size + i` is place `i` of block `b`."""

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Allocates the cache, once, before the first step."""

    def run(self, step: Step) -> torch.Tensor:
        """Runs one step.

        Returns:
            Float32 logits [sum of num_logits, V], spans in order, rows in order; V is the
            tokenizer's vocabulary (rows of a padded head are cut off).
        """

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copies whole blocks, (source, destination), for copy on write."""
