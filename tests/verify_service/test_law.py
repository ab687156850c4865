"""The law of what is emitted, through the RPCs of both tiers: it is the target's.

Long generations with independent positions, many at once; seeds are fixed, so the same tokens are
judged on every run. Every frequency must lie within 4 sigma and the pairs of neighbours pass a
chi-square test at 1e-3; a generation with a fault in it fails either by orders of magnitude.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from scipy.stats import chisquare

from paceline.records import LawEncoding, SamplingParams, VerificationRule

SAMPLED = SamplingParams()
NUM_SESSIONS = 32
each_rule = pytest.mark.parametrize(
    "rule",
    [VerificationRule.REJECTION_BLOCK, VerificationRule.REJECTION_TOKEN],
    ids=lambda r: r.name,
)


@dataclass(frozen=True)
class Trial:
    """Which generations are run."""

    rule: VerificationRule
    num_draft_tokens: int
    num_tokens: int
    draft_sampling: SamplingParams = SAMPLED
    draft_seed: int = 0
    """Added to the seed of each draft session; 0 gives both tiers one seed."""


class Generations:
    """Tables on both tiers, and generations through them."""

    def __init__(self, tiers: Any, rounds: Any, write_table: Any) -> None:
        self._tiers = tiers
        self._rounds = rounds
        self._write_table = write_table

    async def run(self, p: list[float], q: list[float] | None, trial: Trial) -> list[Any]:
        """Runs the generations of a trial with the law p on the target and q on the draft."""
        verify = await self._tiers.verify(self._write_table(*p))
        draft = await self._tiers.draft(self._write_table(*q)) if q else None
        runs = []
        for number in range(NUM_SESSIONS):
            session = self._rounds.spec([0], sampling=SAMPLED, rule=trial.rule, seed=number)
            drafted = self._rounds.spec(
                [0], sampling=trial.draft_sampling, seed=number + trial.draft_seed
            )
            runs.append(
                self._rounds.run(
                    await verify.open(session),
                    await draft.open(drafted) if draft else None,
                    1,
                    trial.num_tokens // NUM_SESSIONS,
                    lambda _: trial.num_draft_tokens,
                )
            )
        transcripts: list[Any] = await self._rounds.together(*runs)
        return transcripts


@pytest.fixture
def generations(tiers: Any, rounds: Any, write_table: Any) -> Generations:
    """Generations through both tiers."""
    return Generations(tiers, rounds, write_table)


def assert_frequencies(p: list[float], token_ids: list[int]) -> None:
    """Every token is as frequent as the target has it."""
    counts = Counter(token_ids)
    for token_id, share in enumerate(p):
        sigma = math.sqrt(share * (1.0 - share) / len(token_ids))
        assert counts[token_id] / len(token_ids) == pytest.approx(share, rel=0, abs=4.0 * sigma)


def assert_law(p: list[float], transcripts: list[Any]) -> None:
    """Tokens follow p, one by one, at the head of each round, and in pairs of neighbours."""
    assert_frequencies(p, [token for one in transcripts for token in one.token_ids])
    assert_frequencies(
        p,
        [
            (*proposal.token_ids[: verdict.num_accepted], verdict.next_token_id)[0]
            for one in transcripts
            for proposal, verdict in one.rounds
        ],
    )
    pairs = Counter(
        pair
        for one in transcripts
        for pair in zip(one.token_ids[::2], one.token_ids[1::2], strict=False)
    )
    possible = [(a, b) for a in range(len(p)) for b in range(len(p)) if p[a] * p[b] > 0.0]
    expected = [p[a] * p[b] * pairs.total() for a, b in possible]
    assert chisquare([pairs[pair] for pair in possible], expected).pvalue > 1e-3


def mean_accepted(transcripts: list[Any]) -> tuple[float, float]:
    """Accepted draft tokens per round, and 4 sigma of it."""
    counts = [v.num_accepted for one in transcripts for _, v in one.rounds]
    mean = sum(counts) / len(counts)
    variance = sum((count - mean) ** 2 for count in counts) / len(counts)
    return mean, 4.0 * math.sqrt(variance / len(counts))


@each_rule
async def test_acceptance_is_the_overlap(generations: Generations, rule: VerificationRule) -> None:
    """B01, B12: one draft token is accepted with sum min(p, q) = 0.90, not sum pq = 0.36."""
    p, q = [0.5, 0.3, 0.2], [0.4, 0.4, 0.2]
    transcripts = await generations.run(p, q, Trial(rule, 1, 2560))
    assert_law(p, transcripts)
    mean, bound = mean_accepted(transcripts)
    assert mean == pytest.approx(0.90, abs=bound)
    encodings = {proposal.encoding for one in transcripts for proposal, _ in one.rounds}
    assert {LawEncoding.SPARSE} == encodings


@each_rule
async def test_acceptance_of_a_chain(generations: Generations, rule: VerificationRule) -> None:
    """B01, B12: of four draft tokens 0.9 + 0.9^2 + 0.9^3 + 0.9^4 pass the token rule.

    The block rule accepts at least as many.
    """
    p, q = [0.5, 0.3, 0.2], [0.4, 0.4, 0.2]
    transcripts = await generations.run(p, q, Trial(rule, 4, 4480))
    assert_law(p, transcripts)
    mean, bound = mean_accepted(transcripts)
    by_token_rule = sum(0.9**i for i in range(1, 5))
    if rule is VerificationRule.REJECTION_TOKEN:
        assert mean == pytest.approx(by_token_rule, abs=bound)
    else:
        assert mean > by_token_rule - bound


@pytest.mark.parametrize(
    ("q", "temperature"),
    [([0.1, 0.3, 0.25, 0.2, 0.1, 0.05], 0.7), ([0.1, 0.45, 0.2, 0.1, 0.1, 0.05], 0.5)],
)
async def test_processed_draft(
    generations: Generations, q: list[float], temperature: float
) -> None:
    """B02: a draft at its own temperature and top-k 2 against a target at temperature 1.

    In the second case the law before processing is far from the one after it: shipping one and
    drawing from the other moves 0.07 of the mass, over 6 sigma.
    """
    p = [0.25, 0.4, 0.15, 0.1, 0.05, 0.05]
    sampling = SamplingParams(temperature=temperature, top_k=2)
    trial = Trial(VerificationRule.REJECTION_BLOCK, 2, 1920, draft_sampling=sampling)
    transcripts = await generations.run(p, q, trial)
    assert_law(p, transcripts)
    drafted = {t for one in transcripts for proposal, _ in one.rounds for t in proposal.token_ids}
    assert {1, 2} == drafted


@pytest.mark.parametrize("draft_seed", [0, 10_000])
async def test_one_seed_on_both_tiers(generations: Generations, draft_seed: int) -> None:
    """B04: whether both tiers are given one seed or two, the law is the target's."""
    p, q = [0.15, 0.55, 0.30], [0.35, 0.25, 0.40]
    trial = Trial(VerificationRule.REJECTION_BLOCK, 3, 3840, draft_seed=draft_seed)
    transcripts = await generations.run(p, q, trial)
    assert_law(p, transcripts)
    assert min(transcripts[0].outcomes[share] for share in ("none", "some", "all")) > 0


