"""Matrices of the lean decoder in 4 bits, the head's in 8.

The weights come rounded already (`quantization.round_int4_per_group`), so codes lose nothing. Knows
no network.
"""

from __future__ import annotations

import torch

from paceline.engine.lean.linear import Linear, Matrix, TiledLinear, build_linear
from paceline.engine.native import grouped


def build_grouped_linear(matrix: Matrix) -> Linear:
    """Keeps a rounded matrix at 4 bits, where its shape and type let it."""
    if not _is_packable(matrix):
        return build_linear(matrix)
    return TiledLinear(grouped.pack_4(matrix.weight), matrix.bias)


def build_grouped_head(matrix: Matrix) -> Linear:
    """Keeps a rounded matrix at 8 bits, where its shape and type let it."""
    if not _is_packable(matrix):
        return build_linear(matrix)
    return TiledLinear(grouped.pack_8(matrix.weight), matrix.bias)


def _is_packable(matrix: Matrix) -> bool:
    return matrix.weight.dtype == torch.float32 and grouped.serves(matrix.weight)
