"""Int8 linears: close to the original, equal to one another, and blind to a row's company."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paceline.engine.quantization import (
    PackedInt8Linear,
    PlainInt8Linear,
    has_packed_kernel,
    quantize_int8_per_row,
)

Layer = type[PackedInt8Linear] | type[PlainInt8Linear]

needs_kernel = pytest.mark.skipif(not has_packed_kernel(), reason="no x86 int8 kernel here")
BOTH = [pytest.param(PackedInt8Linear, marks=needs_kernel), PlainInt8Linear]


def build(
    layer: Layer, in_features: int, out_features: int, *, has_bias: bool = False
) -> tuple[nn.Module, torch.Tensor, torch.Tensor | None]:
    """A layer of random codes, its weights [out, in] as numbers, and its bias."""
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(-127, 128, (out_features, in_features), generator=generator)
    scales = torch.rand(out_features, generator=generator) / 100 + 0.001
    bias = torch.randn(out_features, generator=generator) if has_bias else None
    return layer(codes.to(torch.int8), scales, bias), codes * scales[:, None], bias


def rows(num_rows: int, in_features: int) -> torch.Tensor:
    """Random rows of very different sizes."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(num_rows, in_features, generator=generator)
    return x * torch.logspace(-3, 3, num_rows)[:, None]


@pytest.mark.parametrize("layer", BOTH)
@pytest.mark.parametrize("in_features", [48, 576, 1536])
def test_row_is_blind_to_its_company(layer: Layer, in_features: int) -> None:
    """A row alone and among others has the same bits, whatever their sizes."""
    module, _, _ = build(layer, in_features, 96, has_bias=True)
    x = rows(17, in_features)
    together = module(x)
    for start, end in ((0, 1), (16, 17), (3, 8), (0, 16)):
        assert torch.equal(together[start:end], module(x[start:end]))


@pytest.mark.parametrize("layer", BOTH)
def test_product_is_close(layer: Layer) -> None:
    """The result is the product with the inputs rounded to 127 levels of their row's largest."""
    module, weight, bias = build(layer, 576, 64, has_bias=True)
    assert bias is not None
    x = rows(9, 576)
    step = x.abs().amax(dim=1, keepdim=True) / 127
    expected = (x / step).round().double() * step.double() @ weight.double().T + bias.double()
    # A number on the edge between two levels may round either way in the kernel.
    tolerance = 4 * step.double() * weight.abs().max()
    assert bool(((module(x) - expected).abs() <= tolerance + 1e-5 * expected.abs()).all())


def test_plain_sums_do_not_show_their_order() -> None:
    """Each stretch of 1024 columns is summed without loss, so in any order with the same bits."""
    generator = torch.Generator().manual_seed(3)
    codes = torch.randint(64, 128, (64, 16 * 1024), generator=generator).to(torch.int8)
    x = torch.randint(64, 128, (4, 16 * 1024), generator=generator).to(torch.float32)
    x[:, ::1024] = 127.0
    order = torch.randperm(1024, generator=generator)
    shuffled = torch.cat([start * 1024 + order for start in range(16)])
    scales = torch.full((64,), 127.0)
    straight = PlainInt8Linear(codes, scales, None)(x)
    crossed = PlainInt8Linear(codes[:, shuffled], scales, None)(x[:, shuffled])
    assert torch.equal(straight, crossed)


@needs_kernel
def test_kernel_and_plain_layer_agree() -> None:
    """Both layers compute the same up to float rounding of the scales."""
    packed, _, _ = build(PackedInt8Linear, 1536, 64)
    plain, _, _ = build(PlainInt8Linear, 1536, 64)
    x = torch.randint(-127, 128, (5, 1536), generator=torch.Generator().manual_seed(2)).float()
    x[:, 0] = 127.0
    torch.testing.assert_close(packed(x), plain(x), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("layer", BOTH)
def test_zero_row_gives_the_bias(layer: Layer) -> None:
    """A row of zeros has no scale of its own and still gives numbers."""
    module, _, bias = build(layer, 48, 16, has_bias=True)
    assert bias is not None
    assert torch.equal(bias[None], module(torch.zeros(1, 48)))


@pytest.mark.parametrize("layer", BOTH)
def test_shape_and_dtype_follow_the_input(layer: Layer) -> None:
    """Leading dimensions and dtype are the input's."""
    module, _, _ = build(layer, 48, 16)
    y = module(torch.ones(2, 3, 48, dtype=torch.bfloat16))
    assert ((2, 3, 16), torch.bfloat16) == (tuple(y.shape), y.dtype)


def test_network_keeps_its_embedding() -> None:
    """Every linear is replaced, nested ones too; a tied embedding stays in float32."""
    torch.manual_seed(0)
    network = nn.Module()
    network.embedding = nn.Embedding(32, 48)
    network.layers = nn.ModuleList([nn.Sequential(nn.Linear(48, 96), nn.SiLU())])
    head = nn.Linear(48, 32, bias=False)
    head.weight = network.embedding.weight
    network.head = head
    x = torch.randn(4, 48)
    expected = head(x)
    quantize_int8_per_row(network)
    assert not [module for module in network.modules() if type(module) is nn.Linear]
    assert torch.float32 == network.embedding.weight.dtype
    assert ["embedding.weight"] == [name for name, _ in network.named_parameters()]
    assert (network.get_submodule("head")(x) - expected).abs().max() < 0.02 * expected.abs().max()


def test_weight_row_of_zeros() -> None:
    """An output whose weights are all 0 stays 0."""
    linear = nn.Linear(48, 3, bias=False)
    with torch.no_grad():
        linear.weight[1] = 0.0
    network = nn.Sequential(linear)
    quantize_int8_per_row(network)
    y = network(torch.ones(1, 48))
    assert 0.0 == y[0, 1].item()
    assert bool(y.isfinite().all())
