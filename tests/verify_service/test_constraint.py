"""Structured output through the RPCs of both tiers: every output meets its form."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from paceline.errors import InvalidArgument
from paceline.records import (
    Constraint,
    ConstraintKind,
    Proposal,
    SamplingParams,
    VerificationRule,
)

ALPHABET = '0123[], "ab$'
STOP = ALPHABET.index("$")
SCHEMA = Constraint(
    ConstraintKind.JSON_SCHEMA,
    '{"type": "array", "items": {"enum": [0, 1, 2, 31, "ab"]}, "minItems": 1, "maxItems": 4}',
)
FREE = SamplingParams(stop_token_ids=(STOP,))
SAMPLED = replace(FREE, constraint=SCHEMA)
GREEDY = replace(SAMPLED, temperature=0.0)
#           0    1    2    3    [    ]    ,    ' '  "    a    b    $
TARGET = (0.1, 0.1, 0.1, 0.1, 0.1, 0.2, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05)
OTHER = (0.05, 0.3, 0.05, 0.2, 0.05, 0.05, 0.1, 0.05, 0.05, 0.05, 0.04, 0.01)
LETTERS = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.5, 0.0)
MAX_TOKENS = 25
"""Of the longest output, four times "ab", and its stop."""


def always(number: int) -> Callable[[int], int]:
    """The same number of draft tokens every round."""
    return lambda _: number


def text(token_ids: list[int]) -> str:
    """The text in front of the stop."""
    return "".join(ALPHABET[t] for t in token_ids).split("$")[0]


@pytest.fixture
def write(write_table: Any) -> Callable[..., str]:
    """Writes tables over ALPHABET."""
    return lambda *law: write_table(*law, alphabet=ALPHABET, eos="$")


@pytest.fixture
async def start(tiers: Any, rounds: Any, write: Any) -> Any:
    """A function from a draft's law to a function that runs one generation."""
    verify = await tiers.verify(write(*TARGET))

    async def start_pair(law: Any) -> Any:
        draft_tier = await tiers.draft(write(*law)) if law else None

        async def generate(sampling: SamplingParams, drafted: SamplingParams, **fields: Any) -> Any:
            session = rounds.spec([STOP], sampling=sampling, **fields)
            peer, draft = await verify.open(session), None
            if draft_tier is not None:
                mine = replace(session, sampling=drafted)
                draft = await draft_tier.open(mine, target=await verify.identity())
            return await rounds.run(peer, draft, 1, MAX_TOKENS, always(6))

        return generate

    return start_pair


@pytest.mark.parametrize(
    ("law", "drafted", "rule"),
    [
        (OTHER, SAMPLED, VerificationRule.REJECTION_BLOCK),
        (OTHER, SAMPLED, VerificationRule.COUPLED),
        (OTHER, FREE, VerificationRule.REJECTION_TOKEN),
        (LETTERS, FREE, VerificationRule.REJECTION_BLOCK),
    ],
    ids=["legal", "legal and coupled", "half-legal", "illegal"],
)
async def test_every_output_parses(
    start: Any, rounds: Any, law: Any, drafted: SamplingParams, rule: VerificationRule
) -> None:
    """B35: 240 generations in all at temperature 1, K = 6, in groups that share steps."""
    generate = await start(law)
    outputs, num_accepted = [], 0
    for first in range(0, 60, 20):
        seeds = range(first, first + 20)
        done = await rounds.together(
            *(generate(SAMPLED, drafted, seed=seed, rule=rule) for seed in seeds)
        )
        outputs += [text(one.token_ids) for one in done]
        num_accepted += sum(one.num_accepted for one in done)
    for output in outputs:
        value = json.loads(output)
        assert value and set(value) <= {0, 1, 2, 31, "ab"}
    assert len(set(outputs)) > 10
    assert num_accepted > 0 or law is LETTERS


async def test_without_it_hardly_any_does(start: Any, rounds: Any) -> None:
    """The constraint is what made the others parse."""
    generate = await start(None)
    done = await rounds.together(*(generate(FREE, FREE, seed=seed) for seed in range(20)))
    num_parsed = 0
    for one in done:
        try:
            num_parsed += isinstance(json.loads(text(one.token_ids)), list)
        except json.JSONDecodeError:
            continue
    assert num_parsed < 5


