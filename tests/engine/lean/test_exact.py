"""Exact kernels: right, and the same bits for a row alone and among others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from paceline.engine import quantization
from paceline.engine.lean.decoder import turn
from paceline.engine.lean.exact import (
    build_exact_gate,
    build_exact_linear,
    describe_numerics,
    has_kernels,
    turn_exactly,
)
from paceline.engine.lean.linear import Matrix

NUM_ROWS = 40
COUNTS = (1, 2, 3, 5, 9, 16, 33)
SIZES = [(96, 64), (33, 40), (64, 1024), (48, 1025), (100, 2000)]

pytestmark = pytest.mark.skipif(
    not has_kernels(is_quantized=False), reason="this machine has no oneDNN"
)


def draw(*size: int, seed: int = 0) -> torch.Tensor:
    """Normal numbers."""
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def make_matrix(num_outputs: int, num_inputs: int, *, is_int8: bool, seed: int = 0) -> Matrix:
    """A random matrix with a bias."""
    weight, bias = draw(num_outputs, num_inputs, seed=seed), draw(num_outputs, seed=seed + 1)
    if not is_int8:
        return Matrix(weight, None, bias)
    scales = weight.abs().amax(dim=1) / 127
    return Matrix((weight / scales[:, None]).round().to(torch.int8), scales, bias)


def assert_rows_stay(compute: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor) -> None:
    """Every row comes out with the same bits, however many are beside it and wherever it stands."""
    expected = compute(rows)
    for count in COUNTS:
        for first in (0, 7):
            part = slice(first, first + count)
            assert torch.equal(expected[part], compute(rows[part].clone())), (count, first)


@pytest.mark.parametrize("is_int8", [False, True], ids=["float32", "int8"])
@pytest.mark.parametrize(("num_outputs", "num_inputs"), SIZES)
def test_linear(num_outputs: int, num_inputs: int, is_int8: bool) -> None:
    """Products and sums are right, and rows do not feel one another, narrow or wide."""
    matrix = make_matrix(num_outputs, num_inputs, is_int8=is_int8)
    linear = build_exact_linear(matrix)
    x, residual = draw(NUM_ROWS, num_inputs, seed=5), draw(NUM_ROWS, num_outputs, seed=6)
    assert_rows_stay(linear, x)
    both = torch.cat([residual, x], dim=1)
    assert_rows_stay(
        lambda rows: linear.add_to(
            rows[:, :num_outputs].contiguous(), rows[:, num_outputs:].contiguous()
        ),
        both,
    )
    assert matrix.bias is not None
    weight = matrix.weight.float()
    weight = weight if matrix.scales is None else weight * matrix.scales[:, None]
    expected = x @ weight.T + matrix.bias
    error = (expected - linear(x)).norm() / expected.norm()
    assert error < (0.02 if is_int8 else 1e-5)
    torch.testing.assert_close(residual + linear(x), linear.add_to(residual, x))


@pytest.mark.parametrize("has_kernel", [True, False], ids=["kernel", "plain"])
@pytest.mark.parametrize(("num_outputs", "num_inputs"), SIZES)
def test_gate(
    monkeypatch: pytest.MonkeyPatch, num_outputs: int, num_inputs: int, has_kernel: bool
) -> None:
    """The activation too: in float32 and in int8, with torch's kernel and without."""
    if not has_kernel:
        monkeypatch.setattr(quantization, "has_packed_kernel", lambda: False)
    x = draw(NUM_ROWS, num_inputs, seed=5)
    for is_int8 in (False, True):
        gate, up = (
            make_matrix(num_outputs, num_inputs, is_int8=is_int8, seed=seed) for seed in (0, 2)
        )
        compute = build_exact_gate(gate, up)
        assert_rows_stay(compute, x)
        expected = F.silu(build_exact_linear(gate)(x)) * build_exact_linear(up)(x)
        torch.testing.assert_close(expected, compute(x), atol=1e-4, rtol=1e-4)


def test_far_gates_are_0_and_not_nan() -> None:
    """Where exp overflows, the gate is shut."""
    one = Matrix(torch.full((1, 1), 127, dtype=torch.int8), torch.ones(1), None)
    compute = build_exact_gate(one, one)
    assert [[-0.0], [127.0**2 * 100]] == compute(torch.tensor([[-1.0], [10.0]])).tolist()


@pytest.mark.parametrize("dim", [6, 16, 40, 64])
def test_rotation(dim: int) -> None:
    """It turns as the fast one does, in place, and leaves what is not turned."""
    heads = draw(NUM_ROWS, 5, dim)
    angles = draw(NUM_ROWS, 1, dim // 2, seed=1)
    turns = torch.polar(torch.full_like(angles, 1.25), angles)

    def compute(rows: torch.Tensor) -> torch.Tensor:
        count = 5 * dim
        turned = rows[:, :count].reshape(-1, 5, dim).clone()
        numbers = rows[:, count:].reshape(-1, 1, dim // 2, 2)
        turn_exactly(turned[:, :3], torch.view_as_complex(numbers.contiguous()))
        return turned

    both = torch.cat([heads.flatten(1), torch.view_as_real(turns).flatten(1)], dim=1)
    assert_rows_stay(compute, both)
    expected = heads.clone()
    turn(expected[:, :3], turns)
    torch.testing.assert_close(expected, compute(both))
    assert torch.equal(heads[:, 3:], compute(both)[:, 3:])


def test_numerics_name_what_decides_the_last_bits() -> None:
    """Torch, the processor and the number of threads; never how many cores it has."""
    text = describe_numerics()
    assert f"torch={torch.__version__}" in text
    assert f"cpu={torch.backends.cpu.get_cpu_capability()}" in text
    assert f"threads={torch.get_num_threads()}" in text
    assert "num_" not in text
