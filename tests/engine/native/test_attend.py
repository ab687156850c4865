"""Attention: scattered slots, rows that follow one another, shared key heads, and threads."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

from paceline.engine.native import attend
from paceline.engine.native.attend import Seen

NUM_SLOTS = 700


def plan(spans: list[tuple[int, list[tuple[int, int]]]], window: int = 0) -> Seen:
    """Sequences (number of rows, runs of slots) as a step would have them."""
    rows: list[tuple[int, ...]] = []
    runs: list[tuple[int, int]] = []
    row = 0
    for num_rows, found in spans:
        length = sum(last - first for first, last in found)
        rows.append((row, num_rows, length - num_rows, len(runs), len(runs) + len(found)))
        runs += found
        row += num_rows
    longest = sum(last - first for first, last in runs)
    return Seen(torch.tensor(rows), torch.tensor(runs), window, row * longest, longest)


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "dim"), [(6, 2, 16), (4, 4, 64), (3, 1, 80)])
@pytest.mark.parametrize("window", [0, 6])
def test_rows_attend_to_their_runs(
    num_threads: int, num_heads: int, num_kv_heads: int, dim: int, window: int
) -> None:
    """Against stock attention, row by row. Enough keys for sharing."""
    generator = torch.Generator().manual_seed(0)
    spans = [
        (1, [(0, 1)]),
        (5, [(600, 640), (3, 5), (100, 108)]),
        (1, [(0, 700)]),
        (9, [(7, 400)]),
    ]
    heads = torch.randn(16, num_heads + 2 * num_kv_heads, dim, generator=generator)
    keys, values = (torch.randn(num_kv_heads, NUM_SLOTS, dim, generator=generator) for _ in "kv")
    output = torch.empty(16, num_heads, dim)
    attend.attend(heads, keys, values, plan(spans, window), output)
    row = 0
    for num_rows, runs in spans:
        slots = torch.cat([torch.arange(*run) for run in runs])
        for last in range(len(slots) - num_rows + 1, len(slots) + 1):
            seen = slots[max(0, last - window) if window else 0 : last]
            queries = heads[row, :num_heads].view(-1, num_kv_heads, dim).transpose(0, 1)
            expected = F.scaled_dot_product_attention(queries, keys[:, seen], values[:, seen])
            got = output[row].view(-1, num_kv_heads, dim).transpose(0, 1)
            torch.testing.assert_close(expected, got)
            row += 1


@pytest.mark.parametrize("num_before", [1, 40])
def test_large_scores(num_before: int) -> None:
    """Scores far from zero neither overflow nor lose what they differ by."""
    num_keys = num_before + 2
    keys, values = torch.zeros(1, num_keys, 16), torch.zeros(1, num_keys, 16)
    keys[0, :, 0] = torch.tensor([*[-1e4] * num_before, 356, 359])  # scores -2500, 89 and 89.75
    values[0, -2:] = torch.tensor([[1.0], [2.0]])
    heads = torch.ones(1, 3, 16)
    output = torch.empty(1, 1, 16)
    attend.attend(heads, keys, values, plan([(1, [(0, num_keys)])]), output)
    expected = 1 + torch.sigmoid(torch.tensor(0.75))
    torch.testing.assert_close(expected.expand(1, 1, 16), output, rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    ("dim", "is_served"),
    [(16, True), (80, True), (256, True), (8, False), (72, False), (512, False)],
)
def test_sizes_that_are_served(dim: int, is_served: bool) -> None:
    """Whole vectors only."""
    assert is_served == attend.serves(dim)


def test_a_score_does_not_depend_on_how_many_keys_are_taken_at_once() -> None:
    """Keys are taken by sixteen, wherever a stretch begins; no bit may tell."""
    generator = torch.Generator().manual_seed(1)
    heads = torch.randn(1, 3, 64, generator=generator)
    keys, values = (torch.randn(1, NUM_SLOTS, 64, generator=generator) for _ in "kv")
    outputs = []
    for cuts in ((0, 100), (0, 1, 100), (0, 15, 32, 100), (0, 16, 31, 33, 100)):
        runs = list(itertools.pairwise(cuts))
        output = torch.empty(1, 1, 64)
        attend.attend(heads, keys, values, plan([(1, runs)]), output)
        outputs.append(output)
    assert all(torch.equal(outputs[0], output) for output in outputs)
