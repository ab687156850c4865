"""Matrices of the lean decoder in 4 bits, the head's in 8.

The weights come rounded already (`quantization.round_int4_per_group`), so codes lose nothing. Knows
no network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from paceline.engine.lean.linear import FusedGate, Gate, Linear, Matrix, build_linear
from paceline.engine.native import grouped
from paceline.engine.native.grouped import Grouped


@dataclass(frozen=True, slots=True)
class GroupedLinear:
    """A matrix of codes with a scale per group."""

    weight: Grouped
    bias: torch.Tensor | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiplies; see `Linear`."""
        y = grouped.multiply(x, self.weight)
        return y if self.bias is None else y.add_(self.bias)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Multiplies and adds; see `Linear`."""
        return self(x).add_(residual)


BuildLinear = Callable[[Matrix], Linear]


def build_grouped_linear(matrix: Matrix, otherwise: BuildLinear = build_linear) -> Linear:
    """Keeps a rounded matrix at 4 bits, where its shape and type let it."""
    if not _is_packable(matrix):
        return otherwise(matrix)
    return GroupedLinear(grouped.pack_4(matrix.weight), matrix.bias)


def build_grouped_head(matrix: Matrix, otherwise: BuildLinear = build_linear) -> Linear:
    """Keeps a rounded matrix at 8 bits, where its shape and type let it."""
    if not _is_packable(matrix):
        return otherwise(matrix)
    return GroupedLinear(grouped.pack_8(matrix.weight), matrix.bias)


def build_grouped_gate(gate: Matrix, up: Matrix) -> Gate:
    """Keeps a rounded gated pair at 4 bits, where its shape and type let it."""
    return FusedGate(build_grouped_linear(Matrix.stack((gate, up))))


def _is_packable(matrix: Matrix) -> bool:
    return matrix.weight.dtype == torch.float32 and grouped.serves(matrix.weight)
