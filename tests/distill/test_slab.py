"""Attention side by side is attention one by one."""

from __future__ import annotations

import pytest
import torch

from paceline.distill.slab import SlabAttention, attend_side_by_side
from paceline.engine.lean.attention import CpuAttention
from paceline.engine.lean.cache import StackedCache
from paceline.engine.lean.decoder import HeadShape
from paceline.engine.step import Span, Step

SHAPE = HeadShape(4, 2, 8)
SIZE = 20


def span(block: int, start: int, num_rows: int = 1) -> Span:
    """Rows of a sequence that holds one block."""
    return Span((1,) * num_rows, start, (block,), 1, 2)


@pytest.mark.parametrize("windows", [(None,), (5,)])
def test_slab_is_the_paged_attention(windows: tuple[int | None, ...]) -> None:
    """Each row sees its own sequence up to itself, under a window too, and is stored."""
    step = Step((span(0, 3), span(1, 17), span(2, 0)), SIZE)
    outputs, stored = [], []
    for make in (CpuAttention, SlabAttention):
        torch.manual_seed(0)
        cache = StackedCache(1, SHAPE, 4, SIZE, dtype=torch.float32)
        cache.write(0, torch.arange(4 * SIZE), torch.randn(4 * SIZE, 4, 8))
        heads = torch.randn(3, 8, 8)
        outputs.append(make(step, cache, SHAPE, windows).attend(0, heads))
        stored.append(torch.stack(list(cache.view_run(0, 4 * SIZE))))
    assert torch.allclose(outputs[0], outputs[1], atol=1e-6)
    assert torch.equal(stored[0], stored[1])


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ((span(0, 3), span(1, 5)), SlabAttention),
        ((span(0, 3), span(1, 4, 2)), CpuAttention),
        ((span(1, 3), span(0, 4)), CpuAttention),
    ],
)
def test_only_rows_side_by_side_are_a_slab(spans: tuple[Span, ...], expected: type) -> None:
    """A prompt's rows, or blocks in another order, go to the paged attention."""
    cache = StackedCache(1, SHAPE, 2, SIZE, dtype=torch.float32)
    assert type(attend_side_by_side(Step(spans, SIZE), cache, SHAPE, (None,))) is expected
