"""The kernels of a decoder's matrices, chosen once at load.

Nothing below looks at a model's name again. Knows no network and no step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from paceline.engine.lean.grouped import build_grouped_head, build_grouped_linear
from paceline.engine.lean.linear import Linear, Matrix, build_linear
from paceline.engine.model_source import INT4_PER_GROUP
from paceline.records import ModelIdentity


@dataclass(frozen=True, slots=True)
class Kernels:
    """What a decoder multiplies with."""

    build_linear: Callable[[Matrix], Linear]
    build_head: Callable[[Matrix], Linear]


WIDE = Kernels(build_linear, build_linear)
"""Matrices as they are: numbers, or int8 codes."""
INT4 = Kernels(build_grouped_linear, build_grouped_head)
"""Weights that were rounded to 4 bits and stay there."""


def choose_kernels(identity: ModelIdentity) -> Kernels:
    """The kernels for a model."""
    return INT4 if identity.quantization == INT4_PER_GROUP else WIDE
