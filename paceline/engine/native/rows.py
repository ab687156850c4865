"""What happens to each row between products: norms, scales, the gate, rotation.

One pass over a row where stock operations take up to seven, each of which costs more than its
arithmetic while rows are few. Knows no layer.
"""

from __future__ import annotations

import numpy as np
import torch

from paceline.engine.native.compiled import compiled, float_of_bits, floats, integers

_LOG2_E = np.float32(1.4426950408889634)
# Their sum is ln 2; the first has so few bits that its products with small integers are exact.
_LN_2_HIGH = np.float32(0.693359375)
_LN_2_LOW = np.float32(-2.12194440e-4)
_LEAST = np.float32(-87.0)
"""Below it a float32 exponential is no normal number."""
_TINY = np.float32(torch.finfo(torch.float32).tiny)


@compiled(keeps_order=True)
def exponential(x):
    """exp(x) for x <= 88, to 2 units in the last place; what would be under 1e-38 is about that.

    2**n times a Taylor polynomial on [-ln 2 / 2, ln 2 / 2]: no call, so loops around it become
    vectors.
    """
    x = max(x, _LEAST)
    n = np.floor(x * _LOG2_E + np.float32(0.5))
    f = x - n * _LN_2_HIGH - n * _LN_2_LOW
    y = np.float32(1 / 720)
    y = y * f + np.float32(1 / 120)
    y = y * f + np.float32(1 / 24)
    y = y * f + np.float32(1 / 6)
    y = y * f + np.float32(0.5)
    y = y * f + np.float32(1)
    y = y * f + np.float32(1)
    return y * float_of_bits((np.int32(n) + np.int32(127)) << np.int32(23))


def normalize(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Root mean square norm of each row, x [T, E], times a weight [E]."""
    out = torch.empty_like(x)
    normalize_rows(x.data_ptr(), weight.data_ptr(), epsilon, out.data_ptr(), *x.shape)
    return out


def gate(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up [T, N] of rows [T, 2 * N] that hold gate and up one after the other."""
    out = gate_up.new_empty((len(gate_up), gate_up.shape[1] // 2))
    gate_columns(gate_up.data_ptr(), out.data_ptr(), (0, out.shape[1]), *out.shape)
    return out


def turn(heads: torch.Tensor, turns: torch.Tensor) -> None:
    """Rotates heads in place.

    Args:
        heads: [T, H, D]; each row dense, wherever it lies.
        turns: Complex [T, 1, D / 2]: what each adjacent pair of numbers is multiplied with.
    """
    turn_heads(heads.data_ptr(), turns.data_ptr(), heads.stride(0), *heads.shape)


def to_unit(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows [T, K] scaled into [-1, 1], and the largest size [T, 1] in each, which was its scale."""
    out, row_max = torch.empty_like(x), x.new_empty((len(x), 1))
    _to_unit(x.data_ptr(), out.data_ptr(), row_max.data_ptr(), *x.shape)
    return out, row_max


def store_heads(
    rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor
) -> None:
    """Stores the keys and values of rows in their slots.

    Args:
        rows: [T, 2 * Hkv, D], keys before values; each row dense, wherever it lies.
        keys: [Hkv, num_slots, D].
        values: The same.
        slots: Int64 [T].
    """
    num_kv_heads, num_slots, dim = keys.shape
    _store_heads(
        (rows.data_ptr(), keys.data_ptr(), values.data_ptr(), slots.data_ptr()),
        (len(rows), rows.stride(0), num_kv_heads, num_slots, dim),
    )


@compiled()
def normalize_rows(x_at, weight_at, epsilon, out_at, num_rows, size):
    """See `normalize`."""
    x, weight, out = floats(x_at), floats(weight_at), floats(out_at)
    for row in range(num_rows):
        start = row * size
        total = np.float32(0)
        for i in range(size):
            total += x[start + i] * x[start + i]
        scale = np.float32(1) / np.sqrt(total / np.float32(size) + np.float32(epsilon))
        for i in range(size):
            out[start + i] = x[start + i] * scale * weight[i]


@compiled()
def gate_columns(x_at, out_at, columns, num_rows, size):
    """See `gate`; columns (first, one past the last) alone."""
    x, out = floats(x_at), floats(out_at)
    for row in range(num_rows):
        gate, up, start = 2 * row * size, (2 * row + 1) * size, row * size
        for i in range(columns[0], columns[1]):
            g = x[gate + i]
            out[start + i] = g / (np.float32(1) + exponential(-g)) * x[up + i]


@compiled()
def turn_heads(heads_at, turns_at, stride, num_rows, num_heads, dim):
    """See `turn`."""
    heads, turns = floats(heads_at), floats(turns_at)
    for row in range(num_rows):
        for head in range(num_heads):
            start = row * stride + head * dim
            for i in range(0, dim, 2):
                c, s = turns[row * dim + i], turns[row * dim + i + 1]
                a, b = heads[start + i], heads[start + i + 1]
                heads[start + i] = a * c - b * s
                heads[start + i + 1] = a * s + b * c


@compiled()
def _to_unit(x_at, out_at, row_max_at, num_rows, size):
    x, out, row_max = floats(x_at), floats(out_at), floats(row_max_at)
    for row in range(num_rows):
        start = row * size
        largest = _TINY
        for i in range(size):
            largest = max(largest, abs(x[start + i]))
        row_max[row] = largest
        for i in range(size):
            out[start + i] = x[start + i] / largest


@compiled()
def _store_heads(addresses, sizes):
    rows_at, keys_at, values_at, slots_at = addresses
    num_rows, stride, num_kv_heads, num_slots, dim = sizes
    rows, keys, values = floats(rows_at), floats(keys_at), floats(values_at)
    slots = integers(slots_at)
    for row in range(num_rows):
        for head in range(num_kv_heads):
            key = row * stride + head * dim
            value = key + num_kv_heads * dim
            place = (head * num_slots + slots[row]) * dim
            for i in range(dim):
                keys[place + i] = rows[key + i]
                values[place + i] = rows[value + i]
