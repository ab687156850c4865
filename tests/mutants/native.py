"""Mistakes in compiled loops: codes, rows, keys and threads."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_COMPILED = "paceline/engine/native/compiled.py"
_GROUPED = "paceline/engine/native/grouped.py"
_ROWS = "paceline/engine/native/rows.py"
_ATTEND = "paceline/engine/native/attend.py"
_EMIT = "paceline/engine/native/emit.py"
_LOOP = "paceline/engine/native/layer_loop.py"

_PRODUCTS = ("tests/engine/native/test_grouped.py",)
_PANELS = ("tests/engine/native/test_panels.py",)
_PASSES = ("tests/engine/native/test_rows.py",)
_ATTENTION = ("tests/engine/native/test_attend.py",)
_LAYERS = ("tests/engine/native/test_layers.py",)

MUTANTS = (
    Mutant(
        "codes of the next group's scale",
        _GROUPED,
        "+ column // GROUP) * PANEL\n    scales, offsets",
        "+ (column + 1) // GROUP) * PANEL\n    scales, offsets",
        _PRODUCTS,
    ),
    Mutant(
        "rows exchanged in a byte",
        _GROUPED,
        "lower | (upper << 4)",
        "upper | (lower << 4)",
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
        "scores[i] = exponential(scores[i] - largest)",
        "scores[i] = exponential(scores[i])",
        _ATTENTION,
    ),
    Mutant(
        "the largest score among the first sixteen",
        _ATTEND,
        "most = larger(most, load(scores, i, 1))",
        "most = larger(most, most)",
        _ATTENTION,
    ),
    Mutant(
        "lanes added up in another order where sixteen keys are taken",
        _EMIT,
        "if i % size < size // 2]\n        size //= 2\n"
        "        masks = [ir.Constant(LANE_INTEGERS, [i + shift for i in lower]) "
        "for shift in (0, size)]",
        "if i % 2 == 0]\n        size //= 2\n"
        "        masks = [ir.Constant(LANE_INTEGERS, [i + shift for i in lower]) "
        "for shift in (0, 1)]",
        _ATTENTION,
    ),
    Mutant(
        "only the first stretch of keys seen",
        _ATTEND,
        "stretch = spans[3], spans[4], begin, end",
        "stretch = spans[3], spans[3] + 1, begin, end",
        _ATTENTION,
    ),
    Mutant(
        "a row that sees one position beyond its window",
        _ATTEND,
        "return max(0, position + 1 - window) if window > 0 else 0",
        "return max(0, position - window) if window > 0 else 0",
        _ATTENTION,
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
        "first, last = share_of(*team, size // PANEL)",
        "first, last = share_of(*team, size // PANEL - 1)",
        _LAYERS,
    ),
    Mutant(
        "a row of a sequence that sees the one behind it",
        _ATTEND,
        "own + 1 - begin, end - begin)",
        "min(own + 2, end) - begin, end - begin)",
        _ATTENTION,
    ),
    Mutant(
        "rows that fill no panel left out",
        "paceline/engine/native/tiles.py",
        "panels[num_full:, :, : num_rows % PANEL] = numbers[num_full * PANEL :].T",
        "pass",
        _PANELS,
    ),
    Mutant(
        "rows of the step beyond a core's cache left out",
        "paceline/engine/native/tiles.py",
        "for first in range(0, num_rows, _SLAB):",
        "for first in range(0, min(num_rows, _SLAB), _SLAB):",
        _PANELS,
    ),
)
