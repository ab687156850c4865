"""The loop against scripted tiers: output is the target's, whatever the draft does."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gateway.commit import Ending
from gateway.draft_length import FinishedRound, FixedLength
from gateway.tokenizer import Tokenizer
from paceline.errors import FailedPrecondition, InvalidArgument
from paceline.records import Advance, FinishReason, Proposal, TokenOrigin

if TYPE_CHECKING:
    from tests.gateway.conftest import Loop

SCRIPT = [(7 * i * i + 3 * i) % 256 for i in range(80)]
EOS = 256


@pytest.mark.parametrize("mode", ["right", "wrong", "mixed"])
@pytest.mark.parametrize("num_draft_tokens", range(9))
async def test_output_is_the_scripts(loop: Loop, num_draft_tokens: int, mode: str) -> None:
    """Any length and any draft give what plain decoding gives."""
    ending = Ending(max_tokens=40)
    outcome = await loop.run(SCRIPT, ending, num_draft_tokens=num_draft_tokens, mode=mode)
    plain = await loop.run(SCRIPT, ending, num_draft_tokens=0)
    assert SCRIPT[:40] == plain.token_ids == outcome.token_ids
    assert plain.text == outcome.text
    assert FinishReason.LENGTH is outcome.events[-1].finish_reason
    assert all(event.finish_reason is None for event in outcome.events[:-1])


async def test_the_three_drafts_differ(loop: Loop) -> None:
    """The equalities above see rounds with full, partial and no acceptance."""
    rates = [
        (await loop.run(SCRIPT, Ending(max_tokens=40), mode=mode)).stats.acceptance_rate
        for mode in ("right", "mixed", "wrong")
    ]
    assert (1.0, 0.0) == (rates[0], rates[2])
    assert 0.0 < rates[1] < 1.0


@pytest.mark.parametrize("prompt_length", range(1, 10))
@pytest.mark.parametrize("num_draft_tokens", [0, 1, 8])
async def test_a_stop_token_inside_a_block(
    loop: Loop, num_draft_tokens: int, prompt_length: int
) -> None:
    """B20: an end of sequence at output position 13 is the last id, at every place of a block."""
    script = [*SCRIPT[:13], EOS, *SCRIPT[13:]]
    ending = Ending(max_tokens=40, stop_token_ids=frozenset({EOS}))
    outcome = await loop.run(
        script, ending, num_draft_tokens=num_draft_tokens, prompt_length=prompt_length
    )
    assert script[:14] == outcome.token_ids
    assert FinishReason.STOP is outcome.events[-1].finish_reason


async def test_without_stop_tokens_the_end_of_sequence_is_a_token(loop: Loop) -> None:
    """B20: ignore_eos leaves no stop ids, and all 40 tokens come."""
    script = [*SCRIPT[:13], EOS, *SCRIPT[13:]]
    assert script[:40] == (await loop.run(script, Ending(max_tokens=40))).token_ids


@pytest.mark.parametrize("num_draft_tokens", range(9))
@pytest.mark.parametrize("stops", [("STOP",), ("O",), ("OPx",), ("TOPx", "STO")])
async def test_a_stop_string_at_every_split(
    loop: Loop, bytes_tokenizer: Tokenizer, num_draft_tokens: int, stops: tuple[str, ...]
) -> None:
    """B21, B22: the result does not depend on how blocks cut the stop string."""
    script = list(bytes_tokenizer.encode("abcSTOPxyz0123456789"))
    ending = Ending(max_tokens=20, stop_strings=stops)
    outcome = await loop.run(script, ending, num_draft_tokens=num_draft_tokens)
    plain = await loop.run(script, ending, num_draft_tokens=0)
    assert (plain.text, plain.token_ids) == (outcome.text, outcome.token_ids)
    assert FinishReason.STOP is outcome.events[-1].finish_reason


@pytest.mark.parametrize("max_tokens", range(1, 21))
async def test_the_budget_is_exact_and_known_to_the_draft(loop: Loop, max_tokens: int) -> None:
    """B25: exactly max_tokens come, and the draft is never asked for the last one."""
    outcome = await loop.run(SCRIPT, Ending(max_tokens=max_tokens), num_draft_tokens=8)
    assert SCRIPT[:max_tokens] == outcome.token_ids
    committed = [advance.committed_length - 3 for advance in outcome.advances]
    for num_committed, advance in zip(committed, outcome.advances, strict=True):
        assert min(8, max_tokens - num_committed - 1) == advance.num_draft_tokens


@pytest.mark.parametrize("prompt_length", [50, *range(55, 64)])
async def test_no_position_past_the_context(loop: Loop, prompt_length: int) -> None:
    """B63, B64: at the end of a context of 64 the target never sees a position of 64 or more."""
    ending = Ending(max_tokens=64 - prompt_length)
    outcome = await loop.run(SCRIPT, ending, num_draft_tokens=8, prompt_length=prompt_length)
    assert SCRIPT[: 64 - prompt_length] == outcome.token_ids
    assert FinishReason.LENGTH is outcome.events[-1].finish_reason
    # The last draft token sits at position base_length + length - 1.
    assert all(p.base_length + len(p.token_ids) <= 63 for p in outcome.proposals)


async def test_the_first_proposal_is_empty(loop: Loop) -> None:
    """The first token waits for no draft."""
    outcome = await loop.run(SCRIPT, Ending(max_tokens=9))
    assert Proposal(1, 3) == outcome.proposals[0]
    assert (TokenOrigin.PLAIN,) == outcome.events[0].origins
    assert Advance(2, 4, (SCRIPT[0],), 4) == outcome.advances[0]


async def test_the_draft_hears_every_committed_token_once(loop: Loop) -> None:
    """Rounds count up and the new ids of all advances are the output, but for the last round."""
    outcome = await loop.run(SCRIPT, Ending(max_tokens=40), mode="mixed")
    advances = outcome.advances
    assert list(range(2, 2 + len(advances))) == [advance.round for advance in advances]
    told = [token_id for advance in advances for token_id in advance.new_token_ids]
    assert outcome.token_ids[: len(told)] == told
    assert len(outcome.token_ids) - len(told) == len(outcome.events[-1].token_ids)


async def test_a_length_of_zero_keeps_the_draft_warm(loop: Loop) -> None:
    """At k = 0 the round still tells the draft what was committed, and asks for nothing."""
    outcome = await loop.run(SCRIPT, Ending(max_tokens=5), num_draft_tokens=0)
    assert [0, 0, 0, 0] == [advance.num_draft_tokens for advance in outcome.advances]
    assert 5 == outcome.stats.num_plain_rounds


async def test_the_policy_is_told_of_every_round_but_the_first(loop: Loop) -> None:
    """The first opens the streams; plain rounds count, they are what drafting is held against."""

    class Alternating(FixedLength):
        def __init__(self) -> None:
            super().__init__(0)
            self.told: list[FinishedRound] = []

        @property
        def num_draft_tokens(self) -> int:
            return 0 if len(self.told) % 2 else 3

        def observe(self, finished: FinishedRound) -> None:
            self.told.append(finished)

    policy = Alternating()
    await loop.run(SCRIPT, Ending(max_tokens=12), policy=policy)
    told = [(one.num_asked, one.num_drafted, one.num_accepted) for one in policy.told]
    assert [(3, 3, 3), (0, 0, 0)] * 2 == told[:4]
    assert all(one.round_s > 0 for one in policy.told)


async def test_the_shorter_limit_wins(loop: Loop) -> None:
    """B95: with 8 wanted and a target that takes 4, proposals have at most 4."""
    outcome = await loop.run(SCRIPT, Ending(max_tokens=30), num_draft_tokens=8, max_draft_tokens=4)
    assert 4 == max(len(proposal.token_ids) for proposal in outcome.proposals)
    assert SCRIPT[:30] == outcome.token_ids


@pytest.mark.parametrize("empty_rounds", [{2}, {6}, set(range(100))])
async def test_empty_proposals_are_legal(loop: Loop, empty_rounds: set[int]) -> None:
    """B93: a draft without an idea in the first, the last or every round costs nothing but time."""

    def alter(proposal: Proposal) -> Proposal:
        return replace(proposal, token_ids=()) if proposal.round in empty_rounds else proposal

    outcome = await loop.run(SCRIPT, Ending(max_tokens=26), alter_proposal=alter)
    assert SCRIPT[:26] == outcome.token_ids
    assert outcome.stats.num_plain_rounds >= 2


async def test_an_end_of_sequence_that_the_target_rejects(loop: Loop) -> None:
    """B28: a draft that ends every block after one token with its own end of sequence."""
    outcome = await loop.run(
        SCRIPT,
        Ending(max_tokens=32, stop_token_ids=frozenset({EOS})),
        alter_proposal=lambda p: replace(p, token_ids=(*p.token_ids[:1], EOS)[: len(p.token_ids)]),
    )
    assert SCRIPT[:32] == outcome.token_ids
    assert 0 < outcome.stats.num_accepted < outcome.stats.num_drafted


async def test_counts_of_scripted_rounds(loop: Loop) -> None:
    """B81: through the loop, acceptance of a draft that is always right is exactly 1."""
    stats = (await loop.run(SCRIPT, Ending(max_tokens=26))).stats
    assert (1.0, 5.0) == (stats.acceptance_rate, stats.acceptance_length)
    assert (5, 1, 20, 20) == (
        stats.num_rounds,
        stats.num_plain_rounds,
        stats.num_drafted,
        stats.num_accepted,
    )


@pytest.mark.parametrize("num_draft_tokens", range(1, 9))
async def test_pieces_add_up(loop: Loop, bytes_tokenizer: Tokenizer, num_draft_tokens: int) -> None:
    """B77, B80: whatever the blocks, the pieces are the text, and no piece holds half a letter."""
    text = "<a>🙂é</a> 漢🏳️‍🌈<a></a>"
    script = list(bytes_tokenizer.encode(text))
    ending = Ending(max_tokens=len(script))
    outcome = await loop.run(script, ending, num_draft_tokens=num_draft_tokens, mode="mixed")
    assert text == outcome.text
    assert not any("\ufffd" in event.text for event in outcome.events)


async def test_a_pair_that_does_not_fit_ends_the_generation(loop: Loop) -> None:
    """The one failure of a draft that is the generation's: it will never fit."""

    def refuse(proposal: Proposal) -> Proposal:
        raise FailedPrecondition("no")

    with pytest.raises(FailedPrecondition):
        await loop.run(SCRIPT, Ending(max_tokens=40), alter_proposal=refuse)


