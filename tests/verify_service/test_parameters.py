"""Sampling parameters and log-probabilities through the RPCs of both tiers.

Every parameter visibly acts, and what comes out is what plain decoding gives, whatever the draft:
one that is never right, one that often is, one that always is.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paceline.errors import InvalidArgument
from paceline.records import Proposal, SamplingParams, TokenLogProbs, VerdictKind, VerificationRule

GREEDY = SamplingParams(temperature=0.0)
PROMPT = [10, 20, 30, 40, 50]
NUM_TOKENS = 32
DRAFTS = ("target", "half", "never")
PENALTIES = {
    "frequency": replace(GREEDY, frequency_penalty=2.0),
    "less than no frequency": replace(GREEDY, frequency_penalty=-2.0),
    "presence": replace(GREEDY, presence_penalty=1.5),
    "repetition": replace(GREEDY, repetition_penalty=1.8),
    "all": replace(
        GREEDY,
        frequency_penalty=0.02,
        presence_penalty=0.05,
        repetition_penalty=1.1,
        logit_bias=((65, 0.3), (66, -100.0)),
    ),
}


def always(number: int) -> Callable[[int], int]:
    """The same number of draft tokens every round."""
    return lambda _: number


class Pair:
    """A target and a draft on both tiers."""

    def __init__(self, rounds: Any, verify: Any, draft: Any) -> None:
        self._rounds = rounds
        self._verify = verify
        self._draft = draft

    async def run(
        self,
        sampling: SamplingParams,
        num_draft_tokens: int,
        *,
        num_tokens: int = NUM_TOKENS,
        prompt: Sequence[int] = PROMPT,
        drafted: SamplingParams | None = None,
        **fields: Any,
    ) -> Any:
        """Rounds of one generation; the draft has the same parameters unless told otherwise."""
        session = self._rounds.spec(prompt, sampling=sampling, **fields)
        peer = await self._verify.open(session)
        draft = None
        if num_draft_tokens:
            mine = replace(session, sampling=drafted or sampling)
            draft = await self._draft.open(mine, target=await self._verify.identity())
        length = always(num_draft_tokens)
        return await self._rounds.run(peer, draft, len(prompt), num_tokens, length)


@pytest.fixture
def start(tiers: Any, rounds: Any) -> Any:
    """Starts pairs."""

    async def start_pair(target: str, draft: str) -> Pair:
        return Pair(rounds, await tiers.verify(target), await tiers.draft(draft))

    return start_pair


@pytest.mark.parametrize("draft", DRAFTS)
async def test_penalties_act_and_equal_plain_decoding(
    start: Any, networks: Any, draft: str
) -> None:
    """B30, B31, B32: with every kind of draft, the parameters known to it or not."""
    pair = await start(networks.find(), networks.find(draft))
    untouched = networks.generate(PROMPT, NUM_TOKENS)
    num_accepted = 0
    for name, sampling in PENALTIES.items():
        plain = await pair.run(sampling, 0)
        assert plain.token_ids != untouched, name
        for num_draft_tokens, drafted in ((4, sampling), (8, GREEDY)):
            drafting = await pair.run(sampling, num_draft_tokens, drafted=drafted)
            assert plain.token_ids == drafting.token_ids, name
            num_accepted += drafting.num_accepted
    assert num_accepted > 0 or draft == "never"


async def test_a_draft_that_copies_the_penalties_is_right_more_often(
    start: Any, networks: Any
) -> None:
    """The target's own weights under the same parameters are always right, else not."""
    pair = await start(networks.find(), networks.find())
    sampling = PENALTIES["frequency"]
    copied = await pair.run(sampling, 4)
    bare = await pair.run(sampling, 4, drafted=GREEDY)
    assert copied.num_accepted == copied.num_drafted > bare.num_accepted


@pytest.mark.parametrize("num_draft_tokens", [0, 3])
async def test_a_huge_presence_penalty_uses_every_token_once(
    start: Any, write_table: Any, num_draft_tokens: int
) -> None:
    """B31: of four equal tokens each comes once among the first four, at any acceptance."""
    table = write_table(0.25, 0.25, 0.25, 0.25)
    pair = await start(table, table)
    sampling = SamplingParams(presence_penalty=100.0)
    orders = set()
    for seed in range(20):
        done = await pair.run(sampling, num_draft_tokens, num_tokens=4, prompt=[0], seed=seed)
        assert [0, 1, 2, 3] == sorted(done.token_ids)
        orders.add(tuple(done.token_ids))
    assert len(orders) > 5


