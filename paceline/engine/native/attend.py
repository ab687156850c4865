"""Attention over keys and values that lie in slots.

Keys are read straight from where they lie, so that blocks that are not side by side cost nothing.
Some queries that share a key head read its keys together: those of a group's heads, and of rows
that follow one another. What one of them comes to does not depend on the others: it sums over its
own keys in their order. Knows no layer and no session.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch

from paceline.engine.native.compiled import (
    choose_by_count,
    compiled,
    find_num_shares,
    floats,
    integers,
    share_of,
)
from paceline.engine.native.emit import LANES
from paceline.engine.native.rows import exponential
from paceline.engine.native.vector import (
    add_multiple,
    add_outer,
    dots,
    larger,
    largest_lane,
    load,
    store,
    store_dots,
    sum_lanes,
    zeros,
)

_SHARED_KEYS = 1024
"""From this many keys on, the rows of a step are shared among threads: that costs 10 us."""
_REGISTERS = 24
"""Vectors of queries that are held at once."""
_MOST_QUERIES = 8
"""That share a pass over the keys; a loop is compiled for each number."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the rows of a step see, of S sequences."""

    spans: torch.Tensor
    """Int64 [S, 5]: first row in the step, number of rows, position of the first, first run, one
    past the last run."""
    runs: torch.Tensor
    """Int64 [R, 2]: first slot and one past the last of each stretch of keys, in order."""
    window: int
    """Positions that a row sees, itself included; 0 sees all before it."""
    num_keys: int
    """Of all rows together, at most."""
    longest: int
    """Most keys of a sequence."""

    @property
    def addresses(self) -> tuple[int, int, int, int]:
        """As loops take it: where spans and runs are, how many spans, and the window."""
        return self.spans.data_ptr(), self.runs.data_ptr(), len(self.spans), self.window


def serves(dim: int) -> bool:
    """Whether heads of this size can be served."""
    return dim % LANES == 0 and dim <= _REGISTERS * LANES


