"""The loop of one thread over all layers of a decoder; see `layers.py`, which calls it.

Numbers that every thread needs are in shared memory, and a meeting stands between those who write
them and those who read them. Knows no tensor: all it is given are addresses and sizes.
"""

from __future__ import annotations

import functools
from typing import Any

from paceline.engine.native.attend import build_attend
from paceline.engine.native.barrier import wait
from paceline.engine.native.compiled import compiled, floats, integers, share_of
from paceline.engine.native.emit import LANES
from paceline.engine.native.rows import gate_columns, normalize_rows, turn_heads
from paceline.engine.native.tiles import PANEL, Tiles


@functools.cache
def build_layer_loop(width: int, tiles: Tiles) -> Any:
    """The loop over all layers for heads of so many vectors and matrices of one layout."""
    dim = width * LANES
    multiply = _build_multiply(tiles)
    attend = build_attend(width)
    store = _build_store(width)

    @compiled()
    def run_share(share, num_shares, table_at, buffers, sizes, epsilon):
        h_at, panel_at, scratch_at, qkv_at, attended_at, y_at, gate_up_at, act_at, x_at = buffers[
            :9
        ]
        (num_rows, size, inner, widest), heads, (num_layers, num_columns), seen = sizes
        num_heads, num_kv_heads, num_slots, longest = heads
        team, counter_at = (share, num_shares), buffers[11]
        num_stored = num_heads + 2 * num_kv_heads
        stored = num_stored * dim
        head_sizes = num_stored, num_heads, num_kv_heads, num_slots, longest
        h_at += 4 * share * num_rows * size
        panel_at += 4 * share * widest * PANEL
        scratch_at += 4 * share * seen[0]
        meeting = 1
        for layer in range(num_layers):
            weights_at = table_at + 8 * layer * num_columns
            weights = integers(weights_at)
            caches_at = weights[19], weights[20]
            normalize_rows(x_at, weights[0], epsilon, h_at, num_rows, size)
            multiply(team, weights_at + 8 * 3, h_at, panel_at, qkv_at, (num_rows, size, stored))
            meeting = wait(counter_at, num_shares, meeting)
            store(team, weights[2], buffers, caches_at, sizes, epsilon)
            meeting = wait(counter_at, num_shares, meeting)
            attend(team, (qkv_at, *caches_at, attended_at), seen[1:], head_sizes, scratch_at)
            meeting = wait(counter_at, num_shares, meeting)
            shape = num_rows, num_heads * dim, size
            multiply(team, weights_at + 8 * 7, attended_at, panel_at, y_at, shape)
            _add_share(team, x_at, y_at, num_rows, size)
            meeting = wait(counter_at, num_shares, meeting)
            normalize_rows(x_at, weights[1], epsilon, h_at, num_rows, size)
            shape = num_rows, size, 2 * inner
            multiply(team, weights_at + 8 * 11, h_at, panel_at, gate_up_at, shape)
            meeting = wait(counter_at, num_shares, meeting)
            _gate_share(team, gate_up_at, act_at, num_rows, inner)
            meeting = wait(counter_at, num_shares, meeting)
            multiply(team, weights_at + 8 * 15, act_at, panel_at, y_at, (num_rows, inner, size))
            _add_share(team, x_at, y_at, num_rows, size)
            meeting = wait(counter_at, num_shares, meeting)

    return run_share


@functools.cache
def _build_multiply(tiles: Tiles) -> Any:
    """The loop over a thread's share of a product."""
    multiply_share = tiles.share

    @compiled()
    def multiply(team, product_at, x_at, panel_at, y_at, sizes):
        num_rows, _, num_outputs = sizes
        product = integers(product_at)
        operands = x_at, panel_at, product[0], product[1], product[2], y_at
        multiply_share(team, operands, sizes)
        if product[3] != 0:
            y, bias = floats(y_at), floats(product[3])
            first, last = share_of(*team, num_outputs // PANEL)
            for row in range(num_rows):
                for i in range(first * PANEL, last * PANEL):
                    y[row * num_outputs + i] += bias[i]

    return multiply


@compiled()
def _add_share(team, x_at, y_at, num_rows, size):
    """Adds a thread's share of a product."""
    first, last = share_of(*team, size // PANEL)
    x, y = floats(x_at), floats(y_at)
    for row in range(num_rows):
        for i in range(row * size + first * PANEL, row * size + last * PANEL):
            x[i] += y[i]


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


@compiled()
def _gate_share(team, gate_up_at, act_at, num_rows, inner):
    first, last = share_of(*team, inner // LANES)
    gate_columns(gate_up_at, act_at, (first * LANES, last * LANES), num_rows, inner)
