"""A draft whose tokens are not quite its target's: what it proposes, and where it falls silent."""

from __future__ import annotations

from typing import Any

import pytest

from draft_service.config import DraftConfig
from draft_service.sources import load_drafters
from paceline.engine.law import decode_laws
from paceline.errors import FailedPrecondition, InvalidArgument
from paceline.pairing import check_pair
from paceline.records import Advance, Constraint, ConstraintKind, SamplingParams

SAMPLED = SamplingParams()


async def test_a_target_with_one_token_more(tiers: Any, rounds: Any, write_table: Any) -> None:
    """B46: accepted; once that token is committed the draft is silent, and nothing fails."""
    target, draft = write_table(0.4, 0.3, 0.2, 0.1), write_table(0.5, 0.25, 0.25)
    tier, verify = await tiers.draft(draft, target=target), await tiers.verify(target)
    identity = await verify.identity()
    announced = await tier.identity()
    check_pair(announced, identity)
    assert (4, draft) == (announced.vocabulary_size, announced.name)
    sampling = SamplingParams(stop_token_ids=(3,), logit_bias=((3, 1.0),), min_tokens=1)
    peer = await tier.open(rounds.spec([0, 1], sampling=sampling), target=identity)
    assert 2 == len((await peer.draft(Advance(1, 2, (), 2))).token_ids)
    assert () == (await peer.draft(Advance(2, 3, (3,), 2))).token_ids
    assert () == (await peer.draft(Advance(3, 4, (0,), 2))).token_ids
    other = await tier.open(rounds.spec([0, 3]), target=identity)
    assert () == (await other.draft(Advance(1, 2, (), 2))).token_ids
    with pytest.raises(InvalidArgument, match="ids must be under 4"):
        raise await _refusal(tier, rounds.spec([4]), identity)


async def _refusal(tier: Any, session: Any, target: Any) -> Exception:
    peer = tier.connect()
    await tier.send_open(peer, session, target=target)
    refusal: Exception = await peer.refusal()
    return refusal


async def test_a_draft_with_one_token_more(tiers: Any, rounds: Any, write_table: Any) -> None:
    """B44: it never proposes it, and ships the law that it draws from without it."""
    target, draft = write_table(0.5, 0.3, 0.2), write_table(0.1, 0.2, 0.1, 0.6)
    tier = await tiers.draft(draft, target=target)
    identity = await (await tiers.verify(target)).identity()
    peer = await tier.open(rounds.spec([0], sampling=SAMPLED), target=identity)
    proposal = await peer.draft(Advance(1, 1, (), 6))
    assert 6 == len(proposal.token_ids)
    for law in decode_laws(proposal, 3):
        assert [0.25, 0.5, 0.25] == pytest.approx(law.probabilities.tolist(), abs=1e-7)


async def test_greedy_where_the_best_token_is_unknown_to_the_target(
    tiers: Any, rounds: Any, write_table: Any
) -> None:
    """The proposal ends before it."""
    target = write_table(0.5, 0.3, 0.2)
    draft = write_table(0.1, 0.2, 0.1, 0.6, suffixes={"a": [0.1, 0.6, 0.3, 0.0]})
    tier = await tiers.draft(draft, target=target)
    identity = await (await tiers.verify(target)).identity()
    peer = await tier.open(rounds.spec([0]), target=identity)
    assert (1,) == (await peer.draft(Advance(1, 1, (), 4))).token_ids


async def test_an_end_that_the_draft_lacks(tiers: Any, rounds: Any, write_table: Any) -> None:
    """B46: under a constraint it is not among what the draft may draw, and nobody else notices."""
    target, draft = write_table(0.4, 0.3, 0.2, 0.1, eos="d"), write_table(0.4, 0.4, 0.2, eos="c")
    tier = await tiers.draft(draft, target=target, map_ends=True)
    identity = await (await tiers.verify(target)).identity()
    constraint = Constraint(ConstraintKind.REGEX, "ab?")
    sampling = SamplingParams(0.0, stop_token_ids=(3,), constraint=constraint)
    constrained = await tier.open(rounds.spec([0], sampling=sampling), target=identity)
    assert (0, 1) == (await constrained.draft(Advance(1, 1, (), 4))).token_ids
    other = await tier.open(rounds.spec([0]), target=identity)
    assert (0, 0) == (await other.draft(Advance(1, 1, (), 2))).token_ids


