"""How close a draw with fixed noise was: moving the logits by less changes nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paceline.engine.coupling import Noise
from paceline.engine.history import History
from paceline.engine.law import Law
from paceline.engine.margin import greedy_margin, race_margin
from paceline.records import SamplingParams

NOTHING = History(np.array([0], dtype=np.int64), 1)


def row(*logits: float) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Raw logits of one row."""
    return np.array(logits, dtype=np.float32)


def softmax(logits: np.ndarray[tuple[int], np.dtype[np.float64]], temperature: float) -> Law:
    """The law of a row without cuts."""
    weights = np.exp(logits / temperature)
    return Law(np.arange(len(logits)), weights / weights.sum())


def test_greedy_margin_is_the_lead() -> None:
    """Between the two largest logits, wherever they are; none between equals."""
    params = SamplingParams(temperature=0.0)
    assert 0.75 == greedy_margin(row(0.25, -3.0, 1.0), params, NOTHING)
    assert 0.0 == greedy_margin(row(1.0, -3.0, 1.0), params, NOTHING)
    assert math.inf == greedy_margin(row(1.0), params, NOTHING)


def test_greedy_margin_is_that_of_adjusted_logits() -> None:
    """Bias and masks count: they decide too."""
    biased = SamplingParams(temperature=0.0, logit_bias=((0, 0.5),))
    assert 0.25 == greedy_margin(row(0.25, -3.0, 1.0), biased, NOTHING)
    masked = SamplingParams(temperature=0.0, stop_token_ids=(0, 1), min_tokens=1)
    assert math.inf == greedy_margin(row(0.25, -3.0, 1.0), masked, NOTHING)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_race_margin_is_what_another_winner_takes(temperature: float) -> None:
    """The second logit raised by a little less changes nothing, by a little more it wins."""
    params = SamplingParams(temperature=temperature)
    logits = np.random.default_rng(0).normal(size=6)
    for position in range(20):
        noise, law = Noise(7, 0), softmax(logits, temperature)
        margin = race_margin(law, params, noise, position)
        winner = noise.draw(law, position)
        scores = noise.scores(law, position)
        second = int(np.argsort(scores)[-2])
        for share, expected in ((0.999, winner), (1.001, second)):
            moved = logits.copy()
            moved[second] += share * margin
            assert expected == noise.draw(softmax(moved, temperature), position)


def test_race_margin_of_one_runner() -> None:
    """Whoever runs alone, or against the impossible, cannot lose."""
    params, noise = SamplingParams(), Noise(0, 0)
    assert math.inf == race_margin(Law.point(3), params, noise, 0)
    alone = Law(np.array([1, 2]), np.array([1.0, 0.0]))
    assert math.inf == race_margin(alone, params, noise, 0)
