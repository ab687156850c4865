"""The evidence of the live audit: fair bets while tokens follow their laws, and an alarm when not.

Seeds are fixed. Tokens that follow their laws pass with a probability of 1 - 1e-9 whatever the
seed; what must alarm does so within three times as many tokens as the module says, which is
right for small drifts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from paceline.engine.law import Law
from paceline.engine.surprise import ERROR_PROBABILITY, Surprise, moments
from paceline.records import AuditSum

LAWS = ([0.5, 0.3, 0.2], [0.999, 0.001], [0.25, 0.25, 0.25, 0.25], [0.6, 0.4 - 1e-12, 1e-12])
RATES = [sign * 0.5**i for sign in (1, -1) for i in range(1, 9)]


def law(probabilities: Sequence[float]) -> Law:
    """A law over 0 .. n-1."""
    return Law(np.arange(len(probabilities)), np.array(probabilities))


def drawn(
    claimed: Sequence[Sequence[float]],
    num_tokens: int,
    followed: Sequence[float] | None = None,
    seed: int = 0,
) -> list[AuditSum]:
    """The sum after each token: drawn from claimed laws in turn, or all from another one."""
    random = np.random.default_rng(seed)
    surprise, laws = Surprise(), [law(one) for one in claimed]
    reports = []
    for i in range(num_tokens):
        p = laws[i % len(laws)]
        weights = p.probabilities if followed is None else followed
        surprise.add(p, int(random.choice(len(weights), p=weights)))
        reports.append(surprise.report)
    return reports


@pytest.mark.parametrize("probabilities", LAWS)
def test_moments(probabilities: list[float]) -> None:
    """Entropy, variance and cumulants are those of the definition."""
    p = np.array(probabilities)
    found = moments(law(probabilities))
    entropy = -float((p * np.log(p)).sum())
    z = -np.log(p) - entropy
    assert pytest.approx(entropy, rel=1e-12) == found.entropy
    assert pytest.approx(float((p * z**2).sum()), rel=1e-12, abs=1e-15) == found.variance
    expected = [math.log(float((p * np.exp(rate * z)).sum())) for rate in RATES]
    assert pytest.approx(expected, rel=1e-9, abs=1e-14) == found.cumulants.tolist()


def test_moments_leave_out_what_cannot_come() -> None:
    """Ids that a law names with probability 0 change nothing."""
    with_zero, without = moments(law([0.7, 0.0, 0.3])), moments(law([0.7, 0.3]))
    assert without.entropy == with_zero.entropy
    assert without.cumulants.tolist() == with_zero.cumulants.tolist()


def test_bets_are_fair() -> None:
    """Over all pairs of tokens, each drawn from its law, the wealth at every rate has mean 1."""
    first, second = law(LAWS[0]), law(LAWS[1])
    mean = np.zeros(len(RATES))
    for one, p in enumerate(LAWS[0]):
        for other, q in enumerate(LAWS[1]):
            surprise = Surprise()
            surprise.add(first, one)
            surprise.add(second, other)
            mean += p * q * np.exp(surprise._log_wealth)
    assert [pytest.approx(1.0, rel=1e-12)] * len(RATES) == mean.tolist()


def test_tokens_that_follow_their_laws() -> None:
    """No evidence in 6,000 tokens of four laws; the sum stays within 4 deviations."""
    last = drawn(LAWS, 6000)[-1]
    assert 6000 == last.num_tokens
    assert not last.is_alarming
    assert abs(last.deviations) < 4.0


def test_looking_all_the_time_is_accounted_for() -> None:
    """Of 100 fair runs at most 5 in 100 ever pass the bound for 0.05; 11 would be past 1 in 200."""
    bound = math.log(0.05) / math.log(ERROR_PROBABILITY)
    runs = (drawn(LAWS[:1], 100, seed=seed)[-1] for seed in range(100))
    assert sum(report.evidence >= bound for report in runs) < 11


@pytest.mark.parametrize(
    "followed",
    [[0.4, 0.35, 0.25], [0.62, 0.24, 0.14], [0.2, 0.3, 0.5]],
    ids=["flatter", "sharper", "upside down"],
)
def test_tokens_that_follow_another_law(followed: list[float]) -> None:
    """An alarm in good time, in both directions."""
    claimed = LAWS[0]
    expected = moments(law(claimed))
    drift = -float(np.array(followed) @ np.log(claimed)) - expected.entropy
    promised = 2.0 * expected.variance * 24.0 / drift**2
    reports = drawn([claimed], math.ceil(3.0 * promised), followed)
    assert reports[-1].is_alarming
    assert drift * reports[-1].total > 0.0


def test_an_alarm_is_for_good() -> None:
    """What comes later does not take it back."""
    surprise, fair = Surprise(), law([0.5, 0.5 - 1e-6, 1e-6])
    for _ in range(10):
        surprise.add(fair, 2)
    evidence = surprise.report.evidence
    for token_id in (0, 1) * 200:
        surprise.add(fair, token_id)
    assert surprise.report.is_alarming
    assert evidence == surprise.report.evidence


@pytest.mark.parametrize("claimed", [Law.point(1), law([0.5, 0.5, 0.0])], ids=["point", "zero"])
def test_an_impossible_token(claimed: Law) -> None:
    """One token that the law excludes is enough, and everything stays a number."""
    surprise = Surprise()
    surprise.add(claimed, 2)
    assert surprise.report.is_alarming
    assert math.isfinite(surprise.report.evidence)
    assert math.isfinite(surprise.report.deviations)


def test_a_forced_token_says_nothing() -> None:
    """It is not counted either."""
    surprise = Surprise()
    surprise.add(Law.point(7), 7)
    assert 0 == surprise.report.num_tokens
    assert 0.0 == surprise.report.total