async def test_a_refused_proposal_costs_the_draft_and_not_the_text(loop: Loop) -> None:
    """A malformed law: that round is decoded plainly and so is the rest, without the draft."""
    refusal = InvalidArgument("proposal.law", "ends within draft token 0")
    outcome = await loop.run(SCRIPT, Ending(max_tokens=26), refusals={3: refusal})
    assert SCRIPT[:26] == outcome.token_ids
    assert ["malformed"] == outcome.causes
    refused, instead = outcome.proposals[2:4]
    assert (3, 4, 3, 0) == (
        refused.round,
        len(refused.token_ids),
        instead.round,
        len(instead.token_ids),
    )
    assert (1, 4) == (outcome.stats.num_rounds, outcome.stats.num_drafted)
    assert not any(proposal.token_ids for proposal in outcome.proposals[3:])


@pytest.mark.parametrize(
    ("number", "refusal"),
    [
        (3, InvalidArgument("sampling", "no token is left", reason="NO_TOKEN_LEFT")),
        (1, InvalidArgument("proposal.token_ids", "no room is left")),
    ],
)
async def test_other_refusals_end_the_generation(
    loop: Loop, number: int, refusal: InvalidArgument
) -> None:
    """What the client asked for, and an empty proposal, are no draft's fault."""
    with pytest.raises(InvalidArgument):
        await loop.run(SCRIPT, Ending(max_tokens=26), refusals={number: refusal})