def num_scratch(dim: int, longest: int) -> int:
    """Numbers that a thread needs for itself."""
    return _most_queries(dim // LANES) * (dim + 1 + longest + LANES)


def attend(
    heads: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, seen: Seen, output: torch.Tensor
) -> None:
    """Attends; the rows' own keys and values are stored already.

    Args:
        heads: [T, H, D], queries first, by place in their group and then by key head.
        keys: [Hkv, num_slots, D].
        values: The same.
        seen: Which keys the rows see.
        output: [T, Hq, D].
    """
    width = heads.shape[2] // LANES
    num_shares = find_num_shares() if seen.num_keys >= _SHARED_KEYS else 1
    scratch = output.new_empty((num_shares, num_scratch(heads.shape[2], seen.longest)))
    addresses = (heads.data_ptr(), keys.data_ptr(), values.data_ptr(), output.data_ptr())
    sizes = heads.shape[1], output.shape[1], keys.shape[0], keys.shape[1], seen.longest
    if num_shares > 1:
        own = scratch.data_ptr(), scratch.shape[1]
        _build_shared(width)(num_shares, addresses, seen.addresses, sizes, own)
    else:
        build_attend(width)((0, 1), addresses, seen.addresses, sizes, scratch.data_ptr())


@functools.cache
def _build_shared(width: int) -> Any:
    attend_share = build_attend(width)

    @compiled(parallel=True)
    def attend_shares(num_shares, addresses, seen, sizes, scratch):
        scratch_at, size = scratch
        for share in numba.prange(num_shares):
            team = share, num_shares
            attend_share(team, addresses, seen, sizes, scratch_at + 4 * share * size)

    return attend_shares


def _most_queries(width: int) -> int:
    return max(1, min(_MOST_QUERIES, _REGISTERS // width))


@functools.cache
def build_attend(width: int) -> Any:
    """The loop over a thread's share, for heads of so many vectors.

    It takes parts by turns: later rows see more keys than earlier ones.
    """
    most = _most_queries(width)
    attend_some = choose_by_count(functools.partial(_build_some, width), most)

    @compiled()
    def attend_share(team, addresses, seen, sizes, scratch_at):
        share, num_shares = team
        spans = integers(seen[0])
        num_kv_heads = sizes[2]
        turn = 0
        for span in range(seen[2]):
            num_queries = spans[5 * span + 1] * (sizes[1] // num_kv_heads)
            num_parts = (num_queries + most - 1) // most
            for unit in range(num_kv_heads * num_parts):
                if turn == share:
                    kv_head, part = unit // num_parts, unit % num_parts
                    first, last = share_of(part, num_parts, num_queries)
                    place = span, kv_head, first
                    attend_some(last - first, place, addresses, seen, sizes, scratch_at)
                turn = turn + 1 if turn + 1 < num_shares else 0

    return attend_share


def _build_some(width: int, count: int) -> Any:
    """The loop for `count` queries of a sequence that share a key head, from a given one on."""
    dim = width * LANES
    scale = np.float32(dim**-0.5)
    score, average = _build_score(width, count), _build_average(width, count)

    @compiled()
    def attend_some(place, addresses, seen, sizes, scratch_at):
        span, kv_head, first = place
        num_stored, num_heads, num_kv_heads, num_slots, longest = sizes
        spans, window = integers(seen[0] + 8 * 5 * span), seen[3]
        first_row, position = spans[0], spans[2]
        group = num_heads // num_kv_heads
        scores_at = scratch_at + 4 * count * (dim + 1)
        totals = floats(scratch_at + 4 * count * dim)
        offset = 4 * kv_head * num_slots * dim
        for i in range(count):
            row, head = (first + i) // group, (first + i) % group * num_kv_heads + kv_head
            query_at = addresses[0] + 4 * ((first_row + row) * num_stored + head) * dim
            _scale(query_at, scale, scratch_at + 4 * i * dim, dim)
        # Keys that any of them sees.
        begin = _first_key(position + first // group, window)
        end = position + (first + count - 1) // group + 1
        stretch = spans[3], spans[4], begin, end
        score(scratch_at, addresses[1] + offset, seen[1], stretch, scores_at, longest + LANES)
        for i in range(count):
            own = position + (first + i) // group
            at = scores_at + 4 * i * (longest + LANES)
            totals[i] = _weigh(at, _first_key(own, window) - begin, own + 1 - begin, end - begin)
        average(scratch_at, addresses[2] + offset, seen[1], stretch, scores_at, longest + LANES)
        for i in range(count):
            row, head = (first + i) // group, (first + i) % group * num_kv_heads + kv_head
            output_at = addresses[3] + 4 * ((first_row + row) * num_heads + head) * dim
            _scale(scratch_at + 4 * i * dim, np.float32(1) / totals[i], output_at, dim)

    return attend_some


def _build_score(width: int, count: int) -> Any:
    """The loop that multiplies `count` queries with each key of a stretch."""
    dim = width * LANES
    num_vectors = count * width

    @compiled()
    def score(queries_at, keys_at, runs_at, stretch, scores_at, stride):
        keys, runs, scores = floats(keys_at), integers(runs_at), floats(scores_at)
        numbers = floats(queries_at)
        queries = load(numbers, 0, num_vectors)
        first_run, last_run, begin, end = stretch
        key = 0
        for run in range(first_run, last_run):
            first, last = _clip(runs[2 * run], runs[2 * run + 1], begin - key, end - key)
            shift = key - begin - runs[2 * run]
            # Sixteen keys at a time, and one by one those that are left.
            rest = first + max(0, last - first) // LANES * LANES
            for slot in range(first, rest, LANES):
                for i in range(count):
                    found = dots(load(numbers, i * dim, width), keys, slot * dim, dim)
                    store(scores, i * stride + slot + shift, 0, found, 1)
            for slot in range(rest, last):
                store_dots(scores, slot + shift, stride, queries, load(keys, slot * dim, width))
            key += runs[2 * run + 1] - runs[2 * run]

    return score


def _build_average(width: int, count: int) -> Any:
    """The loop that adds up the values of a stretch, by the weights of `count` queries."""
    dim = width * LANES
    num_vectors = count * width

    @compiled()
    def average(totals_at, values_at, runs_at, stretch, weights_at, stride):
        values, runs, weights = floats(values_at), integers(runs_at), floats(weights_at)
        total = zeros(num_vectors)
        first_run, last_run, begin, end = stretch
        key = 0
        for run in range(first_run, last_run):
            first, last = _clip(runs[2 * run], runs[2 * run + 1], begin - key, end - key)
            shift = key - begin - runs[2 * run]
            for slot in range(first, last):
                value = load(values, slot * dim, width)
                total = add_outer(total, value, weights, slot + shift, stride)
            key += runs[2 * run + 1] - runs[2 * run]
        store(floats(totals_at), 0, dim, total, width)

    return average


@compiled()
def _clip(first_slot, last_slot, begin, end):
    """Those slots of a run that hold its keys begin .. end - 1."""
    return first_slot + max(0, begin), min(last_slot, first_slot + end)


@compiled()
def _first_key(position, window):
    return max(0, position + 1 - window) if window > 0 else 0


@compiled()
def _scale(x_at, factor, out_at, count):
    x, out = floats(x_at), floats(out_at)
    for i in range(count):
        out[i] = x[i] * factor


@compiled()
def _weigh(scores_at, first, last, count):
    """Turns the scores first .. last - 1 of `count` into weights, others into 0; gives their sum.

    The weight of the largest is 1. Behind the scores there is room for a vector.
    """
    scores = floats(scores_at)
    for i in range(last, last + LANES):
        scores[i] = np.float32(-np.inf)
    most = load(scores, first, 1)
    for i in range(first + LANES, last, LANES):
        most = larger(most, load(scores, i, 1))
    largest = largest_lane(most)
    for i in range(first):
        scores[i] = np.float32(0)
    for i in range(first, last):
        scores[i] = exponential(scores[i] - largest)
    for i in range(last, max(count, last + LANES)):
        scores[i] = np.float32(0)
    total = zeros(1)
    for i in range(first, last, LANES):
        total = add_multiple(total, load(scores, i, 1), np.float32(1))
    return sum_lanes(total)
