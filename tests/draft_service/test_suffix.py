"""Longest matches against a search by hand, votes, and what one tenant knows of another."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from draft_service.config import DraftConfig
from draft_service.drafters.suffix import Past, Pasts, SuffixIndex, SuffixLookup
from draft_service.sources import load_drafters
from paceline.records import Advance, LawEncoding, Proposal, SamplingParams


def longest_match(text: Sequence[int], end: Sequence[int]) -> tuple[int, set[int]]:
    """Length of the longest match of `end` in `text`, at most 32, and every place behind one."""
    best: tuple[int, set[int]] = (0, set())
    for place in range(1, len(text)):
        length = 0
        while length < min(place, len(end), 32) and text[place - 1 - length] == end[-1 - length]:
            length += 1
        if length > best[0]:
            best = length, set()
        if length and length == best[0]:
            best[1].add(place)
    return best


@pytest.mark.parametrize("num_ids", [1, 2, 3, 300])
def test_the_longest_match_is_found(num_ids: int) -> None:
    """In its own text and in another one, built at once or token by token."""
    coin = random.Random(num_ids)
    text = [coin.randrange(num_ids) for _ in range(120)]
    if num_ids == 300:  # ids of more than one byte, and phrases that recur
        text = [256 * t for t in text[:20]] * 3 + text
    grown, other = SuffixIndex(), SuffixIndex(text[:70])
    for length in range(1, len(text) + 1):
        grown.extend(text[length - 1 : length])
        for index, searched in (
            (grown, text[:length]),
            (SuffixIndex(text[:length]), text[:length]),
            (other, text[:70]),
        ):
            found, places = index.find(grown.end())
            expected, every = longest_match(searched, text[:length])
            assert expected == found
            assert set(places) <= every
            assert min(len(every), 16) == len(set(places)) == len(places)


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        ([], ()),
        ([1, 2, 3], ()),
        ([1, 9, 1], ()),  # one token that recurs is chance
        ([1, 2, 3, 1, 2], (3, 1, 2)),
        # The longest match wins over two shorter ones.
        ([7, 1, 2, 5, 1, 2, 6, 1, 2, 6, 7, 1, 2], (5, 1, 2, 6)),
        # Of places with the same match, most say 5 and then 8.
        ([1, 2, 5, 8, 0, 1, 2, 5, 8, 3, 1, 2, 6, 4, 4, 1, 2], (5, 8)),
        ([1, 2, 5, 1, 2, 6, 1, 2, 7, 1, 2], ()),  # three places, three opinions
    ],
)
def test_continuation(token_ids: list[int], expected: tuple[int, ...]) -> None:
    """What most places behind the longest match agree on, as far as half of them do."""
    lookup = SuffixLookup(Pasts(0), _spec(token_ids))
    assert expected == lookup.continuation(4)


@pytest.mark.parametrize("at_once", [1000, 1])
def test_memory_of_a_token(at_once: int) -> None:
    """Eight bytes, its id and its place, and at most an eighth of them to grow."""
    index = SuffixIndex()
    for first in range(0, 1000, at_once):
        index.extend(range(first, first + at_once))
    assert (1000, 999) == (len(index), len(index._places))
    assert 8 == index._ids.itemsize + index._places.itemsize
    assert 4 * 1000 <= len(index._buffer) <= 4 * 1000 * 9 / 8


def test_the_past_is_bounded() -> None:
    """At most as many tokens as are allowed, at least half of that, the latest ones."""
    past, most = Past(100), 0
    for number in range(60):
        past.add([number, number + 1000, number + 2000])
        most = max(most, sum(len(index) for index in past.indices))
    assert 50 < most <= 100
    assert 3 == max(index.find(SuffixIndex([59, 1059, 2059]).end())[0] for index in past.indices)
    assert 0 == max(index.find(SuffixIndex([1, 1001, 2001]).end())[0] for index in past.indices)


def test_an_output_longer_than_the_past() -> None:
    """Its beginning is kept, and no more than fits."""
    past = Past(100)
    past.add(range(1000))
    assert 50 == sum(len(index) for index in past.indices)


def test_tenants_are_bounded() -> None:
    """The tenant that was longest not here is forgotten."""
    pasts = Pasts(100)
    first = pasts.of("first")
    for number in range(63):
        pasts.of(f"tenant {number}")
    assert first is pasts.of("first")
    pasts.of("one more")
    assert first is pasts.of("first")
    for number in range(64):
        pasts.of(f"later {number}")
    assert first is not pasts.of("first")


def test_outputs_are_not_continued_by_one_another() -> None:
    """Nothing is proposed past the end of a finished output, and no match crosses one."""
    pasts = Pasts(100)
    for output in ([1, 2, 3], [4, 5, 6]):
        lookup = SuffixLookup(pasts, _spec([9]))
        lookup.extend(output)
        lookup.close()
    asking = SuffixLookup(pasts, _spec([1, 2]))
    assert (3,) == asking.continuation(4)
    asking.extend([3])
    assert () == asking.continuation(4)
    asking.extend([4])
    assert () == asking.continuation(4)


def _spec(token_ids: Sequence[int], **fields: Any) -> Any:
    """A session whose tokens are all prompt."""
    from paceline.records import SessionSpec, VerificationRule

    rule = VerificationRule.REJECTION_BLOCK
    return SessionSpec(tuple(token_ids), len(token_ids), SamplingParams(), rule, 0, **fields)


# Through the service -----------------------------------------------------------------------------


async def test_a_finished_output_helps_its_tenant_alone(tiers: Any, rounds: Any) -> None:
    """Point masses from what this tenant's earlier session generated; another one sees nothing."""
    tier = await tiers.draft("suffix")
    peer = await tier.open(rounds.spec([1, 2], cache_domain="a"))
    assert Proposal(1, 2) == await peer.draft(Advance(1, 2, (), 4))
    await peer.send_advance(Advance(2, 6, (5, 6, 7, 8), 0))
    await peer.half_close()
    assert None is await peer.receive()
    proposals = {}
    for domain in ("a", "b", ""):
        other = await tier.open(rounds.spec([5, 6], cache_domain=domain))
        proposals[domain] = await other.draft(Advance(1, 2, (), 4))
    assert [(7, 8), (), ()] == [proposals[domain].token_ids for domain in ("a", "b", "")]
    assert (LawEncoding.POINT_MASS, b"") == (proposals["a"].encoding, proposals["a"].law)


