"""A model as a source under a constraint: it drafts what the form allows, forced tokens first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paceline.engine.law import decode_laws
from paceline.records import (
    Advance,
    Constraint,
    ConstraintKind,
    LawEncoding,
    SamplingParams,
    VerificationRule,
)

ALPHABET = "abcdef$"
STOP = 6
LAW = (0.4, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05)


def ids(text: str) -> tuple[int, ...]:
    """The tokens of a text."""
    return tuple(map(ALPHABET.index, text))


@pytest.fixture
async def draft(tiers: Any, rounds: Any, write_table: Any) -> Any:
    """Drafts behind an output under a regular expression."""
    tier = await tiers.draft(write_table(*LAW, alphabet=ALPHABET, eos="$"))

    async def run(regex: str, output: str, num_tokens: int, **fields: Any) -> Any:
        constraint = Constraint(ConstraintKind.REGEX, regex)
        sampling = SamplingParams(stop_token_ids=(STOP,), constraint=constraint)
        peer = await tier.open(rounds.spec([0], sampling=sampling, **fields))
        return await peer.draft(Advance(1, 1 + len(output), ids(output), num_tokens))

    return run


async def test_forced_tokens_come_first_as_point_masses(draft: Any) -> None:
    """B35: what must come costs no draw; behind it the draft's own law goes on."""
    proposal = await draft("cdef[ab]+", "c", 6)
    assert ids("def") == proposal.token_ids[:3]
    laws = decode_laws(proposal, len(ALPHABET))
    assert [[3], [4], [5]] == [law.token_ids.tolist() for law in laws[:3]]
    assert [0, 1] == laws[3].token_ids.tolist()
    assert [2 / 3, 1 / 3] == pytest.approx(laws[3].probabilities.tolist())


async def test_more_is_forced_than_was_asked_for(draft: Any) -> None:
    """A proposal is never longer than the round allows."""
    assert ids("de") == (await draft("cdefa", "c", 2)).token_ids


async def test_a_complete_form_is_followed_by_the_stop(draft: Any) -> None:
    """And the chain ends there."""
    assert ids("b$") == (await draft("ab", "a", 5)).token_ids


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rule", VerificationRule)
async def test_every_proposal_begins_the_form(
    draft: Any, rule: VerificationRule, seed: int
) -> None:
    """B35: under every rule what is drafted is legal at every place."""
    proposal = await draft("((ab|ba)c)*", "abc", 6, seed=seed, rule=rule)
    text = "".join(ALPHABET[t] for t in proposal.token_ids)
    for start in range(0, len(text), 3):
        assert text[start : start + 3] in ("abc", "bac", "$")
    if rule is VerificationRule.COUPLED:
        assert LawEncoding.SHARED_NOISE == proposal.encoding


async def test_a_proposal_that_is_not_taken_leaves_no_trace(
    tiers: Any, rounds: Any, write_table: Any
) -> None:
    """B35: the draft's matcher follows what was committed, not what it proposed."""
    tier = await tiers.draft(write_table(*LAW, alphabet=ALPHABET, eos="$"))
    constraint = Constraint(ConstraintKind.REGEX, "(acd|bef)+")
    sampling = SamplingParams(temperature=0.0, stop_token_ids=(STOP,), constraint=constraint)
    peer = await tier.open(rounds.spec([0], sampling=sampling))
    drafts: Callable[[Advance], Any] = peer.draft
    assert ids("acdac") == (await drafts(Advance(1, 1, (), 5))).token_ids
    assert ids("efacd") == (await drafts(Advance(2, 2, ids("b"), 5))).token_ids
    await peer.send_advance(Advance(3, 4, ids("ef"), 0))
    assert ids("cda") == (await drafts(Advance(4, 5, ids("a"), 3))).token_ids
