"""Linear layers in fewer bits: int8 with scales per row, or int4 with scales per group of weights.

Int8 quantizes the input too; the scale of an input row comes from that row alone, so a row's result
does not depend on the company it keeps, bit for bit. Int4 only rounds the weights, to what 4 bits
can tell: any kernel may multiply them, and `native/grouped.py` does so without widening them. A
network so quantized is another model than the one it was made from, and is named as such. Knows no
model family.
"""

from __future__ import annotations

import warnings
from typing import Any, TypeAlias

import torch
from torch import nn
from transformers import PreTrainedConfig

from paceline.engine.native.compiled import is_native
from paceline.engine.native.grouped import round_4, round_8
from paceline.engine.native.rows import to_unit
from paceline.engine.native.tiles import GROUP
from paceline.errors import FailedPrecondition

Packed: TypeAlias = Any
"""A matrix of int8 codes with its scales in the layout of torch's x86 kernel."""

_LEVELS = 127
_TINY = torch.finfo(torch.float32).tiny
_ZERO_POINT = 128
"""Of the unsigned input codes: code 128 is 0."""
_EXACT_COLUMNS = 1024
"""Sums of this many products of 7-bit integers are exact in float32, in any order."""
# Looked up once, below the checks of the overload: both cost as much as the call itself.
_multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default._op


def quantize_int8_per_row(network: nn.Module) -> None:
    """Replaces every `nn.Linear` in place. Embeddings stay as they are, also a tied one."""
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, _quantize(child))


def takes_int4(config: PreTrainedConfig) -> bool:
    """Whether this is a Llama-shaped network with matrices whose inputs are whole groups."""
    size, num_heads = config.hidden_size, config.num_attention_heads
    head_size = getattr(config, "head_dim", None) or size // num_heads
    inner = getattr(config, "intermediate_size", None)
    return inner is not None and not (
        size % GROUP or inner % GROUP or head_size * num_heads % GROUP
    )


def round_int4_per_group(network: nn.Module) -> None:
    """Rounds the weights of every `nn.Linear`, those of the head to 8 bits: it decides on tokens.

    Embeddings stay as they are, also those that a head shares.

    Raises:
        FailedPrecondition: A layer's inputs are no whole groups.
    """
    for name, module in network.named_modules():
        if type(module) is not nn.Linear:
            continue
        if module.in_features % GROUP:
            raise FailedPrecondition(
                f"{name} has {module.in_features} inputs, int4 takes multiples of {GROUP}"
            )
        is_head = name.partition(".")[0] == "lm_head"
        rounded = (round_8 if is_head else round_4)(module.weight.detach())
        module.weight = nn.Parameter(rounded.to(module.weight.dtype), requires_grad=False)


def _quantize(linear: nn.Linear) -> nn.Module:
    weight = linear.weight.detach().to(torch.float32)
    scales = weight.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny) / _LEVELS
    codes = (weight / scales[:, None]).round().to(torch.int8)
    bias = None if linear.bias is None else linear.bias.detach().to(torch.float32)
    if weight.device.type == "cpu" and has_packed_kernel():
        return PackedInt8Linear(codes, scales, bias)
    return PlainInt8Linear(codes, scales, bias)


def has_packed_kernel() -> bool:
    """Whether torch's x86 kernel is here; without VNNI it saturates, which costs agreement."""
    return torch.backends.quantized.engine == "x86" and torch.cpu._is_vnni_supported()


def pack(codes: torch.Tensor, scales: torch.Tensor) -> Packed:
    """Lays codes [N, K] and scales [N] out for `multiply_packed`."""
    zero_points = torch.zeros(len(scales), dtype=torch.int64)
    with warnings.catch_warnings():
        # The quantized dtypes are to go; the kernel that replaces them is far slower today.
        warnings.simplefilter("ignore", UserWarning)
        weight = torch._make_per_channel_quantized_tensor(codes, scales.double(), zero_points, 0)
    return torch.ops.quantized.linear_prepack(weight, None)


def multiply_packed(rows: torch.Tensor, weight: Packed) -> tuple[torch.Tensor, torch.Tensor]:
    """Float32 rows [T, K] -> y [T, N] and row_max [T, 1], whose product is the result."""
    unit, row_max = _normalize(rows)
    return _multiply(unit, 1.0 / _LEVELS, _ZERO_POINT, weight), row_max


class PackedInt8Linear(nn.Module):
    """The layer in torch's x86 int8 kernel."""

    bias: torch.Tensor | None

    def __init__(
        self, codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = codes.shape
        self._packed = pack(codes, scales)
        self.register_buffer("bias", bias)

    def unpack(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The codes [N, K] and the scales [N] that the layer was made of."""
        weight, _ = torch.ops.quantized.linear_unpack(self._packed)
        return weight.int_repr(), weight.q_per_channel_scales().to(torch.float32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features], in the dtype of `x`."""
        y, row_max = multiply_packed(x.reshape(-1, x.shape[-1]).to(torch.float32), self._packed)
        return _restore(y, row_max, self.bias, x)


class PlainInt8Linear(nn.Module):
    """The same arithmetic in stock operations, for devices without the kernel."""

    codes: torch.Tensor
    scales: torch.Tensor
    bias: torch.Tensor | None

    def __init__(
        self, codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = codes.shape
        self.register_buffer("codes", codes.to(torch.float32))
        self.register_buffer("scales", scales / _LEVELS)
        self.register_buffer("bias", bias)

    def unpack(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The codes [N, K] and the scales [N] that the layer was made of."""
        return self.codes.to(torch.int8), self.scales * _LEVELS

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features], in the dtype of `x`."""
        unit, row_max = _normalize(x.reshape(-1, x.shape[-1]).to(torch.float32))
        rows = (unit * _LEVELS).round()
        y = _multiply_exactly(rows, self.codes)
        return _restore(y * self.scales, row_max, self.bias, x)


def _multiply_exactly(rows: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """`rows @ codes.T` of small integers held in float32.

    A stretch of columns at a time each sum is exact, so no order of adding shows.
    """
    y = torch.zeros(len(rows), len(codes), dtype=torch.float32, device=rows.device)
    for start in range(0, codes.shape[1], _EXACT_COLUMNS):
        stretch = slice(start, start + _EXACT_COLUMNS)
        y += rows[:, stretch] @ codes[:, stretch].T
    return y


def _normalize(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows [T, in_features] scaled into [-1, 1], and the scales [T, 1]."""
    if is_native(rows):
        return to_unit(rows)
    row_max = rows.abs().amax(dim=1, keepdim=True).clamp_min_(_TINY)
    return rows / row_max, row_max


def _restore(
    y: torch.Tensor, row_max: torch.Tensor, bias: torch.Tensor | None, x: torch.Tensor
) -> torch.Tensor:
    y = y * row_max
    if bias is not None:
        y = y + bias
    return y.reshape(*x.shape[:-1], y.shape[-1]).to(x.dtype)
