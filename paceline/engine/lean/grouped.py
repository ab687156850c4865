"""Matrices of the lean decoder in 4 bits, the head's in 8.

The weights come rounded already (`quantization.round_int4_per_group`), so codes lose nothing. Knows
no network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from paceline.engine.lean.cache import StackedCache
from paceline.engine.lean.decoder import Decoder, Layer
from paceline.engine.lean.linear import FusedGate, Gate, Linear, Matrix, build_linear
from paceline.engine.native import attend, grouped
from paceline.engine.native.grouped import Grouped
from paceline.engine.native.layers import NativeLayer, NativeLayers, Product


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


def build_native_layers(decoder: Decoder, cache: StackedCache) -> NativeLayers | None:
    """The layers as one compiled call; None where a matrix is not at 4 bits, or windows differ."""
    if len(set(decoder.windows)) > 1 or not attend.serves(decoder.shape.dim):
        return None
    layers = [_take_layer(layer) for layer in decoder.layers]
    found = [layer for layer in layers if layer is not None]
    if len(found) < len(layers):
        return None
    return NativeLayers(
        found,
        [cache.view_layer(index) for index in range(len(layers))],
        num_heads=decoder.shape.num_heads,
        epsilon=decoder.epsilon,
    )


def _take_layer(layer: Layer) -> NativeLayer | None:
    gate_up = layer.gate.gate_up if isinstance(layer.gate, FusedGate) else layer.gate
    products = [
        Product(matrix.weight, matrix.bias)
        for matrix in (layer.qkv, layer.output, gate_up, layer.down)
        if isinstance(matrix, GroupedLinear) and matrix.weight.offsets is not None
    ]
    if len(products) < 4:
        return None
    qkv, output, gate_and_up, down = products
    return NativeLayer(
        layer.attention_norm, qkv, layer.head_norm, output, layer.mlp_norm, gate_and_up, down
    )


def _is_packable(matrix: Matrix) -> bool:
    return matrix.weight.dtype == torch.float32 and grouped.serves(matrix.weight)
