"""Kernels whose result for a row does not depend on the rows beside it, bit for bit.

What sums in another order for another number of rows is replaced; what rounds once per element
stays, since it cannot. A fused operation may round otherwise in the last elements of a thread's
share, so rotation and activation are written as operations that round once each. Attention is in
`exact_attention.py`; whether all this holds on this machine is shown by `exact_check.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paceline.engine.lean.linear import (
    Gate,
    Linear,
    Matrix,
    PackedGate,
    build_gate,
    build_linear,
    is_packed,
)

_EXACT_VERSION = 1
# oneDNN multiplies one row by a kernel of its own that sums in this many columns at a time.
_SINGLE_ROW_COLUMNS = 1024
# What the machine has, not what it computes with.
_BYSTANDERS = ("num_logical_cores", "num_physical_cores", "num_sockets")


def describe_numerics() -> str:
    """What decides the last bits: kernels, their version, the processor's kind and the threads."""
    processor = {
        name: value
        for name, value in sorted(torch.cpu.get_capabilities().items())
        if name not in _BYSTANDERS
    }
    return (
        f"exact={_EXACT_VERSION} torch={torch.__version__}"
        f" cpu={torch.backends.cpu.get_cpu_capability()} {processor}"
        f" threads={torch.get_num_threads()}"
    )


def has_kernels(*, is_quantized: bool) -> bool:
    """Whether this machine has a product that does not depend on the number of rows."""
    return is_quantized or is_packed(torch.float32)


@dataclass(frozen=True, slots=True)
class PairedLinear:
    """A wide float32 matrix: a row that comes alone comes twice."""

    linear: Linear

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiplies; see `Linear`."""
        return self.linear(_paired(x))[: len(x)]

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Multiplies and adds; see `Linear`."""
        return self.linear.add_to(_paired(residual), _paired(x))[: len(x)]


@dataclass(frozen=True, slots=True)
class PairedGate:
    """A wide float32 gated pair: a row that comes alone comes twice."""

    gate: Gate

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiplies; see `Gate`."""
        return self.gate(_paired(x))[: len(x)]


@dataclass(frozen=True, slots=True)
class PlainGate:
    """Gate and up projection as one product, the activation in operations that round once."""

    gate_up: Linear

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiplies; see `Gate`."""
        gate, up = self.gate_up(x).chunk(2, dim=1)
        return (gate / gate.neg().exp_().add_(1.0)).mul_(up)


def build_exact_linear(matrix: Matrix) -> Linear:
    """Gives a matrix to the kernel that suits it; float32, or int8 with scales."""
    linear = build_linear(matrix)
    return PairedLinear(linear) if _is_wide(matrix) else linear


def build_exact_gate(gate: Matrix, up: Matrix) -> Gate:
    """Gives a gated pair to the kernel that suits it; float32, or int8 with scales."""
    if gate.scales is not None:
        return PlainGate(build_exact_linear(Matrix.stack((gate, up))))
    fused = build_gate(gate, up)
    assert isinstance(fused, PackedGate), "float32 and oneDNN are required at load"
    return PairedGate(fused) if _is_wide(gate) else fused


def turn_exactly(heads: torch.Tensor, turns: torch.Tensor) -> None:
    """Rotates; see `decoder.Turn`. A product of complex numbers may be fused, these are not."""
    numbers = torch.view_as_real(turns)
    pairs = heads.view(*heads.shape[:2], -1, 2)
    by_cosine, by_sine = pairs * numbers[..., :1], pairs * numbers[..., 1:]
    torch.sub(by_cosine[..., 0], by_sine[..., 1], out=pairs[..., 0])
    torch.add(by_cosine[..., 1], by_sine[..., 0], out=pairs[..., 1])


def _is_wide(matrix: Matrix) -> bool:
    return matrix.scales is None and matrix.weight.shape[1] > _SINGLE_ROW_COLUMNS


def _paired(x: torch.Tensor) -> torch.Tensor:
    return x.expand(2, -1) if len(x) == 1 else x
