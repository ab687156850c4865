"""Products with matrices of 4-bit or 8-bit codes, in groups that share a scale.

A group is 32 numbers of a row of the matrix, so that a step reads a sixth or a quarter of the
bytes. What is multiplied are the float32 numbers that codes stand for: a few rows of the step turn
them out in registers, many in memory that stays in a core's cache, with the same result. Knows no
layer.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from paceline.engine.native.compiled import choose_by_count, compiled, floats, unsigned_bytes
from paceline.engine.native.panels import build_multiply_panel, most_rows
from paceline.engine.native.tiles import (
    GROUP,
    PANEL,
    VECTORS,
    Tiled,
    Tiles,
    build_multiply_rows,
    build_tiles,
    pack_rows,
)
from paceline.engine.native.vector import (
    load,
    load_nibbles,
    load_signed_bytes,
    multiply_add,
    store,
    zeros,
)

_LEVELS_4 = 15
_LEVELS_8 = 127
_TINY = torch.finfo(torch.float32).tiny


def round_4(weight: torch.Tensor) -> torch.Tensor:
    """The nearest numbers [N, K] that 4-bit codes can tell, K being a multiple of 32."""
    codes, scales, offsets = _encode_4(weight)
    return (codes * scales + offsets).view_as(weight)


def round_8(weight: torch.Tensor) -> torch.Tensor:
    """The nearest numbers [N, K] that 8-bit codes can tell, K being a multiple of 32."""
    codes, scales = _encode_8(weight)
    return (codes * scales).view_as(weight)


def serves(weight: torch.Tensor) -> bool:
    """Whether a matrix [N, K] can be packed."""
    return weight.shape[1] % GROUP == 0


def pack_4(weight: torch.Tensor) -> Tiled:
    """Packs a float32 matrix at 4 bits: a byte holds a column of two rows, 16 rows apart."""
    codes, scales, offsets = _encode_4(weight)
    columns = pack_rows(codes.view_as(weight).to(torch.uint8))
    lower, upper = columns.chunk(2, dim=2)
    memory = lower | (upper << 4), pack_rows(scales[..., 0]), pack_rows(offsets[..., 0])
    first, second, third = (tensor.data_ptr() for tensor in memory)
    return Tiled(_build_4(), memory, (first, second, third), len(weight))


def pack_8(weight: torch.Tensor) -> Tiled:
    """Packs a float32 matrix at 8 bits, signed."""
    codes, scales = _encode_8(weight)
    memory = pack_rows(codes.view_as(weight).to(torch.int8)), pack_rows(scales[..., 0])
    first, second = (tensor.data_ptr() for tensor in memory)
    return Tiled(_build_8(), memory, (first, second, 0), len(weight))


def _encode_4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes [N, K / 32, 32], scales and offsets [N, K / 32, 1], all float32."""
    groups = weight.float().view(len(weight), -1, GROUP)
    least, most = groups.aminmax(dim=2, keepdim=True)
    scales = ((most - least) / _LEVELS_4).clamp_min(_TINY)
    return ((groups - least) / scales).round().clamp_(0, _LEVELS_4), scales, least


def _encode_8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [N, K / 32, 32] and scales [N, K / 32, 1], float32."""
    groups = weight.float().view(len(weight), -1, GROUP)
    scales = (groups.abs().amax(dim=2, keepdim=True) / _LEVELS_8).clamp_min(_TINY)
    return (groups / scales).round(), scales


@functools.cache
def _build_4() -> Tiles:
    return _build(_read_4)


@functools.cache
def _build_8() -> Tiles:
    return _build(_read_8)


def _build(read: Any) -> Tiles:
    most = most_rows()
    multiply_rows = choose_by_count(functools.partial(build_multiply_rows, read), most)
    multiply_floats = build_multiply_panel()

    @compiled()
    def multiply_panel(panel, first, last, operands, sizes):
        if last - first <= most:
            multiply_rows(last - first, panel, first, operands, sizes)
            return
        own = floats(operands[1])
        num_columns = sizes[1]
        for column in range(num_columns):
            store(own, column * PANEL, 0, read(panel, column, operands, num_columns), VECTORS)
        # Where the loop will look for this panel.
        floats_at = operands[1] - 4 * panel * num_columns * PANEL
        multiply_floats(panel, first, last, (operands[0], 0, floats_at, 0, 0, operands[5]), sizes)

    return build_tiles(multiply_panel)


@compiled()
def _read_4(panel, column, operands, num_columns):
    """A column of a panel of 4-bit codes."""
    codes = unsigned_bytes(operands[2] + panel * num_columns * PANEL // 2)
    group = (panel * (num_columns // GROUP) + column // GROUP) * PANEL
    scales, offsets = floats(operands[3]), floats(operands[4])
    return multiply_add(
        load_nibbles(codes, column * PANEL // 2),
        load(scales, group, VECTORS),
        load(offsets, group, VECTORS),
    )


@compiled()
def _read_8(panel, column, operands, num_columns):
    """A column of a panel of 8-bit codes."""
    codes = unsigned_bytes(operands[2] + panel * num_columns * PANEL)
    group = (panel * (num_columns // GROUP) + column // GROUP) * PANEL
    numbers = load_signed_bytes(codes, column * PANEL, VECTORS)
    return multiply_add(numbers, load(floats(operands[3]), group, VECTORS), zeros(VECTORS))
