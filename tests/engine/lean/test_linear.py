"""Every kernel computes the same product, with bias, residual and gate."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from paceline.engine import quantization
from paceline.engine.lean.linear import (
    Gate,
    Int8Linear,
    Matrix,
    StockLinear,
    TiledLinear,
    build_linear,
)

needs_kernel = pytest.mark.skipif(
    not quantization.has_packed_kernel(), reason="no x86 int8 kernel here"
)


def linear(in_features: int, out_features: int, *, bias: bool, seed: int = 0) -> nn.Linear:
    """A random layer without gradients."""
    torch.manual_seed(seed)
    return nn.Linear(in_features, out_features, bias=bias).requires_grad_(False)


def quantized(layer: nn.Linear) -> nn.Module:
    """The layer in int8."""
    parent = nn.Sequential(layer)
    quantization.quantize_int8_per_row(parent)
    return parent[0]


def rows(num_rows: int, size: int) -> torch.Tensor:
    """Random rows."""
    return torch.randn(num_rows, size, generator=torch.Generator().manual_seed(9))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_rows", [1, 2, 5, 33])
def test_tiled_product(num_rows: int, bias: bool) -> None:
    """The matrix in tiles multiplies like the layer, and adds a residual like an addition."""
    layer = linear(96, 64, bias=bias)
    x, residual = rows(num_rows, 96), rows(num_rows, 64)
    product = build_linear(Matrix.of(layer))
    assert TiledLinear is type(product)
    torch.testing.assert_close(layer(x), product(x))
    torch.testing.assert_close(residual + layer(x), product.add_to(residual, x))


def test_residual_is_not_written_to() -> None:
    """The sum is a new tensor."""
    layer = linear(96, 64, bias=False)
    residual = torch.zeros(3, 64)
    build_linear(Matrix.of(layer)).add_to(residual, rows(3, 96))
    assert 0.0 == residual.abs().max()


@pytest.mark.parametrize("bias", [False, True])
def test_stock_product_in_half_precision(bias: bool) -> None:
    """A type without a packed kernel multiplies by stock operations."""
    layer = linear(96, 64, bias=bias).to(torch.bfloat16)
    x, residual = rows(5, 96).to(torch.bfloat16), rows(5, 64).to(torch.bfloat16)
    product = build_linear(Matrix.of(layer))
    assert StockLinear is type(product)
    assert torch.equal(layer(x), product(x))
    assert torch.equal(residual + layer(x), product.add_to(residual, x))


@needs_kernel
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_rows", [1, 5])
def test_int8_product_equals_the_module(num_rows: int, bias: bool) -> None:
    """The same codes and scales, hence the bits of the module."""
    layer = quantized(linear(96, 64, bias=bias))
    x, residual = rows(num_rows, 96), rows(num_rows, 64)
    product = build_linear(Matrix.of(layer))
    assert Int8Linear is type(product)
    torch.testing.assert_close(layer(x), product(x), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(residual + layer(x), product.add_to(residual, x))


@needs_kernel
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_int8_product_of_half_precision_rows(dtype: torch.dtype, bias: bool) -> None:
    """The kernel takes float32; what comes out is of the rows' type again."""
    layer = quantized(linear(96, 64, bias=bias).to(dtype))
    x, residual = rows(5, 96).to(dtype), rows(5, 64).to(dtype)
    product = build_linear(Matrix.of(layer))
    assert torch.equal(layer(x), product(x))
    added = product.add_to(residual, x)
    assert dtype is added.dtype
    # Rounded once to the type here, twice there.
    torch.testing.assert_close(residual + layer(x), added, rtol=0.01, atol=0.01)


@needs_kernel
def test_int8_row_is_blind_to_its_company() -> None:
    """A row alone and among others has the same bits, residual included."""
    product = build_linear(Matrix.of(quantized(linear(96, 64, bias=True))))
    x = rows(9, 96) * torch.logspace(-3, 3, 9)[:, None]
    residual = rows(9, 64)
    assert torch.equal(product(x)[4:5], product(x[4:5]))
    assert torch.equal(product.add_to(residual, x)[4:5], product.add_to(residual[4:5], x[4:5]))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_rows", [1, 5, 33])
@pytest.mark.parametrize("kind", ["float32", "float64", "int8"])
def test_gate(kind: str, num_rows: int, bias: bool) -> None:
    """One call gives silu of the one product times the other."""
    gate, up = linear(96, 64, bias=bias, seed=1), linear(96, 64, bias=bias, seed=2)
    x = rows(num_rows, 96)
    layers: list[nn.Module] = [gate, up]
    if kind == "int8":
        layers = [quantized(gate), quantized(up)]
    elif kind == "float64":
        layers, x = [gate.double(), up.double()], x.double()
    built = Gate(build_linear(Matrix.stack([Matrix.of(layer) for layer in layers])))
    torch.testing.assert_close(F.silu(layers[0](x)) * layers[1](x), built(x))


@pytest.mark.parametrize("is_quantized", [False, True])
def test_stacked_and_picked_matrices(is_quantized: bool) -> None:
    """Stacked matrices give their outputs side by side, in any order; a missing bias is 0."""
    parts: list[nn.Module] = [linear(96, 8, bias=True, seed=1), linear(96, 4, bias=False, seed=2)]
    if is_quantized:
        parts = [quantized(part) for part in parts if isinstance(part, nn.Linear)]
    x = rows(3, 96)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(4))
    stacked = Matrix.stack([Matrix.of(part) for part in parts]).pick_rows(order)
    expected = torch.cat([part(x) for part in parts], dim=1)[:, order]
    torch.testing.assert_close(expected, build_linear(stacked)(x))


@pytest.mark.parametrize("is_quantized", [False, True])
def test_picked_columns(is_quantized: bool) -> None:
    """Inputs in another order give the same outputs."""
    layer: nn.Module = linear(96, 8, bias=True)
    if is_quantized:
        layer = quantized(linear(96, 8, bias=True))
    x = rows(3, 96)
    order = torch.randperm(96, generator=torch.Generator().manual_seed(4))
    picked = build_linear(Matrix.of(layer).pick_columns(order))
    torch.testing.assert_close(layer(x), picked(x[:, order]))