FORM = Constraint(ConstraintKind.REGEX, "([a-z]{2,5} ){6}")


@pytest.mark.parametrize("draft", ["target", "half", "never"])
@pytest.mark.parametrize("knows", [True, False])
async def test_greedy_equals_plain(
    tiers: Any, rounds: Any, networks: Any, draft: str, knows: bool
) -> None:
    """B35: the ids are those of plain constrained decoding, the draft constrained or not."""
    verify, drafts = await tiers.verify(networks.find()), await tiers.draft(networks.find(draft))
    sampling = SamplingParams(temperature=0.0, stop_token_ids=(1,), constraint=FORM)
    session = rounds.spec([10, 20, 30], sampling=sampling)
    plain = await rounds.run(await verify.open(session), None, 3, 24, always(0))
    mine = session if knows else replace(session, sampling=replace(sampling, constraint=None))
    peer = await drafts.open(mine, target=await verify.identity())
    done = await rounds.run(await verify.open(session), peer, 3, 24, always(6))
    assert plain.token_ids == done.token_ids
    assert plain.token_ids != networks.generate([10, 20, 30], 24)
    assert done.num_accepted > 0 or (draft, knows) != ("target", True)


async def test_a_session_opened_again_goes_on(tiers: Any, rounds: Any, networks: Any) -> None:
    """B35: the matcher is made anew from prompt_length and the ids, in the middle of a word."""
    tier = await tiers.verify(networks.find())
    sampling = SamplingParams(temperature=0.0, stop_token_ids=(1,), constraint=FORM)
    session = rounds.spec([10, 20, 30], sampling=sampling)
    whole = await rounds.run(await tier.open(session), None, 3, 24, always(0))
    for length in (1, 8, 15):
        ids = [10, 20, 30, *whole.token_ids[:length]]
        again = rounds.spec(ids, prompt_length=3, sampling=sampling)
        rest = await rounds.run(await tier.open(again), None, len(ids), 24 - length, always(0))
        assert whole.token_ids[length:] == rest.token_ids


async def test_the_matcher_stands_behind_what_is_committed(
    tiers: Any, rounds: Any, write: Any
) -> None:
    """B35: after a rejection, in any place, the next row is masked as if nothing was proposed."""
    tier = await tiers.verify(write(*TARGET))
    exact = replace(GREEDY, constraint=Constraint(ConstraintKind.REGEX, r"\[1, 2, 0\]"))
    proposed = ("[1,", "[1, 2]", "a", "[1, 2, 0]", "[2")
    for proposal in proposed:
        peer = await tier.open(rounds.spec([STOP], sampling=exact))
        ids = tuple(map(ALPHABET.index, proposal))
        verdict = await peer.verify(Proposal(1, 1, ids))
        output = [*ids[: verdict.num_accepted], verdict.next_token_id]
        for number in range(2, 12):
            verdict = await peer.verify(Proposal(number, 1 + len(output)))
            output.append(verdict.next_token_id)
        assert "[1, 2, 0]" == text(output)


@pytest.mark.parametrize(
    ("constraint", "name"),
    [
        (Constraint(ConstraintKind.JSON_SCHEMA, '{"enum": []}'), "json_schema"),
        (Constraint(ConstraintKind.REGEX, "("), "regex"),
        (Constraint(ConstraintKind.GRAMMAR, "start: nobody"), "grammar"),
    ],
)
async def test_an_impossible_form_is_refused_at_open(
    tiers: Any, rounds: Any, write: Any, constraint: Constraint, name: str
) -> None:
    """B35: before anything runs, naming the field, on both tiers."""
    for tier in (await tiers.verify(write(*TARGET)), await tiers.draft(write(*TARGET))):
        peer = tier.connect()
        session = rounds.spec([STOP], sampling=replace(SAMPLED, constraint=constraint))
        await tier.send_open(peer, session)
        refusal = await peer.refusal()
        assert isinstance(refusal, InvalidArgument)
        assert f"session.sampling.constraint.{name}" == refusal.field
        assert 0 == (await tier.load()).num_held_blocks
