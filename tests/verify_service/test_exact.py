"""Exact mode through the RPCs: tokens and log-probabilities with the same bits, come what may."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from paceline.records import SamplingParams, TokenLogProbs, VerificationRule

PROMPT = [5, 6, 7, 5, 6]
NUM_TOKENS = 40
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, num_log_probs=3)
Text = tuple[list[int], list[TokenLogProbs]]


class Target:
    """An exact target, and drafts for it."""

    def __init__(self, rounds: Any, verify: Any, draft: Any) -> None:
        self._rounds = rounds
        self._verify = verify
        self._draft = draft

    async def generate(
        self, k: int, source: str = "ngram", committed: Sequence[int] = (), seed: int = 3
    ) -> Text:
        """Tokens and their log-probabilities; `committed` opens with that much output."""
        session = self._rounds.spec(
            [*PROMPT, *committed],
            prompt_length=len(PROMPT),
            sampling=SAMPLED,
            rule=VerificationRule.COUPLED,
            seed=seed,
        )
        target = await self._verify.identity()
        peer = await self._verify.open(session, target.fingerprint)
        drafter = await self._draft.open(session, source, target)
        transcript = await self._rounds.run(
            peer, drafter, len(session.token_ids), NUM_TOKENS - len(committed), lambda _: k
        )
        peer.cancel()
        drafter.cancel()
        log_probs = [one for _, verdict in transcript.rounds for one in verdict.log_probs]
        return transcript.token_ids, log_probs[: len(transcript.token_ids)]


@pytest.fixture(params=["", "quantized:int8:"], ids=["float32", "int8"])
async def target(request: Any, tiers: Any, rounds: Any, networks: Any) -> Target:
    """The tiny network in float32 and in int8, with prompt lookup and a near draft."""
    name = f"{request.param}{networks.find()}"
    draft = await tiers.draft("ngram", networks.find("half"), target=name)
    return Target(rounds, await tiers.verify(name, exact=True), draft)


async def test_draft_length_changes_no_bit(target: Target, networks: Any) -> None:
    """B12, B15, B37: the numbers themselves are equal, not only what was drawn from them."""
    plain = await target.generate(0)
    assert NUM_TOKENS == len(plain[0]) == len(plain[1])
    for source in ("ngram", networks.find("half")):
        for k in (1, 4, 8):
            assert plain == await target.generate(k, source)


async def test_reopening_changes_no_bit(target: Target, networks: Any) -> None:
    """B127: what was decoded is a prompt to the next replica, and computes the same there."""
    token_ids, log_probs = await target.generate(4, networks.find("half"))
    for length in (1, 7, 23):
        rest = await target.generate(3, committed=token_ids[:length])
        assert (token_ids[length:], log_probs[length:]) == rest


async def test_company_changes_no_bit(target: Target, rounds: Any, networks: Any) -> None:
    """B37: alone, and among seven others of other seeds and lengths."""
    source = networks.find("half")
    alone = await target.generate(4, source)
    together = await rounds.together(
        target.generate(4, source), *(target.generate(k, source, seed=k) for k in range(10, 16))
    )
    assert alone == together[0]
    assert alone[0] not in [token_ids for token_ids, _ in together[1:]]


async def test_identity_says_so(tiers: Any, networks: Any) -> None:
    """`exact` travels, and no generation moves between replicas of the two modes."""
    fast = await (await tiers.verify(networks.find())).identity()
    exact = await (await tiers.verify(networks.find(), exact=True)).identity()
    assert (False, True) == (fast.exact, exact.exact)
    assert fast.fingerprint != exact.fingerprint
