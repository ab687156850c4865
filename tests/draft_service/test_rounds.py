"""Draft and verify together: greedy output is the stock model's, whatever the draft says."""

from __future__ import annotations

import random
from typing import Any

import pytest

from paceline.records import SamplingParams, VerificationRule

PROMPTS = [list(range(5, 5 + length)) for length in range(1, 18)]
NUM_TOKENS = 16


class Pair:
    """One target and one draft."""

    def __init__(self, rounds: Any, verify: Any, draft: Any) -> None:
        self._rounds = rounds
        self._verify = verify
        self._draft = draft

    async def generate(self, session: Any, num_tokens: int, num_draft_tokens: Any) -> Any:
        """Runs one session through both tiers."""
        verify, draft = await self._verify.open(session), await self._draft.open(session)
        transcript = await self._rounds.run(
            verify, draft, len(session.token_ids), num_tokens, num_draft_tokens
        )
        verify.cancel()
        draft.cancel()
        return transcript


@pytest.fixture
def pair(tiers: Any, rounds: Any, networks: Any) -> Any:
    """Starts both tiers with a draft of some kind."""

    async def start(kind: str) -> Pair:
        verify, draft = await tiers.verify(networks.find()), await tiers.draft(networks.find(kind))
        return Pair(rounds, verify, draft)

    return start


@pytest.mark.parametrize(
    ("kind", "outcomes"),
    [("target", {"all"}), ("never", {"none"}), ("half", {"all", "some", "none"})],
)
async def test_output_is_plain_decodings(
    pair: Any, rounds: Any, networks: Any, kind: str, outcomes: set[str]
) -> None:
    """B09, B11, B12, B16, B17: k = 0..8, prompts of 1..17 tokens, full, partial, no acceptance."""
    both = await pair(kind)
    expected = [networks.generate(prompt, NUM_TOKENS) for prompt in PROMPTS]
    seen = set()
    for k in range(9):
        transcripts = await rounds.together(
            *(
                both.generate(rounds.spec(prompt), NUM_TOKENS, lambda _, k=k: k)
                for prompt in PROMPTS
            )
        )
        assert expected == [transcript.token_ids for transcript in transcripts]
        assert (k == 0) == (sum(transcript.num_drafted for transcript in transcripts) == 0)
        for transcript in transcripts:
            seen |= transcript.outcomes.keys()
    assert outcomes == seen


@pytest.mark.parametrize("k", [1, 2, 4, 8])
async def test_own_weights_are_always_accepted(
    pair: Any, rounds: Any, networks: Any, k: int
) -> None:
    """B49, B55: both tiers get the same ids: of the target's own weights every token stands."""
    both = await pair("target")
    transcript = await both.generate(rounds.spec([5, 6, 7]), 128, lambda _: k)
    assert networks.generate([5, 6, 7], 128) == transcript.token_ids
    assert [(k, k)] * len(transcript.rounds) == [
        (len(proposal.token_ids), verdict.num_accepted) for proposal, verdict in transcript.rounds
    ]


@pytest.mark.parametrize(
    "rule", [VerificationRule.REJECTION_BLOCK, VerificationRule.REJECTION_TOKEN]
)
async def test_length_that_changes_every_round(
    pair: Any, rounds: Any, networks: Any, rule: VerificationRule
) -> None:
    """B12, B93: a random k each round, 0 among them, under both rules."""
    both = await pair("half")
    coin = random.Random(5)
    session = rounds.spec([5, 6, 7], rule=rule)
    transcript = await both.generate(session, 100, lambda _: coin.randrange(9))
    assert networks.generate([5, 6, 7], 100) == transcript.token_ids
    lengths = {len(proposal.token_ids) for proposal, _ in transcript.rounds}
    assert {0, 8} <= lengths
    assert {"all", "some", "none"} == transcript.outcomes.keys()


@pytest.mark.parametrize("length", range(1, 10))
async def test_stop_token_inside_a_block(
    pair: Any, rounds: Any, networks: Any, length: int
) -> None:
    """B20: wherever in a block the stop token falls, nothing is drafted behind it."""
    prompt = PROMPTS[length - 1]
    greedy = networks.generate(prompt, NUM_TOKENS)
    stop = greedy[13]
    both = await pair("target")
    session = rounds.spec(prompt, sampling=SamplingParams(0.0, stop_token_ids=(stop,)))
    transcript = await both.generate(session, NUM_TOKENS, lambda _: 8)
    assert greedy == transcript.token_ids  # who commits cuts at the stop; the tiers go on
    drafted = [proposal.token_ids for proposal, _ in transcript.rounds]
    assert all(stop not in token_ids[:-1] for token_ids in drafted)
    assert any(len(token_ids) == 8 or token_ids[-1] == stop for token_ids in drafted)


async def test_draft_with_a_shorter_context(pair: Any, rounds: Any, networks: Any) -> None:
    """B62: past the draft's last place the target goes on alone, and the text is the same."""
    both = await pair("short")
    prompt = [5] * 25
    transcript = await both.generate(rounds.spec(prompt), 60, lambda _: 4)
    assert networks.generate(prompt, 60) == transcript.token_ids
    assert transcript.num_drafted > 0
    assert () == transcript.rounds[-1][0].token_ids


async def test_sessions_one_after_another(pair: Any, rounds: Any, networks: Any) -> None:
    """B59: nothing of one session reaches the next; its own weights stay fully accepted."""
    both = await pair("target")
    coin = random.Random(7)
    for _ in range(20):
        prompt = [coin.randrange(2, 258) for _ in range(coin.randrange(1, 40))]
        transcript = await both.generate(rounds.spec(prompt), 12, lambda _: 5)
        assert networks.generate(prompt, 12) == transcript.token_ids
        assert transcript.num_drafted == transcript.num_accepted
