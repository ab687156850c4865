"""Products with matrices of 4-bit or 8-bit codes, in groups that share a scale.

A group is 32 numbers of a row of the matrix. Its codes are multiplied with float32 numbers as they
are and scaled once per group, so that a step reads a sixth or a quarter of the bytes. Sixteen rows
of the matrix lie side by side, and are one vector. A result does not depend on the other rows of
the step: each is summed in the same order, however many there are. Knows no layer.
"""

from __future__ import annotations

import functools
from typing import Any

import numba
import numpy as np
import torch

from paceline.engine.native.compiled import (
    compiled,
    find_num_shares,
    floats,
    share_of,
    unsigned_bytes,
)
from paceline.engine.native.vector import (
    LANES,
    add_outer,
    add_scaled,
    high_nibbles,
    load,
    load_bytes,
    low_nibbles,
    signed_bytes,
    store,
    zeros,
)

GROUP = 32
_LEVELS_4 = 15
_LEVELS_8 = 127
_TINY = torch.finfo(torch.float32).tiny
_SHARED_PRODUCTS = 1 << 18
"""From this many products on, a matrix is shared among threads: that costs 10 us."""


class Grouped:
    """A matrix [N, K]; tiles of 16 rows, in each the columns in order, in each the rows."""

    def __init__(
        self, codes: torch.Tensor, scales: torch.Tensor, offsets: torch.Tensor | None, num_rows: int
    ) -> None:
        """Keeps codes and scales.

        Args:
            codes: Uint8. Of 4 bits two columns are in a byte, the even one below; of 8 bits one,
                signed.
            scales: Float32 [N / 16, K / 32, 16].
            offsets: The same: what code 0 is worth; None for signed codes, whose 0 is 0.
            num_rows: N.
        """
        self.codes = codes
        self.scales = scales
        self.offsets = offsets
        self.num_rows = num_rows
        # Asked for at every product.
        self.addresses = (
            codes.data_ptr(),
            scales.data_ptr(),
            0 if offsets is None else offsets.data_ptr(),
        )


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
    return weight.shape[0] % LANES == 0 and weight.shape[1] % GROUP == 0


def pack_4(weight: torch.Tensor) -> Grouped:
    """Packs a float32 matrix at 4 bits; see `serves`."""
    codes, scales, offsets = _encode_4(weight)
    columns = _tile(codes.view_as(weight).to(torch.uint8))
    packed = columns[:, 0::2] | (columns[:, 1::2] << 4)
    return Grouped(packed, _tile(scales[..., 0]), _tile(offsets[..., 0]), len(weight))


def pack_8(weight: torch.Tensor) -> Grouped:
    """Packs a float32 matrix at 8 bits; see `serves`."""
    codes, scales = _encode_8(weight)
    columns = _tile(codes.view_as(weight).to(torch.int8))
    return Grouped(columns.view(torch.uint8), _tile(scales[..., 0]), None, len(weight))


