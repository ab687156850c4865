"""Prompt lookup: which earlier place is continued, and for how long."""

from __future__ import annotations

from typing import Any

import pytest

from draft_service.drafters.ngram import NgramIndex
from paceline.records import Advance, LawEncoding, Proposal, SamplingParams


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        ([], ()),
        ([1], ()),
        ([1, 2], ()),
        ([1, 2, 3], ()),
        # A pair must recur; one token that recurs is chance.
        ([1, 9, 1], ()),
        ([1, 2, 3, 1, 2], (3, 1, 2)),
        # The longest suffix wins over a later, shorter one.
        ([7, 1, 2, 5, 9, 1, 2, 6, 7, 1, 2], (5, 9, 1, 2)),
        # Of equally long ones the latest wins.
        ([1, 2, 5, 0, 1, 2, 6, 0, 3, 1, 2], (6, 0, 3, 1)),
        # Four tokens are as far as it looks back.
        ([8, 1, 2, 3, 4, 5, 9, 1, 2, 3, 4, 6, 8, 1, 2, 3, 4], (6, 8, 1, 2)),
        # It stops where the text stops; it never takes the end for its own continuation.
        ([1, 1, 1], (1,)),
        ([4, 4], ()),
        ([1, 2, 1, 2], (1, 2)),
    ],
)
def test_continuation(token_ids: list[int], expected: tuple[int, ...]) -> None:
    """What followed the latest place of the longest suffix."""
    assert expected == NgramIndex(token_ids).continuation(4)


def test_piece_by_piece_is_the_same() -> None:
    """Tokens that come in rounds give what they give at once."""
    token_ids = [1, 2, 3, 1, 2, 4, 3, 1, 2, 4, 4, 3, 1]
    pieces = NgramIndex(token_ids[:1])
    for end in range(1, len(token_ids)):
        assert NgramIndex(token_ids[:end]).continuation(5) == pieces.continuation(5)
        pieces.extend(token_ids[end : end + 1])
    assert (2, 4, 4, 3, 1) == pieces.continuation(5)


def test_no_more_than_asked() -> None:
    """The block is as long as wanted, at most."""
    index = NgramIndex([1, 2, 3, 4, 5, 1, 2])
    assert [(3, 4, 5, 1)[:length] for length in range(5)] == [
        index.continuation(length) for length in range(5)
    ]


# Through the service -----------------------------------------------------------------------------


async def test_lookup_through_the_service(tiers: Any, rounds: Any) -> None:
    """B07: found tokens are point masses, and committed tokens are looked up next time."""
    tier = await tiers.draft("ngram")
    peer = await tier.open(rounds.spec([5, 6, 7, 8, 5, 6], sampling=SamplingParams()))
    assert ("ngram", 0) == (peer.opened.source, peer.opened.cached_prefix_length)
    proposal = await peer.draft(Advance(1, 6, (), 3))
    assert (1, 6, (7, 8, 5), LawEncoding.POINT_MASS, b"") == (
        proposal.round,
        proposal.base_length,
        proposal.token_ids,
        proposal.encoding,
        proposal.law,
    )
    proposal = await peer.draft(Advance(2, 9, (9, 5, 6), 2))
    assert (2, 9, (9, 5)) == (proposal.round, proposal.base_length, proposal.token_ids)


async def test_nothing_found(tiers: Any, rounds: Any) -> None:
    """B93: an empty proposal is an answer."""
    tier = await tiers.draft("ngram")
    peer = await tier.open(rounds.spec([5, 6, 7]))
    assert Proposal(1, 3) == await peer.draft(Advance(1, 3, (), 4))


async def test_stop_token_ends_the_block(tiers: Any, rounds: Any) -> None:
    """B28: nothing follows a stop token; the token itself is proposed."""
    tier = await tiers.draft("ngram")
    greedy = SamplingParams(0.0, stop_token_ids=(8,))
    peer = await tier.open(rounds.spec([5, 6, 7, 8, 9, 5, 6], sampling=greedy))
    assert (7, 8) == (await peer.draft(Advance(1, 7, (), 4))).token_ids


async def test_no_more_than_the_replica_makes(tiers: Any, rounds: Any) -> None:
    """B95: a longer block than announced is not made."""
    tier = await tiers.draft("ngram", max_draft_tokens=2)
    peer = await tier.open(rounds.spec([5, 6, 7, 8, 9, 5, 6]))
    assert 2 == peer.opened.max_draft_tokens
    assert (7, 8) == (await peer.draft(Advance(1, 7, (), 8))).token_ids


async def test_any_target_fits(tiers: Any, rounds: Any, networks: Any) -> None:
    """A source without a model knows no vocabulary, and has no limit of its own."""
    tier = await tiers.draft("ngram")
    assert await tier.identity("ngram") is None
    target = await (await tiers.verify(networks.find())).identity()
    peer = await tier.open(rounds.spec([5, 6] * 3000), target=target)
    assert (5, 6) == (await peer.draft(Advance(1, 6000, (), 5))).token_ids


async def test_lookup_drafts_for_a_real_target(tiers: Any, rounds: Any, networks: Any) -> None:
    """B07, B12: looked up blocks, right and wrong ones, leave the greedy text as it is."""
    verify = await tiers.verify(networks.find())
    draft = await tiers.draft("ngram")
    prompt = [5, 6, 7]
    session = rounds.spec(prompt)
    transcript = await rounds.run(
        await verify.open(session), await draft.open(session), 3, 120, lambda _: 4
    )
    assert networks.generate(prompt, 120) == transcript.token_ids
    assert transcript.num_accepted > 0
    assert transcript.outcomes["none"] > 0