async def test_forced_tokens_that_the_target_lacks(
    tiers: Any, rounds: Any, write_table: Any
) -> None:
    """B44: the proposal ends before the first of them."""
    target, draft = write_table(0.5, 0.3, 0.2, eos="c"), write_table(0.2, 0.2, 0.2, 0.4, eos="c")
    tier = await tiers.draft(draft, target=target)
    identity = await (await tiers.verify(target)).identity()
    constraint = Constraint(ConstraintKind.REGEX, "abda")
    sampling = SamplingParams(0.0, stop_token_ids=(2,), constraint=constraint)
    peer = await tier.open(rounds.spec([0], sampling=sampling), target=identity)
    assert (0, 1) == (await peer.draft(Advance(1, 1, (), 4))).token_ids


@pytest.mark.parametrize("draft_ids", [3, 4, 5])
async def test_the_law_of_an_unequal_pair(
    tiers: Any, rounds: Any, write_table: Any, draft_ids: int
) -> None:
    """B44: with tokens missing on either side the output's law is the target's."""
    p = (0.4, 0.3, 0.2, 0.1)
    target = write_table(*p)
    draft = write_table(*[1 / draft_ids] * draft_ids)
    tier, verify = await tiers.draft(draft, target=target), await tiers.verify(target)
    session = rounds.spec([0], sampling=SAMPLED, seed=5)
    peers = await verify.open(session), await tier.open(session, target=await verify.identity())
    counts, num_tokens, num_drafted = [0] * 4, 0, 0
    for _ in range(1 if draft_ids > 3 else 100):  # a shorter draft falls silent for the session
        transcript = await rounds.run(*peers, 1, 1200 if draft_ids > 3 else 10, lambda _: 3)
        num_drafted += transcript.num_drafted
        num_tokens += len(transcript.token_ids)
        for token_id in transcript.token_ids:
            counts[token_id] += 1
        if draft_ids == 3:
            session = rounds.spec([0], sampling=SAMPLED, seed=num_tokens)
            peers = (
                await verify.open(session),
                await tier.open(session, target=await verify.identity()),
            )
    assert num_drafted > 100
    for expected, count in zip(p, counts, strict=True):
        assert expected == pytest.approx(count / num_tokens, abs=4 * (0.25 / num_tokens) ** 0.5)


async def test_each_tier_has_its_own_type(tiers: Any, rounds: Any, networks: Any) -> None:
    """B90: a draft in bfloat16 drafts for a target in float32, whose text it does not change."""
    verify = await tiers.verify(networks.find())
    tier = await tiers.draft(networks.find(), target=networks.find(), dtype="bfloat16")
    types = (await verify.identity()).dtype, (await tier.identity()).dtype
    assert ("float32", "bfloat16") == types
    session = rounds.spec([5, 6, 7])
    transcript = await rounds.run(
        await verify.open(session), await tier.open(session), 3, 40, lambda _: 4
    )
    assert networks.generate([5, 6, 7], 40) == transcript.token_ids
    assert transcript.num_accepted > 0


def test_another_text_for_an_id_is_refused_at_start(write_table: Any) -> None:
    """B46: the service does not start; both strings are in the message."""
    target, draft = write_table(0.5, 0.5), write_table(0.5, 0.5, alphabet="ax")
    with pytest.raises(FailedPrecondition, match="id 1 is 'x' there and 'b' here"):
        load_drafters(DraftConfig(source=[draft], target=target, memory_mib=64))
    # Where no target is named, only a session's target can tell.
    (drafter,) = load_drafters(DraftConfig(source=[draft], memory_mib=64)).values()
    drafter.stop()


def test_other_ends_are_mapped_explicitly(write_table: Any) -> None:
    """B46, B91: refused without `map_ends`; with it the target's ends are announced."""
    target, draft = write_table(0.5, 0.5, eos="a"), write_table(0.5, 0.5, eos="b")
    settings = {"source": [draft], "target": target, "memory_mib": 64}
    with pytest.raises(FailedPrecondition, match=r"are \[1\] there and \[0\] here"):
        load_drafters(DraftConfig(**settings))
    (drafter,) = load_drafters(DraftConfig(**settings, map_ends=True)).values()
    drafter.stop()
    assert drafter.source.model is not None
    assert (0,) == drafter.source.model.eos_token_ids
