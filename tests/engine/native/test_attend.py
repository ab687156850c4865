"""Attention of single rows: scattered slots, shared key heads, one thread and two."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from paceline.engine.native import attend
from paceline.engine.native.attend import SingleRows

NUM_SLOTS = 700


def plan(rows: list[tuple[int, list[tuple[int, int]]]]) -> SingleRows:
    """Rows (index, runs of slots) as a step would have them."""
    runs = [run for _, found in rows for run in found]
    places, first = [], 0
    for index, found in rows:
        places.append((index, first, first + len(found)))
        first += len(found)
    counts = [sum(last - start for start, last in found) for _, found in rows]
    return SingleRows(torch.tensor(places), torch.tensor(runs), sum(counts), max(counts))


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "dim"), [(6, 2, 16), (4, 4, 64), (3, 1, 80)])
def test_rows_attend_to_their_runs(
    num_threads: int, num_heads: int, num_kv_heads: int, dim: int
) -> None:
    """Against stock attention; rows that are not named are left alone. Enough keys for sharing."""
    generator = torch.Generator().manual_seed(0)
    heads = torch.randn(5, num_heads + 2 * num_kv_heads, dim, generator=generator)
    keys, values = (torch.randn(num_kv_heads, NUM_SLOTS, dim, generator=generator) for _ in "kv")
    rows = [
        (4, [(0, 1)]),
        (0, [(600, 640), (3, 5), (100, 108)]),
        (2, [(0, 700)]),
        (3, [(7, 400)]),
    ]
    output = torch.full((5, num_heads, dim), 9.0)
    attend.attend(heads, keys, values, plan(rows), output)
    for index, runs in rows:
        slots = torch.cat([torch.arange(*run) for run in runs])
        queries = heads[index, :num_heads].view(-1, num_kv_heads, dim).transpose(0, 1)
        expected = F.scaled_dot_product_attention(queries, keys[:, slots], values[:, slots])
        got = output[index].view(-1, num_kv_heads, dim).transpose(0, 1)
        torch.testing.assert_close(expected, got)
    assert torch.equal(torch.full((num_heads, dim), 9.0), output[1])


def test_large_scores() -> None:
    """Scores far from zero neither overflow nor lose what they differ by."""
    keys = torch.zeros(1, 3, 16)
    keys[0, :, 0] = torch.tensor([-1e4, 356, 359])  # scores -2500, 89 and 89.75
    values = torch.arange(3.0).view(1, 3, 1).expand(1, 3, 16).contiguous()
    heads = torch.ones(1, 3, 16)
    output = torch.empty(1, 1, 16)
    attend.attend(heads, keys, values, plan([(0, [(0, 3)])]), output)
    expected = 1 + torch.sigmoid(torch.tensor(0.75))
    torch.testing.assert_close(expected.expand(1, 1, 16), output, rtol=1e-4, atol=0)


@pytest.mark.parametrize(("dim", "is_served"), [(16, True), (80, True), (8, False), (72, False)])
def test_sizes_that_are_served(dim: int, is_served: bool) -> None:
    """Whole vectors only."""
    assert is_served == attend.serves(dim)
