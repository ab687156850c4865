"""The kernels of a decoder, chosen once at load: fast ones, or exact ones.

Nothing below looks at a mode again. Knows no network and no step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.engine.lean.attention import CpuAttention
from paceline.engine.lean.cache import StackedCache
from paceline.engine.lean.decoder import Attention, HeadShape, Turn, turn
from paceline.engine.lean.exact import build_exact_gate, build_exact_linear, turn_exactly
from paceline.engine.lean.exact_attention import ExactAttention
from paceline.engine.lean.linear import Gate, Linear, Matrix, build_gate, build_linear
from paceline.engine.lean.twofold import build_twofold_gate, build_twofold_linear
from paceline.engine.step import Step

MakeAttention = Callable[[Step, StackedCache, HeadShape, Sequence[int | None]], Attention]
"""(step, cache, heads, window of each layer) -> what the step's rows mean."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """What a decoder computes with."""

    build_linear: Callable[[Matrix], Linear]
    build_gate: Callable[[Matrix, Matrix], Gate]
    turn: Turn
    attention: MakeAttention


FAST = Kernels(build_linear, build_gate, turn, CpuAttention)
"""The last bits of a row move with the number of rows that share its step."""
TWOFOLD = Kernels(build_twofold_linear, build_twofold_gate, turn, CpuAttention)
"""Fast, with float32 matrices kept twice: the second copy serves steps of one row."""
EXACT = Kernels(build_exact_linear, build_exact_gate, turn_exactly, ExactAttention)
"""A row's bits depend on its own sequence alone."""