def multiply(x: torch.Tensor, matrix: Grouped) -> torch.Tensor:
    """Float32 x [T, K] -> x @ matrix.T [T, N]."""
    num_rows, num_columns = x.shape
    output = x.new_empty((num_rows, matrix.num_rows))
    sums = x.new_empty((num_rows, num_columns // GROUP))
    num_products = num_rows * matrix.num_rows * num_columns
    num_shares = find_num_shares() if num_products >= _SHARED_PRODUCTS else 1
    run = (_build_8 if matrix.offsets is None else _build_4)()[num_shares > 1]
    operands = x.data_ptr(), sums.data_ptr(), *matrix.addresses, output.data_ptr()
    run(num_shares, operands, (num_rows, num_columns, matrix.num_rows))
    return output


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


def _tile(numbers: torch.Tensor) -> torch.Tensor:
    """[N, C] -> [N / 16, C, 16]."""
    return numbers.reshape(-1, LANES, numbers.shape[1]).transpose(1, 2).contiguous()


@compiled()
def sum_groups(x, sums, count):
    """The sums of so many groups of numbers that lie one after the other."""
    for group in range(count):
        total = np.float32(0)
        for i in range(group * GROUP, (group + 1) * GROUP):
            total += x[i]
        sums[group] = total


@functools.cache
def _build_4() -> tuple[Any, Any]:
    """The loops for 4-bit codes: over some tiles, and over shares of all."""
    return _build(build_multiply_tiles_4())


@functools.cache
def _build_8() -> tuple[Any, Any]:
    """The loops for 8-bit codes."""
    return _build(_build_tiles(_load_columns_8, has_offsets=False))


@functools.cache
def build_multiply_tiles_4() -> Any:
    """The loop over some tiles of 4-bit codes."""
    return _build_tiles(_load_columns_4, has_offsets=True)


def _build(multiply_tiles: Any) -> tuple[Any, Any]:
    @compiled()
    def multiply_alone(num_shares, operands, sizes):
        sum_groups(floats(operands[0]), floats(operands[1]), sizes[0] * sizes[1] // GROUP)
        multiply_tiles(0, sizes[2] // LANES, operands, sizes)

    @compiled(parallel=True)
    def multiply_shared(num_shares, operands, sizes):
        sum_groups(floats(operands[0]), floats(operands[1]), sizes[0] * sizes[1] // GROUP)
        for share in numba.prange(num_shares):
            first, last = share_of(share, num_shares, sizes[2] // LANES)
            multiply_tiles(first, last, operands, sizes)

    return multiply_alone, multiply_shared


def _build_tiles(load_columns: Any, *, has_offsets: bool) -> Any:
    """The loop over some tiles, the step's rows in the fewest parts of up to six."""
    one, two, three, four, five, six = (
        _build_tile(count, load_columns, has_offsets=has_offsets) for count in range(1, 7)
    )

    @compiled()
    def multiply_tiles(first, last, operands, sizes):
        num_rows = sizes[0]
        for tile in range(first, last):
            row = 0
            while num_rows - row > 8:
                six(tile, row, operands, sizes)
                row += 6
            if num_rows - row > 6:
                four(tile, row, operands, sizes)
                row += 4
            if num_rows - row == 6:
                six(tile, row, operands, sizes)
            elif num_rows - row == 5:
                five(tile, row, operands, sizes)
            elif num_rows - row == 4:
                four(tile, row, operands, sizes)
            elif num_rows - row == 3:
                three(tile, row, operands, sizes)
            elif num_rows - row == 2:
                two(tile, row, operands, sizes)
            elif num_rows - row == 1:
                one(tile, row, operands, sizes)

    return multiply_tiles


def _build_tile(count: int, load_columns: Any, *, has_offsets: bool) -> Any:
    """The loop over one tile and `count` rows of the step.

    It adds up four columns at a time, each for itself: sums that wait for one another are slow.
    """

    @compiled()
    def multiply_tile(tile, row, operands, sizes):
        x_at, sums_at, codes_at, scales_at, offsets_at, output_at = operands
        _, num_columns, num_outputs = sizes
        num_groups = num_columns // GROUP
        x = floats(x_at + 4 * row * num_columns)
        sums = floats(sums_at + 4 * row * num_groups)
        scales = floats(scales_at + 4 * tile * num_groups * LANES)
        offsets = floats(offsets_at + 4 * tile * num_groups * LANES)
        codes = unsigned_bytes(codes_at)
        total = zeros(count)
        for group in range(num_groups):
            a, b, c, d = zeros(count), zeros(count), zeros(count), zeros(count)
            for column in range(group * GROUP, (group + 1) * GROUP, 4):
                first, second, third, fourth = load_columns(codes, tile * num_columns + column)
                a = add_outer(a, first, x, column, num_columns)
                b = add_outer(b, second, x, column + 1, num_columns)
                c = add_outer(c, third, x, column + 2, num_columns)
                d = add_outer(d, fourth, x, column + 3, num_columns)
            scale = load(scales, group * LANES, 1)
            total = add_scaled(total, scale, a, b)
            total = add_scaled(total, scale, c, d)
            if has_offsets:
                total = add_outer(total, load(offsets, group * LANES, 1), sums, group, num_groups)
        store(floats(output_at + 4 * (row * num_outputs + tile * LANES)), 0, num_outputs, total)

    return multiply_tile


@compiled()
def _load_columns_4(codes, column):
    """Four columns of 4-bit codes, of all columns of all tiles."""
    code = column * (LANES // 2)
    lower, upper = load_bytes(codes, code), load_bytes(codes, code + LANES)
    return low_nibbles(lower), high_nibbles(lower), low_nibbles(upper), high_nibbles(upper)


@compiled()
def _load_columns_8(codes, column):
    """Four columns of 8-bit codes, of all columns of all tiles."""
    code = column * LANES
    return (
        signed_bytes(load_bytes(codes, code)),
        signed_bytes(load_bytes(codes, code + LANES)),
        signed_bytes(load_bytes(codes, code + 2 * LANES)),
        signed_bytes(load_bytes(codes, code + 3 * LANES)),
    )
