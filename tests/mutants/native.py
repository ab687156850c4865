"""Mistakes in compiled loops: codes, rows, keys and threads."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_COMPILED = "paceline/engine/native/compiled.py"
_GROUPED = "paceline/engine/native/grouped.py"
_ROWS = "paceline/engine/native/rows.py"
_ATTEND = "paceline/engine/native/attend.py"
_LOOP = "paceline/engine/native/layer_loop.py"
_SEEN = "paceline/engine/lean/attention.py"

_PRODUCTS = ("tests/engine/native/test_grouped.py",)
_PASSES = ("tests/engine/native/test_rows.py",)
_ATTENTION = ("tests/engine/native/test_attend.py",)
_LAYERS = ("tests/engine/native/test_layers.py",)

MUTANTS = (
    Mutant(
        "a group's offset left out",
        _GROUPED,
        "total = add_outer(total, load(offsets, group * LANES, 1), sums, group, num_groups)",
        "total = add_outer(total, load(offsets, group * LANES, 1), sums, group, 0)",
        _PRODUCTS,
    ),
    Mutant(
        "columns exchanged in a byte",
        _GROUPED,
        "columns[:, 0::2] | (columns[:, 1::2] << 4)",
        "columns[:, 1::2] | (columns[:, 0::2] << 4)",
        _PRODUCTS,
    ),
    Mutant(
        "the last tile left out where threads share",
        _COMPILED,
        "count * (share + 1) // num_shares",
        "(count - 1) * (share + 1) // num_shares",
        _PRODUCTS,
    ),
    Mutant(
        "rotation the other way round",
        _ROWS,
        "heads[start + i + 1] = a * s + b * c",
        "heads[start + i + 1] = b * c - a * s",
        _PASSES,
    ),
    Mutant(
        "an exponential without the low part of ln 2",
        _ROWS,
        "f = x - n * _LN_2_HIGH - n * _LN_2_LOW",
        "f = x - n * (_LN_2_HIGH + _LN_2_LOW)",
        _PASSES,
    ),
    Mutant(
        "weights of keys before the largest is taken off",
        _ATTEND,
        "weight = exponential(scores[i] - largest)",
        "weight = exponential(scores[i])",
        _ATTENTION,
    ),
    Mutant(
        "only the first stretch of keys seen",
        _ATTEND,
        "row, first_run, last_run = rows[3 * i], rows[3 * i + 1], rows[3 * i + 2]",
        "row, first_run, last_run = rows[3 * i], rows[3 * i + 1], rows[3 * i + 1] + 1",
        _ATTENTION,
    ),
    Mutant(
        "a row that sees one position beyond its window",
        _SEEN,
        "first_key = 0 if window is None else max(0, last_key - window)",
        "first_key = 0 if window is None else max(0, last_key - window - 1)",
        ("tests/engine/lean/test_attention.py",),
    ),
    Mutant(
        "biases left out",
        _LOOP,
        "if product[3] != 0:",
        "if product[3] == 1:",
        _LAYERS,
    ),
    Mutant(
        "heads that are not normalized",
        _LOOP,
        "if head_norm_at != 0:",
        "if head_norm_at == 1:",
        _LAYERS,
    ),
    Mutant(
        "a residual that lacks its last columns",
        _LOOP,
        "first, last = share_of(*team, size // LANES)",
        "first, last = share_of(*team, size // LANES - 1)",
        _LAYERS,
    ),
)
