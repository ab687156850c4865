"""Which decoders' layers run as one compiled call.

Those whose matrices all lie in tiles of one layout: float32 in panels, or 4-bit codes.
Knows no step.
"""

from __future__ import annotations

import torch

from paceline.engine.lean.cache import StackedCache
from paceline.engine.lean.decoder import Decoder, Layer
from paceline.engine.lean.linear import TiledLinear
from paceline.engine.native import attend
from paceline.engine.native.layers import NativeLayer, NativeLayers, Product


def build_native_layers(decoder: Decoder, cache: StackedCache) -> NativeLayers | None:
    """The layers over a cache; None where a matrix lies otherwise, or windows differ."""
    is_float32 = decoder.embedding.dtype == torch.float32
    if len(set(decoder.windows)) > 1 or not (is_float32 and attend.serves(decoder.shape.dim)):
        return None
    layers = [_take_layer(layer) for layer in decoder.layers]
    found = [layer for layer in layers if layer is not None]
    if len(found) < len(layers) or len({layer.qkv.matrix.tiles for layer in found}) > 1:
        return None
    return NativeLayers(
        found,
        [cache.view_layer(index) for index in range(len(layers))],
        num_heads=decoder.shape.num_heads,
        epsilon=decoder.epsilon,
    )


def _take_layer(layer: Layer) -> NativeLayer | None:
    products = [
        Product(linear.tiled, linear.bias)
        for linear in (layer.qkv, layer.output, layer.gate.gate_up, layer.down)
        if isinstance(linear, TiledLinear) and linear.tiled.is_whole
    ]
    if len(products) < 4 or len({product.matrix.tiles for product in products}) > 1:
        return None
    qkv, output, gate_up, down = products
    return NativeLayer(
        layer.attention_norm, qkv, layer.head_norm, output, layer.mlp_norm, gate_up, down
    )
