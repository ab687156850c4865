"""Longest matches against a search by hand, votes, and what one tenant knows of another."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from draft_service.config import DraftConfig
from draft_service.drafters.suffix import Past, Pasts, SuffixIndex, SuffixLookup
from draft_service.sources import load_drafters
from paceline.engine import rejection
from paceline.engine.draws import Draws
from paceline.engine.law import Law
from paceline.records import (
    Advance,
    LawEncoding,
    Proposal,
    SamplingParams,
    SessionSpec,
    VerificationRule,
)


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
    asking = SuffixLookup(pasts, _spec([1, 2], has_fresh_seed=True))
    assert (3,) == asking.continuation(4)
    asking.extend([3])
    assert () == asking.continuation(4)
    asking.extend([4])
    assert () == asking.continuation(4)


@pytest.mark.parametrize(
    ("fields", "remembers"),
    [
        ({"has_fresh_seed": True}, True),
        ({}, False),
        ({"rule": VerificationRule.REJECTION_TOKEN}, False),
        ({"rule": VerificationRule.COUPLED}, True),
        ({"sampling": SamplingParams(temperature=0.0)}, True),
    ],
    ids=str,
)
def test_a_seed_that_may_have_been_used(fields: dict[str, Any], remembers: bool) -> None:
    """What the same draws may have made is not proposed to them; its own text always is."""
    pasts = Pasts(100)
    pasts.of("").add([1, 2, 3])
    assert ((3,) if remembers else ()) == SuffixLookup(pasts, _spec([1, 2], **fields)).continuation(
        4
    )
    own = SuffixLookup(pasts, _spec([1, 2, 5, 1, 2], **fields))
    assert (5, 1, 2) == own.continuation(4)


@pytest.mark.parametrize(
    "rule", [VerificationRule.REJECTION_BLOCK, VerificationRule.REJECTION_TOKEN]
)
def test_the_same_seed_again_follows_the_law(rule: VerificationRule) -> None:
    """Over 4,000 seeds the second call with each has the target's law, as the first one has.

    A past that was drawn with the same draws shifts the second token id's share from 0.3 to 0.41
    or more, 15 standard deviations; allowed are 4.
    """
    law, num_seeds = Law(np.arange(3), np.array([0.5, 0.3, 0.2])), 4000
    counts = Counter[int]()
    for seed in range(num_seeds):
        pasts = Pasts(1000)
        first = _generate(pasts, _spec([0, 1, 2], rule=rule, seed=seed), law, 4)
        again = _generate(pasts, _spec([0, 1, 2], rule=rule, seed=seed), law, 4)
        assert 4 == len(first) == len(again)
        counts[again[2]] += 1
    for token_id, share in enumerate((0.5, 0.3, 0.2)):
        deviation = (share * (1 - share) / num_seeds) ** 0.5
        assert abs(counts[token_id] / num_seeds - share) < 4 * deviation


def _generate(pasts: Pasts, spec: SessionSpec, law: Law, num_tokens: int) -> list[int]:
    """An output of a target that has one law everywhere."""
    lookup, draws, output = SuffixLookup(pasts, spec), Draws(spec.seed), list[int]()
    while len(output) < num_tokens:
        proposed = lookup.continuation(num_tokens - len(output) - 1) if output else ()
        outcome = rejection.verify(
            spec.rule,
            [law] * (len(proposed) + 1),
            [Law.point(token_id) for token_id in proposed],
            proposed,
            draws,
            len(spec.token_ids) + len(output),
        )
        new = [*proposed[: outcome.num_accepted], outcome.next_token_id]
        lookup.extend(new)
        output += new
    lookup.close()
    return output


def _spec(token_ids: Sequence[int], **fields: Any) -> SessionSpec:
    """A session whose tokens are all prompt."""
    asked = {
        "sampling": SamplingParams(),
        "rule": VerificationRule.REJECTION_BLOCK,
        "seed": 0,
        **fields,
    }
    return SessionSpec(tuple(token_ids), len(token_ids), **asked)


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
