"""How close a draw with fixed noise was: how far logits must move until another token wins.

Two runs of one text compute their logits in steps of other shapes, so they differ in the last bits;
where they emit different tokens, this tells whether that can be why. It knows no session.
"""

from __future__ import annotations

import numpy as np

from paceline.engine.adjustment import Row, adjusted
from paceline.engine.coupling import Noise
from paceline.engine.history import History
from paceline.engine.law import Law
from paceline.records import SamplingParams


def greedy_margin(row: Row, params: SamplingParams, history: History) -> float:
    """Returns by how much the likeliest token of a raw row [V] leads; inf where it is forced."""
    values = adjusted(row, params, history) if params.adjusts_logits else row
    second, first = np.partition(values, -2)[-2:] if len(values) > 1 else (-np.inf, values[0])
    return float(first - second)


def race_margin(law: Law, params: SamplingParams, noise: Noise, position: int) -> float:
    """Returns by how much, in logits, the winner of a race leads; inf where it runs alone.

    A token just outside of a cut (top-k, top-p, min-p) does not run, however near it is.
    """
    scores = noise.scores(law, position)
    if len(scores) == 1:
        return float("inf")
    second, first = np.partition(scores, -2)[-2:]
    with np.errstate(divide="ignore"):  # a token of probability 0 never wins
        return params.temperature * float(np.log(first) - np.log(second))