@pytest.mark.parametrize("num_draft_tokens", [0, 4])
async def test_bias_bans_and_forces(start: Any, write_table: Any, num_draft_tokens: int) -> None:
    """B34: at -100 never, at +100 always, whatever is drafted."""
    pair = await start(write_table(0.4, 0.3, 0.3), write_table(0.9, 0.05, 0.05))
    for bias, allowed in ((-100.0, {1, 2}), (100.0, {0})):
        sampling = SamplingParams(logit_bias=((0, bias),))
        done = await pair.run(
            sampling, num_draft_tokens, num_tokens=500, prompt=[0], drafted=SamplingParams()
        )
        assert allowed == set(done.token_ids)
        drafted = {t for proposal, _ in done.rounds for t in proposal.token_ids}
        assert not num_draft_tokens or 0 in drafted


@pytest.mark.parametrize("num_draft_tokens", [0, 4])
async def test_min_p_holds_at_every_row(
    start: Any, write_table: Any, num_draft_tokens: int
) -> None:
    """B34: no token under 0.3 of the largest probability, and none of the others lost."""
    pair = await start(write_table(0.5, 0.25, 0.14, 0.11), write_table(0.1, 0.1, 0.4, 0.4))
    done = await pair.run(
        SamplingParams(min_p=0.3),
        num_draft_tokens,
        num_tokens=500,
        prompt=[0],
        drafted=SamplingParams(),
    )
    assert {0, 1} == set(done.token_ids)
    share = done.token_ids.count(0) / 500
    assert share == pytest.approx(2 / 3, abs=4 * math.sqrt(2 / 9 / 500))


@pytest.mark.parametrize("num_draft_tokens", [0, 1, 4, 8])
@pytest.mark.parametrize("knows", [True, False])
async def test_stop_tokens_wait_for_min_tokens(
    start: Any, write_table: Any, num_draft_tokens: int, knows: bool
) -> None:
    """B27: a stop that is wanted from the third token on comes as the eleventh, not before."""
    late = [[0.8, 0.1, 0.1, 0.0]] * 2 + [[0.2, 0.1, 0.1, 0.6]] * 40
    table = write_table(0.25, 0.25, 0.25, 0.25, positions=late, eos="d")
    pair = await start(table, table)
    sampling = replace(GREEDY, stop_token_ids=(3,), min_tokens=10)
    drafted = sampling if knows else replace(sampling, min_tokens=0)
    done = await pair.run(sampling, num_draft_tokens, num_tokens=11, prompt=[1], drafted=drafted)
    assert [0] * 10 + [3] == done.token_ids


@pytest.mark.parametrize("num_draft_tokens", [0, 2, 5])
async def test_banned_sequences_never_appear(
    start: Any, networks: Any, num_draft_tokens: int
) -> None:
    """What greedy would write is banned, again and again; the parts alone stay allowed."""
    pair = await start(networks.find(), networks.find("half"))
    plain = networks.generate(PROMPT, NUM_TOKENS)
    banned = ((plain[0], plain[1]), (plain[3],), tuple(plain[5:8]))
    sampling = replace(GREEDY, banned_sequences=banned)
    done = await pair.run(sampling, num_draft_tokens, drafted=GREEDY)
    reference = await pair.run(sampling, 0)
    assert reference.token_ids == done.token_ids != plain
    for sequence in banned:
        starts = range(NUM_TOKENS - len(sequence) + 1)
        windows = [tuple(done.token_ids[i : i + len(sequence)]) for i in starts]
        assert sequence not in windows
    assert plain[0] == done.token_ids[0]


async def test_a_session_opened_again_counts_from_its_prompt(
    tiers: Any, rounds: Any, networks: Any
) -> None:
    """Reopening with what was committed goes on as if nothing had happened."""
    tier = await tiers.verify(networks.find())
    sampling = replace(PENALTIES["frequency"], stop_token_ids=(1,), min_tokens=30)
    whole = await rounds.run(
        await tier.open(rounds.spec(PROMPT, sampling=sampling)), None, 5, 24, always(0)
    )
    ids = [*PROMPT, *whole.token_ids[:11]]
    again = await tier.open(rounds.spec(ids, prompt_length=5, sampling=sampling))
    rest = await rounds.run(again, None, len(ids), 13, always(0))
    assert whole.token_ids[11:] == rest.token_ids


