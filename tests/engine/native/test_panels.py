"""Products with matrices in panels: right, whatever the shape, company and threads."""

from __future__ import annotations

import pytest
import torch

from paceline.engine.native.panels import pack
from paceline.engine.native.tiles import multiply


def numbers(*size: int, seed: int = 0) -> torch.Tensor:
    """Random numbers."""
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16, 25, 300])
@pytest.mark.parametrize(("num_outputs", "num_columns"), [(1, 7), (64, 48), (200, 416)])
def test_product(num_threads: int, num_rows: int, num_outputs: int, num_columns: int) -> None:
    """The product with the matrix, in whole panels or not; the largest is shared among threads."""
    weight, x = numbers(num_outputs, num_columns), numbers(num_rows, num_columns, seed=1)
    expected = (x.double() @ weight.double().T).float()
    got = multiply(x, pack(weight))
    assert got.is_contiguous()
    torch.testing.assert_close(expected, got, rtol=1e-5, atol=1e-4)


def test_row_is_blind_to_its_company(num_threads: int) -> None:
    """A row's bits are the same alone and among any number of others, on any number of threads."""
    panels = pack(numbers(192, 416))
    x = numbers(300, 416, seed=1)
    torch.set_num_threads(1)
    alone = torch.cat([multiply(x[row : row + 1], panels) for row in range(300)])
    torch.set_num_threads(num_threads)
    for count in (*range(1, 26), 150, 300):
        assert torch.equal(alone[:count], multiply(x[:count], panels))
