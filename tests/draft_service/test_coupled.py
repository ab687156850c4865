"""A model as a source under the coupled rule: it draws from the noise that the target shares."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from paceline.engine.coupling import Noise
from paceline.engine.law import Law, truncate
from paceline.errors import FailedPrecondition
from paceline.records import Advance, LawEncoding, SamplingParams, VerificationRule

SAMPLED = SamplingParams()
COUPLED = VerificationRule.COUPLED
Q = [0.3, 0.25, 0.2, 0.15, 0.1]


@pytest.fixture
async def tier(tiers: Any, write_table: Any) -> Any:
    """A draft whose law is Q everywhere."""
    return await tiers.draft(write_table(*Q), "ngram")


@pytest.mark.parametrize(("seed", "sample_index"), [(0, 0), (0, 1), (2**64 - 1, 7)])
async def test_tokens_are_the_race_of_the_drafts_law(
    tier: Any, rounds: Any, seed: int, sample_index: int
) -> None:
    """Each token wins on what truncation leaves, at its index in prompt and output together."""
    session = rounds.spec(
        [0, 1, 2], sampling=SAMPLED, rule=COUPLED, seed=seed, sample_index=sample_index
    )
    proposal = await (await tier.open(session)).draft(Advance(1, 3, (), 12))
    assert (LawEncoding.SHARED_NOISE, b"") == (proposal.encoding, proposal.law)
    law = truncate(Law(np.arange(5), np.array(Q))).as_law()
    noise = Noise(seed, sample_index)
    assert tuple(noise.draw(law, 3 + i) for i in range(12)) == proposal.token_ids


async def test_a_place_is_drafted_alike_in_every_round(tier: Any, rounds: Any) -> None:
    """B37: neither the round, nor the base, nor a reopened session changes a place's noise."""
    session = rounds.spec([0], sampling=SAMPLED, rule=COUPLED, seed=4)
    peer = await tier.open(session)
    whole = (await peer.draft(Advance(1, 1, (), 10))).token_ids
    later = await peer.draft(Advance(2, 4, whole[:3], 5))
    assert whole[3:8] == later.token_ids
    reopened = dataclasses.replace(session, token_ids=(0, *whole[:6]))
    assert whole[6:] == (await (await tier.open(reopened)).draft(Advance(1, 7, (), 4))).token_ids


async def test_greedy_and_ngram_stay_point_masses(tier: Any, rounds: Any) -> None:
    """What is chosen without noise is shipped as ever."""
    greedy = rounds.spec([0, 1, 0, 1], rule=COUPLED)
    for source in ("", "ngram"):
        peer = await tier.open(greedy, source, await tier.identity())
        proposal = await peer.draft(Advance(1, 4, (), 2))
        assert (LawEncoding.POINT_MASS, b"", 2) == (
            proposal.encoding,
            proposal.law,
            len(proposal.token_ids),
        )


@pytest.mark.parametrize("rule", VerificationRule)
@pytest.mark.parametrize("source", ["", "ngram"])
async def test_another_noise_is_refused_under_the_coupled_rule(
    tier: Any, rounds: Any, rule: VerificationRule, source: str
) -> None:
    """A source that draws from noise opens only for a target of its own noise version."""
    target = await tier.identity()
    target = dataclasses.replace(target, noise_version=target.noise_version + 1)
    session, peer = rounds.spec([0, 1], sampling=SAMPLED, rule=rule), tier.connect()
    await tier.send_open(peer, session, source, target)
    if rule is COUPLED and source == "":
        error = await peer.refusal()
        assert isinstance(error, FailedPrecondition)
        assert "noise version: draft 1, target 2" in error.message
    else:
        assert (await peer.receive()).HasField("opened")
