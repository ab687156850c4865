"""Float32 matrices kept twice: packed for several rows, transposed for a row that comes alone.

A single row is bound by reading the weights, and the transposed layout is read faster; from two
rows on the packed one wins. The price is the matrices' memory once more. Kernels are chosen by the
number of rows here, so exact mode has no use for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paceline.engine.lean.linear import (
    FusedGate,
    Gate,
    Linear,
    Matrix,
    PackedGate,
    PackedLinear,
    build_gate,
    build_linear,
)


@dataclass(frozen=True, slots=True)
class TransposedLinear:
    """A matrix as [K, N]."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    @classmethod
    def of(cls, matrix: Matrix) -> TransposedLinear:
        """Copies a matrix of numbers."""
        return cls(matrix.weight.t().contiguous(), matrix.bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiplies; see `Linear`."""
        return x @ self.weight if self.bias is None else torch.addmm(self.bias, x, self.weight)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Multiplies and adds; see `Linear`."""
        if self.bias is not None:
            residual = residual + self.bias
        return torch.addmm(residual, x, self.weight)


@dataclass(frozen=True, slots=True)
class TwofoldLinear:
    """A matrix for one row and for several."""

    single: Linear
    several: Linear

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiplies; see `Linear`."""
        return self.single(x) if len(x) == 1 else self.several(x)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Multiplies and adds; see `Linear`."""
        linear = self.single if len(x) == 1 else self.several
        return linear.add_to(residual, x)


@dataclass(frozen=True, slots=True)
class TwofoldGate:
    """A gated pair for one row and for several."""

    single: Gate
    several: Gate

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiplies; see `Gate`."""
        return self.single(x) if len(x) == 1 else self.several(x)


def build_twofold_linear(matrix: Matrix) -> Linear:
    """Gives a matrix to its kernels; what is not packed has one that serves all rows."""
    linear = build_linear(matrix)
    if isinstance(linear, PackedLinear):
        return TwofoldLinear(TransposedLinear.of(matrix), linear)
    return linear


def build_twofold_gate(gate: Matrix, up: Matrix) -> Gate:
    """Gives a gated pair to its kernels; what is not packed has one that serves all rows."""
    fused = build_gate(gate, up)
    if isinstance(fused, PackedGate):
        single = TransposedLinear.of(Matrix.stack((gate, up)))
        return TwofoldGate(FusedGate(single), fused)
    return fused