async def test_history_can_be_switched_off(tiers: Any, rounds: Any) -> None:
    """B91: with `history_tokens` 0 nothing outlives its session."""
    tier = await tiers.draft("suffix", history_tokens=0)
    peer = await tier.open(rounds.spec([1]))
    await peer.send_advance(Advance(1, 5, (5, 6, 7, 8), 0))
    await peer.half_close()
    assert None is await peer.receive()
    other = await tier.open(rounds.spec([5, 6]))
    assert () == (await other.draft(Advance(1, 2, (), 4))).token_ids


async def test_stop_token_ends_the_block(tiers: Any, rounds: Any) -> None:
    """B28: nothing follows a stop token."""
    tier = await tiers.draft("suffix")
    greedy = SamplingParams(0.0, stop_token_ids=(8,))
    peer = await tier.open(rounds.spec([5, 6, 7, 8, 9, 5, 6], sampling=greedy))
    assert (7, 8) == (await peer.draft(Advance(1, 7, (), 4))).token_ids


def test_two_replicas_share_nothing() -> None:
    """Each load has a past of its own."""
    drafters: list[Any] = [
        load_drafters(DraftConfig(source=["suffix"]))["suffix"] for _ in range(2)
    ]
    one, two = drafters
    assert one._make.args[0] is not two._make.args[0]
