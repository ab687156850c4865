"""Evidence that tokens do not follow the laws they are said to be drawn from.

For a token y drawn from a law p, its surprise z = -ln p(y) - H(p) has mean 0, so the sum over many
tokens stays near 0; where y follows another law it mostly drifts. How far is too far is decided by
betting: at a fixed rate r, exp(r sum z - sum K(r)) with K(r) = ln E exp(r z) is a martingale that
starts at 1, as long as every y follows its p, whatever decides when and whether a token comes next.
So is the mean over several rates (Robbins' method of mixtures), and by Ville's inequality it ever
reaches 1/a with probability at most a: one bound for all times at once, looked at as often as one
likes (Howard, Ramdas, McAuliffe, Sekhon, "Time-uniform Chernoff bounds via nonnegative
supermartingales", 2020). K is computed from p itself, so nothing is assumed of its tail.

A small drift of d nats per token of variance v is seen after about 2 v (21 + 3) / d**2 tokens: 21
for the bound, 3 for not knowing d. It sees only what moves the mean of -ln p. It knows no model, no
session and no rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from paceline.engine.law import Floats, Law
from paceline.records import AuditSum

ERROR_PROBABILITY = 1e-9
"""With at most this probability the evidence of tokens that do follow their laws ever reaches 1."""

_NUM_HALVINGS = 8
_RATES = 0.5 ** np.arange(1, _NUM_HALVINGS + 1)
_SIGNED_RATES = np.concatenate([_RATES, -_RATES])
_BOUND = -math.log(ERROR_PROBABILITY)
_LEAST_PROBABILITY = 1e-300
"""What an impossible token counts as: enough for the alarm, and still a number."""


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """What a law says of the surprise of a token drawn from it."""

    entropy: float
    """H(p) in nats."""
    variance: float
    """Of z."""
    cumulants: Floats
    """ln E exp(r z) for each rate, the positive ones first."""


def moments(law: Law) -> Moments:
    """Returns the moments of a law; linear in the ids that it names, about 17 passes over them."""
    probabilities = law.probabilities[law.probabilities > 0.0]
    logarithms = np.log(probabilities)
    entropy = -float(probabilities @ logarithms)
    variance = float(probabilities @ (logarithms + entropy) ** 2)
    powers = np.empty(2 * _NUM_HALVINGS)
    root = probabilities
    for i in range(_NUM_HALVINGS):
        root = np.sqrt(root)  # p ** r: a power by itself costs ten times as much
        powers[i] = (probabilities / root).sum()
        powers[_NUM_HALVINGS + i] = probabilities @ root
    return Moments(entropy, variance, np.log(powers) - _SIGNED_RATES * entropy)


class Surprise:
    """The running sum over one kind of token. Only its owner's thread may add to it."""

    def __init__(self) -> None:
        self._num_tokens = 0
        self._total = 0.0
        self._variance = 0.0
        self._log_wealth = np.zeros(len(_SIGNED_RATES))
        self._evidence = 0.0

    def add(self, law: Law, token_id: int) -> None:
        """Takes in a token and the law it is said to be drawn from.

        One that the law excludes is evidence enough. One that it forces says nothing.
        """
        probability = law.probability(token_id)
        if probability > 0.0 and len(law.token_ids) == 1:
            return
        expected = moments(law)
        surprise = -math.log(max(probability, _LEAST_PROBABILITY)) - expected.entropy
        self._num_tokens += 1
        self._total += surprise
        self._variance += expected.variance
        self._log_wealth += _SIGNED_RATES * surprise - expected.cumulants
        log_mean = float(np.logaddexp.reduce(self._log_wealth)) - math.log(len(_SIGNED_RATES))
        self._evidence = max(self._evidence, log_mean / _BOUND)

    @property
    def report(self) -> AuditSum:
        """The sum so far."""
        return AuditSum(self._num_tokens, self._total, self._variance, self._evidence)
