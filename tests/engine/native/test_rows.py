"""Loops over rows against stock operations, and blind to the rows beside them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from paceline.engine.native import rows

SIZES = [1, 7, 64, 576]


def numbers(*size: int, seed: int = 0) -> torch.Tensor:
    """Random numbers."""
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def test_exponential() -> None:
    """Two units in the last place from -87 to 0, 1 at 0, and next to nothing below."""
    x = np.linspace(-87, 0, 20_001, dtype=np.float32)
    got = np.array([rows.exponential(value) for value in x], dtype=np.float64)
    exact = np.exp(x.astype(np.float64))
    assert np.max(np.abs(got / exact - 1)) < 2 * np.finfo(np.float32).eps
    assert 1.0 == rows.exponential(np.float32(0))
    assert 0 <= rows.exponential(np.float32(-np.inf)) < 1e-37
    assert math.isclose(math.e, rows.exponential(np.float32(1)), rel_tol=1e-6)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("epsilon", [1e-5, 0.5])
def test_normalize(size: int, epsilon: float) -> None:
    """Each row by its own mean square, times the weight."""
    x, weight = numbers(5, size), numbers(size, seed=1)
    expected = F.rms_norm(x, (size,), weight, epsilon)
    torch.testing.assert_close(expected, rows.normalize(x, weight, epsilon))


@pytest.mark.parametrize("size", SIZES)
def test_gate(size: int) -> None:
    """The first half of a row, through silu, times the second."""
    x = 10 * numbers(5, 2 * size)
    gate, up = x.chunk(2, dim=1)
    torch.testing.assert_close(F.silu(gate) * up, rows.gate(x))


@pytest.mark.parametrize("dim", [2, 16, 64])
def test_turn(dim: int) -> None:
    """Adjacent pairs as complex numbers; heads behind the first ones stay."""
    heads, turns = numbers(5, 6, dim), torch.view_as_complex(numbers(5, 1, dim // 2, 2, seed=1))
    expected = heads.clone()
    pairs = torch.view_as_complex(heads[:, :4].reshape(5, 4, -1, 2)) * turns
    expected[:, :4] = torch.view_as_real(pairs).flatten(2)
    rows.turn(heads[:, :4], turns)
    torch.testing.assert_close(expected, heads)


@pytest.mark.parametrize("size", SIZES)
def test_to_unit(size: int) -> None:
    """The largest number of a row becomes 1 in size; a row of zeros stays one."""
    x = numbers(5, size) * torch.logspace(-3, 3, 5)[:, None]
    x[2] = 0
    unit, row_max = rows.to_unit(x)
    assert torch.equal(x.abs().amax(dim=1)[[0, 1, 3, 4]], row_max[[0, 1, 3, 4], 0])
    assert torch.equal(x / row_max, unit)
    assert torch.equal(torch.zeros(size), unit[2])


def test_store_heads() -> None:
    """Keys and values of each row lie in its slot, and nothing else is touched."""
    heads = numbers(3, 7, 16)
    keys, values = torch.full((2, 9, 16), 5.0), torch.full((2, 9, 16), 6.0)
    expected_keys, expected_values = keys.clone(), values.clone()
    slots = [8, 0, 4]
    for row, slot in enumerate(slots):
        expected_keys[:, slot], expected_values[:, slot] = heads[row, 3:5], heads[row, 5:]
    rows.store_heads(heads[:, 3:], keys, values, torch.tensor(slots))
    assert torch.equal(expected_keys, keys)
    assert torch.equal(expected_values, values)


@pytest.mark.parametrize(
    "loop",
    [
        lambda x: rows.normalize(x, x[0], 1e-5),
        rows.gate,
        lambda x: rows.to_unit(x)[0],
    ],
)
def test_rows_are_blind_to_their_company(loop: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """A row alone has the bits that it has among others."""
    x = numbers(9, 578)
    x[0] = 1.0
    together = loop(x)
    for row in range(1, 9):
        alone = torch.cat((x[:1], x[row : row + 1]))
        assert torch.equal(together[row], loop(alone)[1])
