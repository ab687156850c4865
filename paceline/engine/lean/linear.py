"""Products with weight matrices, each matrix in the form that its kernel reads best.

One copy of a matrix is kept, never two: in panels (float32 on the CPU), packed for torch's x86 int8
kernel (a quarter), or as it came. Knows no model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import nn

from paceline.engine import quantization
from paceline.engine.native import panels, rows, tiles
from paceline.engine.native.compiled import is_native
from paceline.engine.native.tiles import Tiled
from paceline.engine.quantization import PackedInt8Linear, PlainInt8Linear


class Linear(Protocol):
    """A matrix [N, K] with an optional bias [N]."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiplies: x [T, K] -> x @ w.T + bias [T, N]."""

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Multiplies and adds: residual [T, N], x [T, K] -> residual + x @ w.T + bias."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight matrix on its way from a network into a kernel."""

    weight: torch.Tensor
    """[N, K]: numbers, or int8 codes where there are scales."""
    scales: torch.Tensor | None
    """Float32 [N]: what a code of each row is worth."""
    bias: torch.Tensor | None
    """[N]."""

    @classmethod
    def of(cls, module: nn.Module) -> Matrix:
        """Reads a linear layer, plain or int8."""
        if isinstance(module, PackedInt8Linear | PlainInt8Linear):
            codes, scales = module.unpack()
            return cls(codes, scales, module.bias)
        assert isinstance(module, nn.Linear)
        bias = None if module.bias is None else module.bias.detach()
        return cls(module.weight.detach(), None, bias)

    @classmethod
    def stack(cls, matrices: Sequence[Matrix]) -> Matrix:
        """Puts matrices under one another, so that one product computes all."""
        scales = [m.scales for m in matrices if m.scales is not None]
        biases = [m.weight.new_zeros(len(m.weight)) if m.bias is None else m.bias for m in matrices]
        has_bias = any(m.bias is not None for m in matrices)
        return cls(
            torch.cat([m.weight for m in matrices]),
            torch.cat(scales) if scales else None,
            torch.cat(biases) if has_bias else None,
        )

    def pick_rows(self, rows: torch.Tensor) -> Matrix:
        """Reorders the outputs."""
        return Matrix(
            self.weight[rows],
            None if self.scales is None else self.scales[rows],
            None if self.bias is None else self.bias[rows],
        )

    def pick_columns(self, columns: torch.Tensor) -> Matrix:
        """Reorders the inputs."""
        return Matrix(self.weight[:, columns], self.scales, self.bias)


def build_linear(matrix: Matrix) -> Linear:
    """Gives a matrix to the kernel that suits it."""
    if matrix.scales is not None:
        if quantization.has_packed_kernel():
            return Int8Linear(quantization.pack(matrix.weight, matrix.scales), matrix.bias)
        return StockLinear(PlainInt8Linear(matrix.weight, matrix.scales, matrix.bias))
    if is_repacked(matrix.weight):
        return TiledLinear(panels.pack(matrix.weight), matrix.bias)
    return StockLinear(_StockProduct(matrix.weight.contiguous(), matrix.bias))


def is_repacked(weight: torch.Tensor) -> bool:
    """Whether a matrix of numbers gets a layout of its own, so that the original is not kept."""
    return weight.dtype == torch.float32 and weight.device.type in ("cpu", "meta")


@dataclass(frozen=True, slots=True)
class TiledLinear:
    """A matrix in tiles; its products do not depend on the number of rows."""

    tiled: Tiled
    bias: torch.Tensor | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiplies; see `Linear`."""
        y = tiles.multiply(x, self.tiled)
        return y if self.bias is None else y.add_(self.bias)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Multiplies and adds; see `Linear`."""
        return self(x).add_(residual)


@dataclass(frozen=True, slots=True)
class Int8Linear:
    """An int8 matrix with one scale per row of it and of the input; see `quantization`."""

    weight: quantization.Packed
    bias: torch.Tensor | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiplies; see `Linear`."""
        y, row_max = quantization.multiply_packed(x.float(), self.weight)
        y = y.mul_(row_max) if self.bias is None else torch.addcmul(self.bias.float(), y, row_max)
        return y.to(x.dtype)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Multiplies and adds; see `Linear`."""
        y, row_max = quantization.multiply_packed(x.float(), self.weight)
        if self.bias is not None:
            residual = residual + self.bias
        return torch.addcmul(residual.float(), y, row_max).to(x.dtype)


@dataclass(frozen=True, slots=True)
class _StockProduct:
    weight: torch.Tensor
    bias: torch.Tensor | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class StockLinear:
    """A matrix that stock operations multiply: half precision, or no kernel for its kind here."""

    product: Callable[[torch.Tensor], torch.Tensor]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiplies; see `Linear`."""
        return self.product(x)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Multiplies and adds; see `Linear`."""
        return residual + self.product(x)


@dataclass(frozen=True, slots=True)
class Gate:
    """Gate and up projection as one product."""

    gate_up: Linear

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiplies: x [T, K] -> silu(gate(x)) * up(x) [T, N]."""
        gate_up = self.gate_up(x)
        if is_native(gate_up):
            return rows.gate(gate_up)
        gate, up = gate_up.chunk(2, dim=1)
        return F.silu(gate).mul_(up)
