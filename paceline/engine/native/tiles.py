"""Products with a matrix that lies in panels of 32 rows, whatever a panel is made of.

A thread takes some panels and all rows of the step. Each of the step's rows is summed column after
column, so a result does not depend on the other rows, however many there are. Knows no layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import torch

from paceline.engine.native.compiled import compiled, find_num_shares, floats, share_of
from paceline.engine.native.emit import LANES
from paceline.engine.native.vector import add_outer, store, zeros

VECTORS = 2
PANEL = VECTORS * LANES
"""Rows of the matrix that are computed side by side."""
GROUP = 32
"""Columns of a row that may share a scale."""
_SLAB = 144
"""Rows of the step that meet all panels before others do: as many as a core's cache holds."""
_SHARED_PRODUCTS = 1 << 18
"""From this many products on, a matrix is shared among threads: that costs 10 us."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """The loops of a layout."""

    share: Any
    """(team, operands, sizes): a thread's share of the panels; team is (share, number of shares).
    Operands are the addresses of x, of a panel's worth of numbers of the thread's own, of the
    matrix (three) and of the output; sizes the numbers of rows, columns and outputs."""
    shared: Any
    """(number of shares, operands, sizes): everything, by several threads."""


@dataclass(frozen=True, slots=True)
class Tiled:
    """A matrix [N, K] in a layout."""

    tiles: Tiles
    memory: tuple[torch.Tensor, ...]
    addresses: tuple[int, int, int]
    """Of what the loops read; 0 for what there is not."""
    num_rows: int
    """N."""

    @property
    def is_whole(self) -> bool:
        """Whether N rows fill their panels."""
        return self.num_rows % PANEL == 0


def multiply(x: torch.Tensor, matrix: Tiled) -> torch.Tensor:
    """Float32 x [T, K] -> x @ matrix.T [T, N]."""
    num_rows, num_columns = x.shape
    num_outputs = -(-matrix.num_rows // PANEL) * PANEL
    output = x.new_empty((num_rows, num_outputs))
    num_products = num_rows * num_columns * num_outputs
    num_shares = find_num_shares() if num_products >= _SHARED_PRODUCTS else 1
    scratch = x.new_empty((num_shares, num_columns, PANEL))
    operands = x.data_ptr(), scratch.data_ptr(), *matrix.addresses, output.data_ptr()
    sizes = num_rows, num_columns, num_outputs
    if num_shares > 1:
        matrix.tiles.shared(num_shares, operands, sizes)
    else:
        matrix.tiles.share((0, 1), operands, sizes)
    return output if matrix.is_whole else output[:, : matrix.num_rows].contiguous()


def pack_rows(numbers: torch.Tensor) -> torch.Tensor:
    """[N, K] -> [N / 32, K, 32], filled up with zeros."""
    num_rows, num_columns = numbers.shape
    num_full = num_rows // PANEL
    panels = numbers.new_zeros((-(-num_rows // PANEL), num_columns, PANEL))
    full = numbers[: num_full * PANEL].reshape(num_full, PANEL, num_columns)
    panels[:num_full] = full.transpose(1, 2)
    panels[num_full:, :, : num_rows % PANEL] = numbers[num_full * PANEL :].T
    return panels


def build_multiply_rows(read: Any, count: int) -> Any:
    """The loop over one panel for `count` rows of the step.

    Args:
        read: (panel, column, operands, number of columns): a column of a panel, as two vectors.
        count: Rows whose sums are held in registers.
    """
    num_vectors = count * VECTORS

    @compiled()
    def multiply_rows(panel, row, operands, sizes):
        _, num_columns, num_outputs = sizes
        x = floats(operands[0] + 4 * row * num_columns)
        total = zeros(num_vectors)
        # By groups, so that what a group shares is read once.
        for first in range(0, num_columns, GROUP):
            for column in range(first, min(first + GROUP, num_columns)):
                vectors = read(panel, column, operands, num_columns)
                total = add_outer(total, vectors, x, column, num_columns)
        output = floats(operands[5] + 4 * (row * num_outputs + panel * PANEL))
        store(output, 0, num_outputs, total, VECTORS)

    return multiply_rows


def build_tiles(multiply_panel: Any) -> Tiles:
    """The loops of a layout from that over one panel.

    Args:
        multiply_panel: (panel, first, last, operands, sizes): rows first .. last - 1 of the step.
    """

    @compiled()
    def multiply_share(team, operands, sizes):
        num_rows = sizes[0]
        first_panel, last_panel = share_of(*team, sizes[2] // PANEL)
        for first in range(0, num_rows, _SLAB):
            last = min(first + _SLAB, num_rows)
            for panel in range(first_panel, last_panel):
                multiply_panel(panel, first, last, operands, sizes)

    @compiled(parallel=True)
    def multiply_shared(num_shares, operands, sizes):
        x_at, scratch_at, first_at, second_at, third_at, output_at = operands
        for share in numba.prange(num_shares):
            own_at = scratch_at + 4 * share * sizes[1] * PANEL
            own = x_at, own_at, first_at, second_at, third_at, output_at
            multiply_share((share, num_shares), own, sizes)

    return Tiles(multiply_share, multiply_shared)
