"""How close a draw was, as a verdict tells it to whoever compares two runs of one text."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from paceline.engine.coupling import Noise
from paceline.engine.law import Law
from paceline.records import Proposal, SamplingParams, VerificationRule

P = [0.5, 0.3, 0.2]
GREEDY = SamplingParams(temperature=0.0, num_log_probs=0)
SEEDED = SamplingParams(temperature=0.5, num_log_probs=0)
COUPLED, BLOCK = VerificationRule.COUPLED, VerificationRule.REJECTION_BLOCK


async def verdict(tiers: Any, rounds: Any, model: str, proposal: Proposal, **fields: Any) -> Any:
    """The first verdict of a session on one table."""
    tier = await tiers.verify(model)
    peer = await tier.open(rounds.spec([0], **fields))
    return await peer.verify(proposal)


async def test_greedy(tiers: Any, rounds: Any, write_table: Any) -> None:
    """The lead of the likeliest token."""
    found = await verdict(tiers, rounds, write_table(*P), Proposal(1, 1), sampling=GREEDY)
    assert math.log(0.5 / 0.3) == pytest.approx(found.margin, abs=1e-6)


async def test_coupled(tiers: Any, rounds: Any, write_table: Any) -> None:
    """The lead in the race, in logits."""
    found = await verdict(
        tiers, rounds, write_table(*P), Proposal(1, 1), sampling=SEEDED, rule=COUPLED, seed=9
    )
    weights = np.array(P) ** 2
    scores = Noise(9, 0).scores(Law(np.arange(3), weights / weights.sum()), 1)
    first, second = np.sort(scores)[::-1][:2]
    assert int(scores.argmax()) == found.next_token_id
    assert 0.5 * math.log(first / second) == pytest.approx(found.margin, abs=1e-5)


async def test_coupled_where_one_is_left(tiers: Any, rounds: Any, write_table: Any) -> None:
    """Nobody else runs: what counts is how near the cut was."""
    sampling = SamplingParams(top_k=1, num_log_probs=0)
    found = await verdict(
        tiers, rounds, write_table(*P), Proposal(1, 1), sampling=sampling, rule=COUPLED
    )
    assert math.log(0.5 / 0.3) == pytest.approx(found.margin, abs=1e-6)


@pytest.mark.parametrize(
    ("proposal", "sampling", "rule"),
    [
        (Proposal(1, 1, (0,)), GREEDY, BLOCK),
        (Proposal(1, 1), SamplingParams(temperature=0.0), BLOCK),
        (Proposal(1, 1), SEEDED, BLOCK),
    ],
    ids=["behind a draft", "not asked for", "drawn anew"],
)
async def test_where_there_is_none(
    tiers: Any, rounds: Any, write_table: Any, proposal: Proposal, sampling: Any, rule: Any
) -> None:
    """Only a plain draw with fixed noise has a margin, and only who asks is told."""
    found = await verdict(tiers, rounds, write_table(*P), proposal, sampling=sampling, rule=rule)
    assert found.margin is None
