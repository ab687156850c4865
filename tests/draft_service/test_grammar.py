"""Forced tokens as a source: what a form leaves no choice about, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from draft_service.config import DraftConfig
from draft_service.sources import load_drafters
from paceline.errors import InvalidArgument
from paceline.pairing import check_pair
from paceline.records import Advance, Constraint, ConstraintKind, LawEncoding, SamplingParams

ALPHABET = "abcdef$"
LAW = (0.4, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05)


def ids(text: str) -> tuple[int, ...]:
    """The tokens of a text."""
    return tuple(map(ALPHABET.index, text))


def under(regex: str) -> SamplingParams:
    """Sampling under a regular expression."""
    constraint = Constraint(ConstraintKind.REGEX, regex)
    return SamplingParams(stop_token_ids=(6,), constraint=constraint)


@pytest.fixture
async def tier(tiers: Any, write_table: Any) -> Any:
    """Serves the source for a table's tokens, alone and in front of prompt lookup."""
    target = write_table(*LAW, alphabet=ALPHABET, eos="$")
    return await tiers.draft("grammar", "hybrid:grammar+ngram", target=target)


async def test_forced_tokens_behind_what_is_committed(tier: Any, rounds: Any) -> None:
    """B35: point masses where there is no choice, at most as many as wanted, else silence."""
    peer = await tier.open(rounds.spec([0], sampling=under("c(def|e)[ab]cd")))
    lengths = {1: ((), "c"), 2: (ids("c"), ""), 3: (ids("d"), "ef"), 4: (ids("b"), "cd")}
    for number, (committed, expected) in lengths.items():
        length = 1 + sum(len(lengths[n][0]) for n in range(1, number + 1))
        proposal = await peer.draft(Advance(number, length, committed, 4))
        if number == 3:  # behind cd stands ef; this test then takes the other way
            assert (ids("ef"), LawEncoding.POINT_MASS) == (proposal.token_ids, proposal.encoding)
            await peer.send_advance(Advance(10, length + 2, ids("ef"), 0))
            proposal = await peer.draft(Advance(11, length + 3, ids("a"), 1))
            assert ids("c") == proposal.token_ids
            break
        assert ids(expected) == proposal.token_ids


async def test_silent_without_a_constraint(tier: Any, rounds: Any) -> None:
    """There is nothing to be forced by."""
    peer = await tier.open(rounds.spec([0, 1, 0, 1]))
    assert () == (await peer.draft(Advance(1, 4, (), 4))).token_ids


async def test_in_front_of_prompt_lookup(tier: Any, rounds: Any) -> None:
    """Forced tokens first; where there is a choice, what stood here before."""
    name = "hybrid:grammar+ngram"
    peer = await tier.open(rounds.spec(ids("cde"), sampling=under("abf[cd]+")), source=name)
    assert ids("abf") == (await peer.draft(Advance(1, 3, (), 4))).token_ids
    proposal = await peer.draft(Advance(2, 8, ids("abfcd"), 1))
    assert ids("e") == proposal.token_ids  # looked up, and not legal: the target refuses it


async def test_a_constraint_that_is_malformed(tier: Any, rounds: Any) -> None:
    """INVALID_ARGUMENT names it, as on the verify tier."""
    peer = tier.connect()
    await tier.send_open(peer, rounds.spec([0], sampling=under("(")))
    error = await peer.refusal()
    assert isinstance(error, InvalidArgument)
    assert "session.sampling.constraint.regex" == error.field


async def test_it_speaks_the_targets_tokens(tiers: Any, networks: Any) -> None:
    """B44: it fits the model whose tokenizer it was made from, without a weight being read."""
    (drafter,) = load_drafters(DraftConfig(source=["grammar"], target=networks.find())).values()
    target = await (await tiers.verify(networks.find())).identity()
    assert drafter.source.model is not None
    check_pair(drafter.source.model, target)
    assert ("", 258, (1,)) == (
        drafter.source.model.fingerprint,
        drafter.source.model.vocabulary_size,
        drafter.source.model.eos_token_ids,
    )