# Log-probabilities -------------------------------------------------------------------------------


def assert_teacher_forced(expected: Any, told: TokenLogProbs, token_id: int, num_top: int) -> None:
    """What was told of a token is what the stock network says of that place, within 1e-4."""
    order = np.argsort(-expected, kind="stable")[:num_top]
    assert expected[token_id] == pytest.approx(told.chosen, abs=1e-4)
    assert expected[order].tolist() == pytest.approx(list(told.top_log_probs), abs=1e-4)
    assert expected[list(told.top_token_ids)].tolist() == pytest.approx(
        list(told.top_log_probs), abs=1e-4
    )


@pytest.mark.parametrize("num_top", [0, 3])
@pytest.mark.parametrize(
    "sampling",
    [GREEDY, SamplingParams(), PENALTIES["all"]],
    ids=["greedy", "sampled", "penalties"],
)
async def test_log_probs_are_the_teacher_forced_ones(
    start: Any, networks: Any, sampling: SamplingParams, num_top: int
) -> None:
    """B41: accepted, recovered, bonus and plain tokens alike; raw whatever the parameters."""
    pair = await start(networks.find(), networks.find("half"))
    asked = replace(sampling, num_log_probs=num_top)
    drafting = await pair.run(asked, 2, num_tokens=60, seed=3)
    told, kinds = [], set()
    for _, verdict in drafting.rounds:
        assert verdict.num_accepted + 1 == len(verdict.log_probs)
        told += verdict.log_probs
        kinds |= {verdict.kind} | ({"accepted"} if verdict.num_accepted else set())
    assert {VerdictKind.RECOVERED, VerdictKind.BONUS, "accepted"} == kinds
    expected = networks.log_probs([*PROMPT, *drafting.token_ids])[len(PROMPT) - 1 :]
    for row, one, token_id in zip(expected, told, drafting.token_ids, strict=False):
        assert num_top == len(one.top_token_ids)
        assert_teacher_forced(row, one, token_id, num_top)
    plain = await pair.run(asked, 0, num_tokens=8)
    expected = networks.log_probs([*PROMPT, *plain.token_ids])[len(PROMPT) - 1 :]
    for (_, verdict), row, token_id in zip(plain.rounds, expected, plain.token_ids, strict=False):
        (one,) = verdict.log_probs
        assert_teacher_forced(row, one, token_id, num_top)


@pytest.mark.parametrize("num_top", [0, 3])
@pytest.mark.parametrize("length", [2, 18, 50, 83])
async def test_prompt_log_probs_are_the_teacher_forced_ones(
    tiers: Any, rounds: Any, networks: Any, length: int, num_top: int
) -> None:
    """B41: every token of the prompt but the first, over any number of chunks; the text stays."""
    tier = await tiers.verify(networks.find())
    prompt = [2 + (7 * i) % 200 for i in range(length)]
    asked = replace(GREEDY, num_prompt_log_probs=num_top)
    expected = networks.log_probs(prompt)
    for _ in range(2):  # the second time the whole prompt is in the cache
        peer = await tier.open(rounds.spec(prompt, sampling=asked))
        transcript = await rounds.run(peer, None, length, 3, always(0))
        assert networks.generate(prompt, 3) == transcript.token_ids
        told = [verdict.prompt_log_probs for _, verdict in transcript.rounds]
        assert [length - 1, 0, 0] == [len(each) for each in told]
        for row, one, token_id in zip(expected, told[0], prompt[1:], strict=False):
            assert num_top == len(one.top_token_ids)
            assert_teacher_forced(row, one, token_id, num_top)
    assert length < 18 or peer.opened.cached_prefix_length > 0
    await asyncio.wrap_future(tier.service._verifier.engine.check())


async def test_prompt_log_probs_change_nobody_elses_text(
    tiers: Any, rounds: Any, networks: Any
) -> None:
    """Rows that are run anew lie in blocks that others read at the same time."""
    tier = await tiers.verify(networks.find())
    prompt = [2 + (7 * i) % 200 for i in range(64)]
    asked = replace(GREEDY, num_prompt_log_probs=1)
    samplings = [GREEDY, asked, GREEDY, asked, replace(GREEDY, num_log_probs=0)]
    peers = [await tier.open(rounds.spec(prompt, sampling=one)) for one in samplings]
    transcripts = await rounds.together(
        *(rounds.run(peer, None, 64, 20, always(0)) for peer in peers)
    )
    for transcript in transcripts:
        assert networks.generate(prompt, 20) == transcript.token_ids
    await asyncio.wrap_future(tier.service._verifier.engine.check())


