"""Attention of single rows over keys and values that lie in slots.

Keys are read straight from where they lie, so that blocks that are not side by side cost nothing.
Knows no layer and no session.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch

from paceline.engine.native.compiled import (
    compiled,
    find_num_shares,
    floats,
    integers,
    share_of,
)
from paceline.engine.native.rows import exponential
from paceline.engine.native.vector import LANES, add_multiple, dot, load, store, zeros

_SHARED_KEYS = 1024
"""From this many keys on, the rows of a step are shared among threads: that costs 10 us."""


@dataclass(frozen=True, slots=True)
class SingleRows:
    """Rows of a step that are their sequences' only ones, S of them."""

    rows: torch.Tensor
    """Int64 [S, 3]: index among the step's rows, of the first run, and one past the last run."""
    runs: torch.Tensor
    """Int64 [R, 2]: first slot and one past the last of each stretch of keys, in order."""
    num_keys: int
    """Of all rows together."""
    longest: int
    """Most keys of a row."""


def serves(dim: int) -> bool:
    """Whether heads of this size can be served."""
    return dim % LANES == 0


def attend(
    heads: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    rows: SingleRows,
    output: torch.Tensor,
) -> None:
    """Attends; the rows' own keys and values are stored already.

    Args:
        heads: [T, H, D], queries first, by place in their group and then by key head.
        keys: [Hkv, num_slots, D].
        values: The same.
        rows: Which rows attend, and to what.
        output: [T, Hq, D]; written where the rows are.
    """
    num_rows, dim = len(rows.rows), heads.shape[2]
    is_shared = num_rows > 1 and rows.num_keys >= _SHARED_KEYS
    num_shares = min(find_num_shares(), num_rows) if is_shared else 1
    scores = output.new_empty((num_shares, rows.longest))
    attend_share, attend_shares = _build(dim // LANES)
    operands = (
        heads.data_ptr(),
        keys.data_ptr(),
        values.data_ptr(),
        rows.rows.data_ptr(),
        rows.runs.data_ptr(),
        scores.data_ptr(),
        output.data_ptr(),
    )
    sizes = heads.shape[1], output.shape[1], keys.shape[0], keys.shape[1], rows.longest
    if num_shares > 1:
        attend_shares(num_shares, num_rows, operands, sizes)
    else:
        attend_share(0, 0, num_rows, operands, sizes)


@functools.cache
def _build(width: int) -> tuple[Any, Any]:
    """The loops for heads of so many vectors: for one share of the rows, and for all shares."""
    attend_head = build_attend_head(width)
    dim = width * LANES

    @compiled()
    def attend_share(share, first, last, operands, sizes):
        heads_at, keys_at, values_at, rows_at, runs_at, scores_at, output_at = operands
        num_stored, num_heads, num_kv_heads, num_slots, longest = sizes
        rows, runs = integers(rows_at), integers(runs_at)
        scores = floats(scores_at + 4 * share * longest)
        for i in range(first, last):
            row, first_run, last_run = rows[3 * i], rows[3 * i + 1], rows[3 * i + 2]
            for kv_head in range(num_kv_heads):
                offset = 4 * kv_head * num_slots * dim
                keys, values = floats(keys_at + offset), floats(values_at + offset)
                for head in range(kv_head, num_heads, num_kv_heads):
                    query = floats(heads_at + 4 * (row * num_stored + head) * dim)
                    output = floats(output_at + 4 * (row * num_heads + head) * dim)
                    vectors = query, keys, values, output
                    attend_head(vectors, runs, first_run, last_run, scores)

    @compiled(parallel=True)
    def attend_shares(num_shares, num_rows, operands, sizes):
        for share in numba.prange(num_shares):
            first, last = share_of(share, num_shares, num_rows)
            attend_share(share, first, last, operands, sizes)

    return attend_share, attend_shares


@functools.cache
def build_attend_head(width: int) -> Any:
    """The loop for one query head of one row, of so many vectors."""
    dim = width * LANES
    scale = np.float32(dim**-0.5)

    @compiled()
    def attend_head(vectors, runs, first_run, last_run, scores):
        query, keys, values, output = vectors
        row = load(query, 0, width)
        largest = np.float32(-np.inf)
        count = 0
        for run in range(first_run, last_run):
            for slot in range(runs[2 * run], runs[2 * run + 1]):
                score = dot(row, load(keys, slot * dim, width)) * scale
                largest = max(largest, score)
                scores[count] = score
                count += 1
        total = np.float32(0)
        for i in range(count):
            weight = exponential(scores[i] - largest)
            scores[i] = weight
            total += weight
        mean = zeros(width)
        count = 0
        for run in range(first_run, last_run):
            for slot in range(runs[2 * run], runs[2 * run + 1]):
                mean = add_multiple(mean, load(values, slot * dim, width), scores[count] / total)
                count += 1
        store(output, 0, LANES, mean)

    return attend_head
