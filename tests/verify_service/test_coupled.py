"""The coupled rule through the RPCs of both tiers: a seed fixes the output, whatever is drafted."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from paceline.engine.coupling import Noise
from paceline.engine.law import Law
from paceline.records import (
    Advance,
    LawEncoding,
    Proposal,
    SamplingParams,
    VerdictKind,
    VerificationRule,
)

COUPLED = VerificationRule.COUPLED
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95)
PROMPT = [5, 6, 7, 5, 6]
NUM_TOKENS = 32
LENGTHS = (0, 1, 2, 4, 8)


class Text:
    """What one target gives from one prompt, whatever drafts for it."""

    def __init__(self, rounds: Any, verify: Any, prompt: list[int], sampling: Any) -> None:
        self._rounds = rounds
        self._verify = verify
        self._prompt = prompt
        self._sampling = sampling

    async def generate(
        self, draft: Any = None, source: str = "", lengths: Any = lambda _: 0, **fields: Any
    ) -> Any:
        """Rounds on sessions of their own; `committed` opens them with that much output."""
        committed = list(fields.pop("committed", ()))
        session = self._rounds.spec(
            [*self._prompt, *committed],
            prompt_length=len(self._prompt),
            sampling=self._sampling,
            rule=COUPLED,
            **{"seed": 3, **fields},
        )
        target = await self._verify.identity()
        peer = await self._verify.open(session)
        drafter = await draft.open(session, source, target) if draft else None
        transcript = await self._rounds.run(
            peer, drafter, len(session.token_ids), NUM_TOKENS - len(committed), lengths
        )
        peer.cancel()
        if drafter is not None:
            drafter.cancel()
        return transcript


@pytest.fixture
async def text(tiers: Any, rounds: Any, networks: Any) -> Text:
    """Sampled text of the tiny network."""
    return Text(rounds, await tiers.verify(networks.find()), PROMPT, SAMPLED)


@pytest.fixture
async def drafts(tiers: Any, networks: Any) -> Any:
    """Sources of every kind: near, never right, the target's own weights, int8, and no model."""
    kinds = [networks.find(kind) for kind in ("half", "never", "target")]
    return await tiers.draft(*kinds, "quantized:int8", "ngram", target=networks.find())


async def test_the_draft_changes_nothing(
    text: Text, drafts: Any, networks: Any, rounds: Any
) -> None:
    """B12, B37: identical ids for every source and length, and for lengths that change."""
    coin = random.Random(2)
    lengths = [lambda _, k=k: k for k in LENGTHS] + [lambda _: coin.randrange(9)]
    plain = (await text.generate()).token_ids
    assert NUM_TOKENS == len(plain)
    assert len(set(plain)) > 10
    kinds = [networks.find(kind) for kind in ("half", "never", "target")]
    outcomes: Counter[str] = Counter()
    for source in (*kinds, "quantized:int8", "ngram"):
        runs = await rounds.together(*(text.generate(drafts, source, each) for each in lengths))
        assert [plain] * len(lengths) == [run.token_ids for run in runs]
        outcomes += sum((run.outcomes for run in runs), Counter())
    assert min(outcomes[share] for share in ("none", "some", "all")) > 0


async def test_equal_laws_draw_equal_tokens(tiers: Any, rounds: Any, networks: Any) -> None:
    """The target's own weights are accepted but for the 0.005 of the mass that a draft drops."""
    text = Text(rounds, await tiers.verify(networks.find()), PROMPT, SamplingParams(top_k=20))
    transcript = await text.generate(await tiers.draft(networks.find()), "", lambda _: 4)
    assert len(set(transcript.token_ids)) > 10
    assert transcript.num_accepted > 0.9 * transcript.num_drafted
    encodings = {proposal.encoding for proposal, _ in transcript.rounds}
    assert {LawEncoding.SHARED_NOISE} == encodings


@pytest.mark.parametrize("length", [1, 7, 23])
async def test_reopening_in_mid_stream(text: Text, drafts: Any, networks: Any, length: int) -> None:
    """B127: new streams with what is committed go on with the same text, at another length."""
    plain = (await text.generate()).token_ids
    source = networks.find("half")
    rest = await text.generate(drafts, source, lambda _: 3, committed=plain[:length])
    assert plain == [*plain[:length], *rest.token_ids]
    without = await text.generate(committed=plain[:length])
    assert rest.token_ids == without.token_ids


async def test_company_changes_nothing(text: Text, drafts: Any, networks: Any, rounds: Any) -> None:
    """B37: the same ids alone, after others, and among eight at once."""
    alone = (await text.generate(drafts, "ngram", lambda _: 4)).token_ids
    seeds = [3, 4, 5, 6, 3, 7, 8, 9]
    source = networks.find("half")
    together = await rounds.together(
        *(text.generate(drafts, source, lambda _: 4, seed=seed) for seed in seeds)
    )
    texts = [tuple(transcript.token_ids) for transcript in together]
    assert [0, 4] == [number for number, ids in enumerate(texts) if list(ids) == alone]
    assert 7 == len(set(texts))


