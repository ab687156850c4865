"""What a session wants from the engine, written as a generator.

A job owns one sequence's next piece of work: it yields `Extend` whenever it needs the model, is
resumed with `Extended`, and returns its result. Verifying a proposal yields once; drafting k tokens
yields k times. It knows no thread and no other job.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeVar

import torch

from paceline.engine.constraint import Matcher
from paceline.engine.law import Law
from paceline.records import SamplingParams

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Extend:
    """A job's request: run the first `length` tokens, and give laws for the last rows."""

    length: int
    num_laws: int
    sampling: SamplingParams
    matcher: Matcher | None = None
    """Of the constraint, where there is one; it moves on to the place of the first of the rows."""


@dataclass(frozen=True, slots=True)
class Extended:
    """What a job gets back: the law after each of the last rows, and how long it took."""

    laws: list[Law]
    queue_s: float
    """From the request to the start of its first step."""
    forward_s: float
    """In steps, from the first to the last."""
    logits: torch.Tensor | None = None
    """Raw, [num_laws, V]; None unless the parameters ask for log-probabilities."""


Job = Generator[Extend, Extended, T]
