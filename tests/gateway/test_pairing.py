"""Which target and which draft go together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gateway.pairing import check_source, choose_target
from paceline.errors import FailedPrecondition, NotFound, Unavailable
from paceline.pairing import fits
from paceline.records import DraftSource, ModelIdentity, VerificationRule

if TYPE_CHECKING:
    from tests.gateway.conftest import Servers

SCRIPT = list(range(40, 90))
BLOCK, COUPLED = VerificationRule.REJECTION_BLOCK, VerificationRule.COUPLED


@pytest.mark.parametrize("name", ["", "scripted"])
async def test_a_target_by_name_or_by_default(servers: Servers, name: str) -> None:
    """Without a name the first model serves."""
    tiers = await servers.tiers([await servers.verify(SCRIPT)])
    assert servers.model == choose_target(tiers.targets, name).model


async def test_an_unknown_model(servers: Servers) -> None:
    """NOT_FOUND, with what is served."""
    tiers = await servers.tiers([await servers.verify(SCRIPT)])
    with pytest.raises(NotFound, match=r"'gpt' is not served here; served are \['scripted'\]"):
        choose_target(tiers.targets, "gpt")


async def test_no_target_is_ready(servers: Servers) -> None:
    """UNAVAILABLE, whatever the name: it may be one that comes back."""
    tiers = await servers.tiers([])
    with pytest.raises(Unavailable):
        choose_target(tiers.targets, "scripted")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"name": "other", "fingerprint": "x", "dtype": "bfloat16", "max_length": 9}, True),
        ({"eos_token_ids": (256, 256)}, True),
        ({"tokenizer_fingerprint": "other"}, False),
        ({"vocabulary_size": 258}, False),
        ({"eos_token_ids": (255,)}, False),
        ({"eos_token_ids": ()}, False),
    ],
)
def test_what_makes_a_pair(model: ModelIdentity, change: dict[str, Any], expected: bool) -> None:
    """B44: ids must mean the same and end the same; nothing else matters."""
    assert expected is fits(replace(model, **change), model)


def test_a_source_without_a_model_fits_all(model: ModelIdentity) -> None:
    """Prompt lookup has no vocabulary of its own."""
    assert fits(None, model)


@pytest.mark.parametrize("name", ["", "small"])
async def test_a_misfit_is_refused_with_both_sides(servers: Servers, name: str) -> None:
    """B45: FAILED_PRECONDITION prints what differs, for draft and target."""
    other = replace(servers.model, name="tiny", tokenizer_fingerprint="other", vocabulary_size=9)
    tier = await servers.draft(SCRIPT, sources=(DraftSource("small", other), DraftSource("ngram")))
    tiers = await servers.tiers([], [tier])
    with pytest.raises(FailedPrecondition) as refused:
        check_source(tiers.sources, name, servers.model, BLOCK)
    for part in ("'tiny'", "'other'", "draft 9", "'scripted'", "'byte'", "target 257"):
        assert part in refused.value.message


async def test_other_noise_is_refused_under_the_coupled_rule_alone(servers: Servers) -> None:
    """Two versions of the noise share nothing; the rejection rules need none."""
    older = replace(servers.model, noise_version=servers.model.noise_version + 1)
    tier = await servers.draft(SCRIPT, sources=(DraftSource("small", older), DraftSource("ngram")))
    tiers = await servers.tiers([], [tier])
    check_source(tiers.sources, "small", servers.model, BLOCK)
    check_source(tiers.sources, "ngram", servers.model, COUPLED)
    with pytest.raises(FailedPrecondition, match="noise version: draft 1, target 0"):
        check_source(tiers.sources, "small", servers.model, COUPLED)


@pytest.mark.parametrize("name", ["", "ngram", "none", "small"])
async def test_sources_that_can_be_had(servers: Servers, name: str) -> None:
    """The default, one by name, none at all, and one that only another replica has fitting."""
    other = replace(servers.model, tokenizer_fingerprint="other")
    a = await servers.draft(SCRIPT, sources=(DraftSource("small", other),))
    b = await servers.draft(
        SCRIPT, sources=(DraftSource("small", servers.model), DraftSource("ngram"))
    )
    check_source((await servers.tiers([], [a, b])).sources, name, servers.model, BLOCK)


async def test_an_unknown_source(servers: Servers) -> None:
    """NOT_FOUND, with what is served, with a draft tier or without one."""
    tiers = await servers.tiers([], [await servers.draft(SCRIPT)])
    with pytest.raises(NotFound, match=r"'big' is not served here; served are \['scripted'\]"):
        check_source(tiers.sources, "big", servers.model, BLOCK)
    without = await servers.tiers([])
    with pytest.raises(NotFound, match="no draft tier"):
        check_source(without.sources, "big", servers.model, BLOCK)
    check_source(without.sources, "none", servers.model, BLOCK)
    check_source(without.sources, "", servers.model, BLOCK)


async def test_a_draft_tier_that_is_away_refuses_nothing(servers: Servers) -> None:
    """Without a ready replica nobody can say what does not exist: the generation starts plain."""
    tier = await servers.draft(SCRIPT)
    tiers = await servers.tiers([], [tier])
    for replica in tiers.sources.all():
        replica.stop()
    check_source(tiers.sources, "big", servers.model, BLOCK)