@pytest.mark.parametrize("k", [0, 4])
async def test_seeds_and_samples_differ(tiers: Any, rounds: Any, write_table: Any, k: int) -> None:
    """B40: twenty seeds give twenty texts, and so do twenty samples of one seed."""
    name = write_table(0.5, 0.5)
    text = Text(rounds, await tiers.verify(name), [0], SamplingParams())
    draft = await tiers.draft(write_table(0.6, 0.4))
    for keys in ([{"seed": n} for n in range(20)], [{"sample_index": n} for n in range(20)]):
        runs = [await text.generate(draft, "", lambda _: k, **key) for key in keys]
        assert 20 == len({tuple(run.token_ids) for run in runs})


@pytest.mark.parametrize("k", LENGTHS)
async def test_text_is_the_targets_own_race(
    tiers: Any, rounds: Any, write_table: Any, k: int
) -> None:
    """By the definition: the token at a position is the race of the target's law there."""
    p = [0.4, 0.3, 0.2, 0.1]
    text = Text(rounds, await tiers.verify(write_table(*p)), [0], SamplingParams())
    transcript = await text.generate(
        await tiers.draft(write_table(0.1, 0.4, 0.4, 0.1)), "", lambda _: k, seed=2**64 - 1
    )
    noise, law = Noise(2**64 - 1, 0), Law(np.arange(4), np.array(p))
    expected = [noise.draw(law, 1 + index) for index in range(NUM_TOKENS)]
    assert expected == transcript.token_ids
    assert (k == 0) == (transcript.num_drafted == 0)


async def test_law_of_the_output(tiers: Any, rounds: Any, write_table: Any) -> None:
    """B01: at temperature 1 the tokens of many seeds follow p, with a draft that is often wrong."""
    p = [0.5, 0.3, 0.2]
    text = Text(rounds, await tiers.verify(write_table(*p)), [0], SamplingParams())
    draft = await tiers.draft(write_table(0.2, 0.3, 0.5))
    runs = await rounds.together(
        *(text.generate(draft, "", lambda _: 3, seed=seed) for seed in range(64))
    )
    counts = Counter(token for run in runs for token in run.token_ids)
    expected = [share * counts.total() for share in p]
    assert chisquare([counts[token] for token in range(3)], expected).pvalue > 1e-3
    accepted = sum(run.num_accepted for run in runs)
    assert 0 < accepted < sum(run.num_drafted for run in runs)


async def test_temperature_0_is_plain_decoding(
    tiers: Any, rounds: Any, networks: Any, drafts: Any
) -> None:
    """B14: greedy text needs no seed and knows no rule."""
    greedy = SamplingParams(temperature=0.0)
    text = Text(rounds, await tiers.verify(networks.find()), PROMPT, greedy)
    for seed in (1, 2):
        transcript = await text.generate(drafts, networks.find("half"), lambda _: 4, seed=seed)
        assert networks.generate(PROMPT, NUM_TOKENS) == transcript.token_ids


@pytest.mark.parametrize(
    ("encoding", "law"),
    [
        (LawEncoding.SHARED_NOISE, b""),
        (LawEncoding.POINT_MASS, b""),
        (LawEncoding.SPARSE, b"\x01\x00\x00\x00\x02\x00\x00\x00\x01\x00\x00\x00"),
        (LawEncoding.DENSE, bytes(12)),
    ],
)
async def test_the_law_of_a_draft_is_not_read(
    tiers: Any, rounds: Any, cycle: str, encoding: LawEncoding, law: bytes
) -> None:
    """A draft token stands where it equals the target's draw, wherever it came from."""
    tier = await tiers.verify(cycle)
    for token_ids, expected in (
        ((1,), (1, 2, VerdictKind.BONUS)),
        ((2,), (0, 1, VerdictKind.RECOVERED)),
    ):
        peer = await tier.open(rounds.spec([0], sampling=SamplingParams(), rule=COUPLED))
        verdict = await peer.verify(Proposal(1, 1, token_ids, encoding, law))
        assert expected == (verdict.num_accepted, verdict.next_token_id, verdict.kind)


async def test_other_rules_have_other_draws(tiers: Any, rounds: Any, write_table: Any) -> None:
    """B04: under one seed the rules share no noise, neither on the target nor on the draft."""
    uniform = [0.1] * 10
    verify, draft = (
        await tiers.verify(write_table(*uniform)),
        await tiers.draft(write_table(*uniform)),
    )
    texts, blocks = set(), set()
    for rule in VerificationRule:
        session = rounds.spec([0], sampling=SamplingParams(), seed=5, rule=rule)
        transcript = await rounds.run(await verify.open(session), None, 1, 20, lambda _: 0)
        texts.add(tuple(transcript.token_ids))
        proposal = await (await draft.open(session)).draft(Advance(1, 1, (), 16))
        blocks.add(proposal.token_ids)
    # The two rejection rules draw plain tokens and drafts alike; the coupled one does not.
    assert (2, 2) == (len(texts), len(blocks))
    assert set() == texts & blocks
