"""The loop of one thread over all layers of a decoder; see `layers.py`, which calls it.

Numbers that every thread needs are in shared memory, and a meeting stands between those who write
them and those who read them. Knows no tensor: all it is given are addresses and sizes.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from paceline.engine.native.attend import build_attend_head
from paceline.engine.native.barrier import wait
from paceline.engine.native.compiled import compiled, floats, integers, share_of
from paceline.engine.native.grouped import GROUP, build_multiply_tiles_4, sum_groups
from paceline.engine.native.rows import exponential, normalize_rows, turn_heads
from paceline.engine.native.vector import LANES


@functools.cache
def build_layer_loop(width: int) -> Any:
    """The loop over all layers for heads of so many vectors."""
    dim = width * LANES
    multiply = _build_multiply()
    attend = _build_attend(width)
    store = _build_store(width)

    @compiled()
    def run_share(share, num_shares, table_at, buffers, sizes, epsilon):
        h_at, sums_at, scores_at, qkv_at, attended_at, y_at, gate_up_at, act_at, x_at = buffers[:9]
        (num_rows, size, inner, widest), heads, (num_layers, num_columns) = sizes
        num_heads, num_kv_heads, _, longest = heads
        team, counter_at = (share, num_shares), buffers[13]
        stored = (num_heads + 2 * num_kv_heads) * dim
        h_at += 4 * share * num_rows * size
        sums_at += 4 * share * num_rows * (widest // GROUP)
        scores_at += 4 * share * longest
        meeting = 1
        for layer in range(num_layers):
            weights_at = table_at + 8 * layer * num_columns
            weights = integers(weights_at)
            caches_at = weights[19], weights[20]
            normalize_rows(x_at, weights[0], epsilon, h_at, num_rows, size)
            multiply(team, weights_at + 8 * 3, h_at, sums_at, qkv_at, (num_rows, size, stored))
            meeting = wait(counter_at, num_shares, meeting)
            store(team, weights[2], buffers, caches_at, sizes, epsilon)
            meeting = wait(counter_at, num_shares, meeting)
            attend(team, scores_at, buffers, caches_at, sizes)
            meeting = wait(counter_at, num_shares, meeting)
            shape = num_rows, num_heads * dim, size
            multiply(team, weights_at + 8 * 7, attended_at, sums_at, y_at, shape)
            _add_share(team, x_at, y_at, num_rows, size)
            meeting = wait(counter_at, num_shares, meeting)
            normalize_rows(x_at, weights[1], epsilon, h_at, num_rows, size)
            shape = num_rows, size, 2 * inner
            multiply(team, weights_at + 8 * 11, h_at, sums_at, gate_up_at, shape)
            meeting = wait(counter_at, num_shares, meeting)
            _gate_share(team, gate_up_at, act_at, num_rows, inner)
            meeting = wait(counter_at, num_shares, meeting)
            multiply(team, weights_at + 8 * 15, act_at, sums_at, y_at, (num_rows, inner, size))
            _add_share(team, x_at, y_at, num_rows, size)
            meeting = wait(counter_at, num_shares, meeting)

    return run_share


@functools.cache
def _build_multiply() -> Any:
    """The loop over a thread's share of a product."""
    multiply_tiles = build_multiply_tiles_4()

    @compiled()
    def multiply(team, product_at, x_at, sums_at, y_at, sizes):
        num_rows, num_columns, num_outputs = sizes
        product = integers(product_at)
        first, last = share_of(*team, num_outputs // LANES)
        sum_groups(floats(x_at), floats(sums_at), num_rows * num_columns // GROUP)
        operands = x_at, sums_at, product[0], product[1], product[2], y_at
        multiply_tiles(first, last, operands, sizes)
        if product[3] != 0:
            y, bias = floats(y_at), floats(product[3])
            for row in range(num_rows):
                for i in range(first * LANES, last * LANES):
                    y[row * num_outputs + i] += bias[i]

    return multiply


@functools.cache
def _build_store(width: int) -> Any:
    """The loop that rotates a thread's share of the heads and stores those of keys and values."""
    dim = width * LANES

    @compiled()
    def store(team, head_norm_at, buffers, caches_at, sizes, epsilon):
        qkv_at, turns_at, slots = buffers[3], buffers[9], integers(buffers[10])
        num_rows = sizes[0][0]
        num_heads, num_kv_heads, num_slots, _ = sizes[1]
        num_turned = num_heads + num_kv_heads
        num_stored = num_turned + num_kv_heads
        first, last = share_of(*team, num_rows * num_stored)
        for place in range(first, last):
            row, head = place // num_stored, place % num_stored
            head_at = qkv_at + 4 * place * dim
            if head < num_turned:
                if head_norm_at != 0:
                    norm_at = head_norm_at + 4 * head * dim
                    normalize_rows(head_at, norm_at, epsilon, head_at, 1, dim)
                turn_heads(head_at, turns_at + 4 * row * dim, dim, 1, 1, dim)
            if head >= num_heads:
                is_value = head >= num_turned
                kv_head = head - num_turned if is_value else head - num_heads
                source, cache = floats(head_at), floats(caches_at[1] if is_value else caches_at[0])
                target = (kv_head * num_slots + slots[row]) * dim
                for i in range(dim):
                    cache[target + i] = source[i]

    return store


@functools.cache
def _build_attend(width: int) -> Any:
    """The loop over a thread's share of the query heads."""
    dim = width * LANES
    attend_head = build_attend_head(width)

    @compiled()
    def attend(team, scores_at, buffers, caches_at, sizes):
        qkv_at, attended_at = buffers[3], buffers[4]
        seen, runs = integers(buffers[11]), integers(buffers[12])
        num_rows = sizes[0][0]
        num_heads, num_kv_heads, num_slots, _ = sizes[1]
        num_stored = num_heads + 2 * num_kv_heads
        first, last = share_of(*team, num_rows * num_heads)
        for place in range(first, last):
            row, head = place // num_heads, place % num_heads
            offset = 4 * (head % num_kv_heads) * num_slots * dim
            vectors = (
                floats(qkv_at + 4 * (row * num_stored + head) * dim),
                floats(caches_at[0] + offset),
                floats(caches_at[1] + offset),
                floats(attended_at + 4 * place * dim),
            )
            first_run, last_run = seen[3 * row + 1], seen[3 * row + 2]
            attend_head(vectors, runs, first_run, last_run, floats(scores_at))

    return attend


@compiled()
def _add_share(team, x_at, y_at, num_rows, size):
    first, last = share_of(*team, size // LANES)
    x, y = floats(x_at), floats(y_at)
    for row in range(num_rows):
        for i in range(row * size + first * LANES, row * size + last * LANES):
            x[i] += y[i]


@compiled()
def _gate_share(team, gate_up_at, act_at, num_rows, inner):
    first, last = share_of(*team, inner // LANES)
    gate_up, act = floats(gate_up_at), floats(act_at)
    for row in range(num_rows):
        gates, start = 2 * row * inner, row * inner
        for i in range(first * LANES, last * LANES):
            gate = gate_up[gates + i]
            act[start + i] = (
                gate / (np.float32(1) + exponential(-gate)) * gate_up[gates + inner + i]
            )