@each_rule
@pytest.mark.parametrize("k", [0, 3])
async def test_samples_of_one_seed_differ(
    tiers: Any, rounds: Any, write_table: Any, rule: VerificationRule, k: int
) -> None:
    """B40: twelve samples of one seed are twelve texts, and sample 0 is that of the seed alone."""
    tier = await tiers.verify(write_table(0.5, 0.5))
    draft = await tiers.draft(write_table(0.6, 0.4))

    async def text(**key: int) -> tuple[int, ...]:
        session = rounds.spec([0], sampling=SamplingParams(), rule=rule, seed=7, **key)
        drafting = await draft.open(session, target=await tier.identity())
        peer = await tier.open(session)
        return tuple((await rounds.run(peer, drafting, 1, 40, lambda _: k)).token_ids)

    texts = [await text(sample_index=index) for index in range(12)]
    assert 12 == len(set(texts))
    assert texts[0] == await text()


async def test_places_drafted_again_are_drafted_anew(generations: Generations) -> None:
    """B04: what the block rule spent behind the accepted tokens never comes back.

    Draft tokens keyed by their position alone move 0.04 of the mass here, over 5 sigma.
    """
    p, q = [0.35, 0.65], [0.65, 0.35]
    transcripts = await generations.run(p, q, Trial(VerificationRule.REJECTION_BLOCK, 4, 6400))
    assert_law(p, transcripts)


@each_rule
async def test_impossible_tokens_are_never_recovered(
    generations: Generations, rule: VerificationRule
) -> None:
    """B05: the residual gives nothing to what the target excludes."""
    p, q = [0.5, 0.5, 0.0, 0.0], [0.6, 0.1, 0.3, 0.0]
    transcripts = await generations.run(p, q, Trial(rule, 2, 1280))
    assert_law(p, transcripts)
    assert {0, 1} == {token for one in transcripts for token in one.token_ids}
    mean, bound = mean_accepted(transcripts)
    assert mean > 0.6 - bound


async def test_greedy_draft_is_a_point_mass(generations: Generations) -> None:
    """B06: a draft at temperature 0 ships point masses, each accepted with p(x) = 0.3."""
    p, q = [0.3, 0.5, 0.2], [0.6, 0.2, 0.2]
    sampling = SamplingParams(temperature=0.0)
    trial = Trial(VerificationRule.REJECTION_TOKEN, 1, 1280, draft_sampling=sampling)
    transcripts = await generations.run(p, q, trial)
    assert_law(p, transcripts)
    mean, bound = mean_accepted(transcripts)
    assert mean == pytest.approx(0.3, abs=bound)
    shipped = {
        (proposal.encoding, proposal.law) for one in transcripts for proposal, _ in one.rounds
    }
    assert {(LawEncoding.POINT_MASS, b"")} == shipped


async def test_acceptance_is_not_the_chance_of_a_match(generations: Generations) -> None:
    """B08: 0.8 = sum min(p, q), not the 0.5 = sum pq of two draws that happen to agree."""
    p, q = [0.7, 0.3], [0.5, 0.5]
    transcripts = await generations.run(p, q, Trial(VerificationRule.REJECTION_TOKEN, 1, 1280))
    assert_law(p, transcripts)
    mean, bound = mean_accepted(transcripts)
    assert mean == pytest.approx(0.8, abs=bound)


@pytest.mark.parametrize("q", [None, [0.1, 0.2, 0.3, 0.4]], ids=["plain", "drafted"])
async def test_sampling_is_not_argmax(generations: Generations, q: list[float] | None) -> None:
    """B10: at temperature 1 the law is the target's, with a draft and without."""
    p = [0.4, 0.3, 0.2, 0.1]
    trial = Trial(VerificationRule.REJECTION_BLOCK, 4 if q else 0, 1920)
    assert_law(p, await generations.run(p, q, trial))