async def test_prompt_log_probs_of_one_token_are_none(tiers: Any, rounds: Any, cycle: str) -> None:
    """Nothing comes before the first token."""
    tier = await tiers.verify(cycle)
    asked = replace(GREEDY, num_prompt_log_probs=2)
    verdict = await (await tier.open(rounds.spec([0], sampling=asked))).verify(Proposal(1, 1))
    assert ((), 1) == (verdict.prompt_log_probs, verdict.next_token_id)


async def test_output_is_no_prompt(tiers: Any, rounds: Any, networks: Any) -> None:
    """A session that goes on with committed tokens is told of its prompt alone."""
    tier = await tiers.verify(networks.find())
    asked = replace(GREEDY, num_prompt_log_probs=0)
    ids = [*PROMPT, *networks.generate(PROMPT, 10)]
    peer = await tier.open(rounds.spec(ids, prompt_length=5, sampling=asked))
    verdict = await peer.verify(Proposal(1, 15))
    assert 4 == len(verdict.prompt_log_probs)
    assert networks.generate(PROMPT, 11)[-1] == verdict.next_token_id


async def test_log_probs_of_sessions_in_one_step_do_not_mix(
    tiers: Any, rounds: Any, networks: Any
) -> None:
    """B69: some sessions ask, some do not, each with its own number of rows."""
    tier = await tiers.verify(networks.find())
    prompts = [[3 + i, 60 + i, 90 + i] for i in range(6)]
    asked = [None, 2, 0, None, 1, 2]
    peers = [
        await tier.open(rounds.spec(p, sampling=replace(GREEDY, num_log_probs=n)))
        for p, n in zip(prompts, asked, strict=True)
    ]
    drafts = [tuple(networks.generate(p, i)) for i, p in enumerate(prompts)]
    verdicts = await rounds.together(
        *(peer.verify(Proposal(1, 3, draft)) for peer, draft in zip(peers, drafts, strict=True))
    )
    for prompt, number, draft, verdict in zip(prompts, asked, drafts, verdicts, strict=True):
        assert (0 if number is None else len(draft) + 1) == len(verdict.log_probs)
        committed = [*draft, verdict.next_token_id]
        expected = networks.log_probs([*prompt, *committed])[2:]
        for row, one, token_id in zip(expected, verdict.log_probs, committed, strict=False):
            assert_teacher_forced(row, one, token_id, number or 0)


# Refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "field"),
    [
        (SamplingParams(stop_token_ids=(3,)), "stop_token_ids"),
        (SamplingParams(logit_bias=((0, 1.0), (3, 1.0))), "logit_bias"),
        (SamplingParams(banned_sequences=((0, 3),)), "banned_sequences"),
    ],
)
async def test_ids_outside_the_vocabulary_are_refused(
    tiers: Any, rounds: Any, cycle: str, sampling: SamplingParams, field: str
) -> None:
    """They would fail a step, and with it every session that shares it."""
    tier = await tiers.verify(cycle)
    peer = tier.connect()
    await tier.send_open(peer, rounds.spec([0], sampling=sampling))
    refusal = await peer.refusal()
    assert isinstance(refusal, InvalidArgument)
    assert (f"session.sampling.{field}", "ids must be under 3") == (
        refusal.field,
        refusal.description,
    )


@pytest.mark.parametrize(
    "rule", [VerificationRule.REJECTION_BLOCK, VerificationRule.REJECTION_TOKEN]
)
async def test_masks_that_leave_nothing_end_the_session(
    tiers: Any, rounds: Any, cycle: str, rule: VerificationRule
) -> None:
    """After a only b is possible, and b is banned: the client's mistake, and nobody else's."""
    tier = await tiers.verify(cycle)
    sampling = replace(GREEDY, banned_sequences=((1,),))
    peer = await tier.open(rounds.spec([0], sampling=sampling, rule=rule))
    other = await tier.open(rounds.spec([0]))
    await peer.send_proposal(Proposal(1, 1, (1, 2)))
    verdict = await other.verify(Proposal(1, 1, (1, 2)))
    assert 2 == verdict.num_accepted
    refusal = await peer.refusal()
    assert isinstance(refusal, InvalidArgument)
    assert "NO_TOKEN_LEFT" == refusal.reason
