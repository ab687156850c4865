"""The memory plan's arithmetic, at and beside the point where one sequence just fits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.engine.memory_plan import ModelSize, kv_bytes_per_token, plan_memory
from paceline.errors import Exhausted, InvalidArgument

SIZE = ModelSize(weights_bytes=1000, kv_bytes_per_token=8, workspace_bytes_per_row=10)
NUMBERS = {"total_bytes": 10_000, "block_size": 16, "max_rows": 20, "max_length": 100}
JUST_ENOUGH = 1000 + 20 * 10 + 7 * 16 * 8
"""Weights, workspace, and the 7 blocks that 100 tokens need."""


def test_kv_bytes_of_a_real_model() -> None:
    """30 layers of 3 heads of 64, keys and values, in float32: 46,080 bytes a token."""
    assert 46_080 == kv_bytes_per_token(num_layers=30, num_kv_heads=3, head_dim=64, itemsize=4)


def test_budget_is_divided_and_never_passed() -> None:
    """B89: weights and workspace first, the rest in whole blocks, within the budget."""
    plan = plan_memory(SIZE, **NUMBERS)
    assert (1000, 200, 128) == (plan.weights_bytes, plan.workspace_bytes, plan.block_bytes)
    assert (10_000 - 1200) // 128 == plan.num_blocks
    assert 16 * plan.num_blocks == plan.num_tokens
    used = plan.weights_bytes + plan.workspace_bytes + plan.num_blocks * plan.block_bytes
    assert 0 <= plan.total_bytes - used < plan.block_bytes


def test_one_sequence_just_fits() -> None:
    """B89: exactly enough for one longest sequence is enough."""
    plan = plan_memory(SIZE, **{**NUMBERS, "total_bytes": JUST_ENOUGH})
    assert 7 == plan.num_blocks


def test_one_byte_less_is_refused_with_the_numbers() -> None:
    """B89: a budget for no whole sequence is refused, and the message says what it would take."""
    with pytest.raises(Exhausted, match="too small: weights") as caught:
        plan_memory(SIZE, **{**NUMBERS, "total_bytes": JUST_ENOUGH - 1})
    assert "MEMORY_BUDGET_TOO_SMALL" == caught.value.reason
    assert str(JUST_ENOUGH) == caught.value.metadata["needed_bytes"]


def test_weights_alone_beyond_the_budget() -> None:
    """B89: weights larger than the budget are refused by the same message."""
    with pytest.raises(Exhausted) as caught:
        plan_memory(replace(SIZE, weights_bytes=50_000), **NUMBERS)
    assert str(50_000 + 200 + 896) == caught.value.metadata["needed_bytes"]


@pytest.mark.parametrize("field", list(NUMBERS))
@pytest.mark.parametrize("value", [0, -1])
def test_numbers_must_be_positive(field: str, value: int) -> None:
    """A number that is not positive is named."""
    with pytest.raises(InvalidArgument) as caught:
        plan_memory(SIZE, **{**NUMBERS, field: value})
    assert field == caught.value.field


def test_description_names_each_part() -> None:
    """B90: what is printed at start says how the memory divides, in MiB."""
    size = ModelSize(512 << 20, 46_080, 1 << 20)
    text = plan_memory(
        size, total_bytes=2 << 30, block_size=16, max_rows=64, max_length=8192
    ).describe()
    for part in ("2048.0 MiB in all", "weights    512.0 MiB", "workspace  64.0 MiB", "16 tokens"):
        assert part in text
    assert 5 == len(text.splitlines())
