"""Attention on CUDA: what the kernel is asked for means what is computed without it."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch.nn.attention.varlen import varlen_attn_out

from paceline.bench.paged_reference import attend_plainly
from paceline.engine.attention import CUDA_BLOCK_SIZE
from paceline.engine.lean.decoder import HeadShape
from paceline.engine.lean.packed import PackedRows, PackedShape, pack
from paceline.engine.lean.paged_attention import PagedAttention, PagedCall, attend_flash
from paceline.engine.lean.slot_cache import SlotCache
from paceline.engine.step import Span, Step

SHAPE = HeadShape(4, 2, 8)
SIZE = 4
# (tokens before, rows): a decode, a proposal, a chunk, a first chunk, over scattered blocks.
PARTS = ((13, 1), (9, 5), (2, 18), (0, 6))
TABLES = ((3, 9, 1, 12), (8, 0, 5, 14), (2, 4, 6, 7, 10), (11, 13))
STEP = Step(
    tuple(
        Span((0,) * rows, before, table, rows, 1)
        for (before, rows), table in zip(PARTS, TABLES, strict=True)
    ),
    SIZE,
)
NUM_BLOCKS = 15


def draw(seed: int, *size: int) -> torch.Tensor:
    """Random numbers."""
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


class Setting:
    """Sequences whose last rows make up a step."""

    def __init__(self, shape: PackedShape, like: torch.Tensor) -> None:
        self.heads = [draw(i, before + rows, 8, 8) for i, (before, rows) in enumerate(PARTS)]
        self.cache = SlotCache(1, SHAPE, NUM_BLOCKS, STEP.block_size, like)
        numbers = torch.empty(shape.size, dtype=torch.int64)
        pack(STEP, numbers, shape, self.cache.spare_block)
        self.rows = PackedRows.of(numbers, shape)
        for heads, table, (before, _) in zip(self.heads, TABLES, PARTS, strict=True):
            slots = torch.tensor([table[p // SIZE] * SIZE + p % SIZE for p in range(before)])
            self.cache.write(0, slots.long(), heads[:before, 4:].to(like))

    def step_heads(self, num_rows: int) -> torch.Tensor:
        """Queries, keys and values of the step's rows, filled up with something."""
        found = [heads[before:] for heads, (before, _) in zip(self.heads, PARTS, strict=True)]
        return torch.cat([*found, draw(9, num_rows - STEP.num_rows, 8, 8)])

    def expected(self, window: int | None) -> torch.Tensor:
        """Row by row: softmax over the positions that it may see, [T, Hq * D]."""
        outputs = []
        for heads, (before, rows) in zip(self.heads, PARTS, strict=True):
            for place in range(before, before + rows):
                first = 0 if window is None else max(0, place + 1 - window)
                for head in range(4):
                    key, value = heads[first : place + 1, 4 + head // 2], 6 + head // 2
                    weights = (key @ heads[place, head] / 8**0.5).softmax(0)
                    outputs.append(weights @ heads[first : place + 1, value])
        return torch.stack(outputs).view(-1, 32)


@pytest.mark.parametrize("window", [None, 1, 3, 7, 200])
@pytest.mark.parametrize("surplus", [0, 2], ids=["exact", "filled up"])
def test_rows_see_their_own_sequence(window: int | None, surplus: int) -> None:
    """B51: ragged rows of every kind in one step, query heads by key head, surplus rows or none."""
    count = STEP.num_rows + surplus
    setting = Setting(PackedShape(count, len(PARTS) + surplus, 6), torch.zeros(0))
    attention = PagedAttention(setting.rows, setting.cache, SHAPE, [window], attend_plainly)
    output = attention.attend(0, setting.step_heads(count))
    torch.testing.assert_close(setting.expected(window), output[: STEP.num_rows], atol=1e-5, rtol=0)


@pytest.mark.parametrize(("window", "expected"), [(None, (-1, 0)), (1, (0, 0)), (7, (6, 0))])
def test_the_kernel_is_asked_for_the_same(
    monkeypatch: pytest.MonkeyPatch, window: int | None, expected: tuple[int, int]
) -> None:
    """What it takes in torch's own signature, and nothing that depends on the company."""
    asked: list[dict[str, Any]] = []
    signature = inspect.signature(varlen_attn_out)

    def note(*args: Any, **keywords: Any) -> None:
        asked.append(signature.bind(*args, **keywords).arguments)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn_out", note)
    setting = Setting(PackedShape.of(STEP), torch.zeros(0))
    attention = PagedAttention(setting.rows, setting.cache, SHAPE, [window], attend_flash)
    heads = setting.step_heads(STEP.num_rows)
    attention.attend(0, heads)
    (found,) = asked
    key, value = setting.cache.view_layer(0)
    assert torch.equal(heads[:, :4], found["query"]) and 1 == found["query"].stride(-1)
    assert (key.data_ptr(), value.data_ptr()) == (
        found["key"].data_ptr(),
        found["value"].data_ptr(),
    )
    assert setting.rows.starts is found["cu_seq_q"]
    assert found["cu_seq_k"] is not None, "the kernel takes starts of both or of none"
    assert setting.rows.lengths is found["seqused_k"]
    assert setting.rows.tables is found["block_table"]
    assert (1, True, expected) == tuple(
        found[name] for name in ("num_splits", "enable_gqa", "window_size")
    )
    assert (STEP.num_rows, (NUM_BLOCKS + 1) * SIZE) == (found["max_q"], found["max_k"])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("window", [None, 7, 300])
def test_the_kernel_equals_the_reference(window: int | None) -> None:
    """The kernel itself, in bfloat16: a proposal, a long chunk, a surplus row, an empty one."""
    step = Step((Span((0,) * 5, 3, (2,), 5, 1), Span((0,) * 600, 7, (3, 0, 1), 1, 1)), 256)
    assert CUDA_BLOCK_SIZE == step.block_size
    device, shape, heads = torch.device("cuda"), HeadShape(4, 2, 64), draw(0, 606, 8, 64)
    outputs = []
    for kernel, like in (
        (attend_flash, torch.zeros(0, dtype=torch.bfloat16, device=device)),
        (attend_plainly, torch.zeros(0)),
    ):
        cache = SlotCache(1, shape, 4, step.block_size, like)
        numbers = torch.empty(PackedShape(606, 4, 3).size, dtype=torch.int64)
        pack(step, numbers, PackedShape(606, 4, 3), cache.spare_block)
        rows = PackedRows.of(numbers.to(like.device), PackedShape(606, 4, 3))
        attention = PagedAttention(rows, cache, shape, [window], kernel)
        outputs.append(attention.attend(0, heads.to(like))[:605].float().cpu())
    torch.testing.assert_close(outputs[1], outputs[0], atol=2e-2, rtol=0)


def test_a_call_needs_no_values() -> None:
    """Nothing is looked at on the host: it runs over numbers that are not there."""
    like = torch.zeros(0, dtype=torch.bfloat16, device="meta")
    cache, rows = SlotCache(1, SHAPE, 3, 256, like), PackedShape(5, 5, 3)
    parts = PackedRows.of(torch.empty(rows.size, dtype=torch.int64, device="meta"), rows)
    key, value = cache.view_layer(0)
    output = like.new_empty(5, 4, 8)
    attend_flash(PagedCall(like.new_empty(5, 8, 8)[:, :4], key, value, output, parts, None))
    assert (5, 4, 8) == output.shape
