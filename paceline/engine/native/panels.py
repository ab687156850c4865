"""Products with float32 matrices, whose panels hold column after column.

So a step of a few rows reads the weights once, in order, and asks for them ahead of time; and a
step of many is as fast as any library's. Knows no layer.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from paceline.engine.native.compiled import choose_by_count, compiled, floats, share_of
from paceline.engine.native.tiles import (
    PANEL,
    VECTORS,
    Tiled,
    Tiles,
    build_multiply_rows,
    build_tiles,
    pack_rows,
)
from paceline.engine.native.vector import load, prefetch

_AHEAD = 64
"""Columns ahead of its use that a weight is asked for: memory takes that long."""


def pack(weight: torch.Tensor) -> Tiled:
    """Packs a float32 matrix [N, K]."""
    panels = pack_rows(weight)
    return Tiled(_build(), (panels,), (panels.data_ptr(), 0, 0), len(weight))


def most_rows() -> int:
    """Rows of the step whose sums stay in registers, 16 of the 32 of AVX-512 or 12 of 16.

    Twelve rows would be no faster, and take half as long again to compile.
    """
    return 8 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 3


@functools.cache
def _build() -> Tiles:
    return build_tiles(build_multiply_panel())


@functools.cache
def build_multiply_panel() -> Any:
    """The loop over one panel; see `build_tiles`."""
    most = most_rows()
    multiply_rows = choose_by_count(functools.partial(build_multiply_rows, _read), most)

    @compiled()
    def multiply_panel(panel, first, last, operands, sizes):
        num_parts = (last - first + most - 1) // most
        for part in range(num_parts):
            begin, end = share_of(part, num_parts, last - first)
            multiply_rows(end - begin, panel, first + begin, operands, sizes)

    return multiply_panel


@compiled()
def _read(panel, column, operands, num_columns):
    """A column of a panel; asks for one that comes later."""
    weights = floats(operands[2] + 4 * panel * num_columns * PANEL)
    prefetch(weights, (column + _AHEAD) * PANEL, VECTORS)
    return load(weights, column * PANEL, VECTORS)
