"""Matrices kept twice: each row count has its kernel, and both compute the same product."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from paceline.engine.lean.linear import Matrix, build_linear, is_packed
from paceline.engine.lean.twofold import (
    TwofoldGate,
    TwofoldLinear,
    build_twofold_gate,
    build_twofold_linear,
)

needs_packing = pytest.mark.skipif(not is_packed(torch.float32), reason="no oneDNN here")


def draw(*size: int, seed: int = 0) -> torch.Tensor:
    """Random numbers."""
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def make_matrix(*, bias: bool, seed: int = 0) -> Matrix:
    """A random matrix [64, 96]."""
    return Matrix(draw(64, 96, seed=seed) / 10, None, draw(64, seed=seed + 1) if bias else None)


class Refused:
    """Stands where a kernel must not be called."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Fails."""
        raise AssertionError(f"called with {len(x)} rows")

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Fails."""
        raise AssertionError(f"called with {len(x)} rows")


@needs_packing
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_rows", [1, 2, 5])
def test_product(num_rows: int, bias: bool) -> None:
    """With bias and residual, which is not written to; the other kernel is not asked."""
    matrix = make_matrix(bias=bias)
    x, residual = draw(num_rows, 96, seed=5), draw(num_rows, 64, seed=6)
    before = residual.clone()
    built = build_twofold_linear(matrix)
    assert isinstance(built, TwofoldLinear)
    single, several = (built.single, Refused()) if num_rows == 1 else (Refused(), built.several)
    linear = TwofoldLinear(single, several)
    expected = F.linear(x, matrix.weight, matrix.bias)
    torch.testing.assert_close(expected, linear(x))
    torch.testing.assert_close(residual + expected, linear.add_to(residual, x))
    assert torch.equal(before, residual)


@needs_packing
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_rows", [1, 5])
def test_gate(num_rows: int, bias: bool) -> None:
    """The activation belongs to the gate and not to the other half."""
    gate, up = make_matrix(bias=bias, seed=1), make_matrix(bias=bias, seed=3)
    x = draw(num_rows, 96, seed=5)
    built = build_twofold_gate(gate, up)
    assert isinstance(built, TwofoldGate)
    single, several = (built.single, Refused()) if num_rows == 1 else (Refused(), built.several)
    expected = F.silu(F.linear(x, gate.weight, gate.bias)) * F.linear(x, up.weight, up.bias)
    torch.testing.assert_close(expected, TwofoldGate(single, several)(x))


@pytest.mark.parametrize("kind", ["int8", "float64"])
def test_what_is_not_packed_is_kept_once(kind: str) -> None:
    """One kernel serves every number of rows there."""
    if kind == "int8":
        codes = draw(64, 96).mul(30).clamp(-127, 127).to(torch.int8)
        matrix = Matrix(codes, torch.ones(64), None)
    else:
        matrix = Matrix(draw(64, 96).double(), None, None)
    assert type(build_linear(matrix)) is type(build_twofold_linear(matrix))
    assert not isinstance(build_twofold_gate(matrix, matrix), TwofoldGate)
