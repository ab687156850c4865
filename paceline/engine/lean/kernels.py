"""The kernels of a decoder, chosen once at load: fast ones, or exact ones.

Nothing below looks at a mode again. Knows no network and no step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from paceline.engine.lean.attention import CpuAttention
from paceline.engine.lean.cache import StackedCache
from paceline.engine.lean.decoder import Attention, HeadShape, Turn, turn
from paceline.engine.lean.exact import (
    PlainGate,
    build_exact_gate,
    build_exact_linear,
    turn_exactly,
)
from paceline.engine.lean.exact_attention import ExactAttention
from paceline.engine.lean.grouped import (
    build_grouped_gate,
    build_grouped_head,
    build_grouped_linear,
)
from paceline.engine.lean.linear import Gate, Linear, Matrix, build_gate, build_linear
from paceline.engine.lean.twofold import build_twofold_gate, build_twofold_linear
from paceline.engine.model_source import INT4_PER_GROUP
from paceline.engine.step import Step
from paceline.records import ModelIdentity

MakeAttention = Callable[[Step, StackedCache, HeadShape, Sequence[int | None]], Attention]
"""(step, cache, heads, window of each layer) -> what the step's rows mean."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """What a decoder computes with."""

    build_linear: Callable[[Matrix], Linear]
    build_gate: Callable[[Matrix, Matrix], Gate]
    build_head: Callable[[Matrix], Linear]
    turn: Turn
    attention: MakeAttention


FAST = Kernels(build_linear, build_gate, build_linear, turn, CpuAttention)
"""The last bits of a row move with the number of rows that share its step."""
TWOFOLD = Kernels(
    build_twofold_linear, build_twofold_gate, build_twofold_linear, turn, CpuAttention
)
"""Fast, with float32 matrices kept twice: the second copy serves steps of one row."""
EXACT = Kernels(
    build_exact_linear, build_exact_gate, build_exact_linear, turn_exactly, ExactAttention
)
"""A row's bits depend on its own sequence alone."""
INT4 = Kernels(build_grouped_linear, build_grouped_gate, build_grouped_head, turn, CpuAttention)
"""Fast, over weights that were rounded to 4 bits and stay there."""
INT4_EXACT = Kernels(
    partial(build_grouped_linear, otherwise=build_exact_linear),
    lambda gate, up: PlainGate(
        build_grouped_linear(Matrix.stack((gate, up)), otherwise=build_exact_linear)
    ),
    partial(build_grouped_head, otherwise=build_exact_linear),
    turn_exactly,
    ExactAttention,
)
"""Exact, over weights that were rounded to 4 bits and stay there."""


def choose_kernels(identity: ModelIdentity, *, memory_for_speed: bool) -> Kernels:
    """The kernels for a model."""
    if identity.quantization == INT4_PER_GROUP:
        return INT4_EXACT if identity.exact else INT4
    if identity.exact:
        return EXACT
    return TWOFOLD if memory_for_speed else FAST
