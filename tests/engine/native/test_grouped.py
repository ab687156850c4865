"""Products with grouped codes: the rounded matrix, whatever the shape, company and threads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from paceline.engine.native import grouped
from paceline.engine.native.tiles import Tiled, multiply

Round = Callable[[torch.Tensor], torch.Tensor]
Pack = Callable[[torch.Tensor], Tiled]

WIDTHS = [
    pytest.param(grouped.round_4, grouped.pack_4, 15, id="4-bit"),
    pytest.param(grouped.round_8, grouped.pack_8, 254, id="8-bit"),
]


def numbers(*size: int, seed: int = 0) -> torch.Tensor:
    """Random numbers."""
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("rounded", "pack", "num_steps"), WIDTHS)
def test_rounding(rounded: Round, pack: Pack, num_steps: int) -> None:
    """At most half a step off within each group, extremes kept, and nothing lost a second time."""
    weight = numbers(48, 96) * torch.logspace(-3, 3, 48)[:, None]
    once = rounded(weight)
    groups = weight.view(48, 3, 32)
    if num_steps == 15:
        span = groups.amax(dim=2, keepdim=True) - groups.amin(dim=2, keepdim=True)
    else:
        span = 2 * groups.abs().amax(dim=2, keepdim=True)
    error = (once.view(48, 3, 32) - groups).abs()
    assert bool((error <= (0.5 + 1e-4) * span / num_steps).all())
    again = (once - rounded(once)).view(48, 3, 32).abs()
    assert bool((again <= 1e-6 * span).all())


def test_equal_numbers_in_a_group() -> None:
    """A group without a span is kept as it is."""
    weight = torch.full((16, 64), 0.3)
    weight[:, 32:] = 0.0
    assert torch.equal(weight, grouped.round_4(weight))
    torch.testing.assert_close(weight, grouped.round_8(weight))


@pytest.mark.parametrize(("rounded", "pack", "num_steps"), WIDTHS)
@pytest.mark.parametrize("num_rows", [1, 2, 3, 5, 8, 12, 13, 16, 31, 150])
@pytest.mark.parametrize(("num_outputs", "num_columns"), [(16, 32), (176, 416)])
def test_product(
    num_threads: int,
    rounded: Round,
    pack: Pack,
    num_steps: int,
    num_rows: int,
    num_outputs: int,
    num_columns: int,
) -> None:
    """The product with the rounded matrix; the larger one is shared among threads."""
    weight = rounded(numbers(num_outputs, num_columns))
    x = numbers(num_rows, num_columns, seed=1)
    expected = (x.double() @ weight.double().T).float()
    torch.testing.assert_close(expected, multiply(x, pack(weight)), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("rounded", "pack", "num_steps"), WIDTHS)
def test_row_is_blind_to_its_company(
    num_threads: int, rounded: Round, pack: Pack, num_steps: int
) -> None:
    """A row's bits are the same alone and among any number of others, on any number of threads."""
    matrix = pack(numbers(176, 416))
    x = numbers(16, 416, seed=1)
    torch.set_num_threads(1)
    alone = torch.cat([multiply(x[row : row + 1], matrix) for row in range(16)])
    torch.set_num_threads(num_threads)
    for count in range(1, 17):
        assert torch.equal(alone[:count], multiply(x[:count], matrix))


@pytest.mark.parametrize(
    ("size", "is_served"), [((16, 32), True), ((7, 64), True), ((16, 48), False)]
)
def test_shapes_that_are_served(size: tuple[int, int], is_served: bool) -> None:
    """Whole groups."""
    assert is_served == grouped.serves(torch.zeros(size))
