"""What a client gets from the running pair: the target's text, whatever the draft does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import grpc
import numpy as np
import pytest
from scipy import stats

from paceline.cli.client import GenerationOptions, connect, generate, text_prompt
from paceline.serving.statuses import error_of
from paceline.v1 import gateway_pb2

if TYPE_CHECKING:
    from tests.e2e.conftest import Running

pytestmark = pytest.mark.e2e

GREEDY = 0.0


def greedy_chain(prompt: str, num_tokens: int, alphabet: str = "abcdefg") -> list[int]:
    """The target's greedy ids by its own definition, without any of the code under test."""
    ids = [alphabet.index(letter) for letter in prompt]
    for _ in range(num_tokens):
        ids.append((ids[-2] + 2 * ids[-1] + 1) % len(alphabet))
    return ids[len(prompt) :]


@pytest.mark.parametrize("num_draft_tokens", [0, 1, 2, 4, 8, None])
async def test_greedy_ids_are_the_targets_for_every_length(
    pair: Running, num_draft_tokens: int | None
) -> None:
    """B12: the same ids for every proposal length, also when a length is chosen each round."""
    address = pair.address
    async with connect(address) as gateway:
        options = GenerationOptions(
            max_tokens=97, temperature=GREEDY, num_draft_tokens=num_draft_tokens
        )
        generation = await generate(gateway, options.request(text_prompt("abcd")))
    assert greedy_chain("abcd", 97) == list(generation.token_ids)
    counts = generation.stats
    if num_draft_tokens is not None:
        assert (num_draft_tokens == 0) == (counts.drafted_token_count == 0)
    if num_draft_tokens is not None and num_draft_tokens > 1:  # else the load may shorten them
        assert 0 < counts.accepted_token_count < counts.drafted_token_count


async def test_sessions_at_once_are_as_each_alone(pair: Running) -> None:
    """B17, B69: eight sessions of different prompts and lengths, in shuffled orders."""
    prompts = ["ab", "bc", "cd", "de", "ef", "fg", "ga", "abcdefg" * 30]
    lengths = [0, 1, 2, 3, 5, 8, None, 4]
    generator = random.Random(7)
    async with connect(pair.address) as gateway:
        for _ in range(20):
            order = generator.sample(range(8), 8)
            requests = [
                GenerationOptions(
                    max_tokens=40, temperature=GREEDY, num_draft_tokens=lengths[i]
                ).request(text_prompt(prompts[i]))
                for i in order
            ]
            results = await asyncio.gather(*(generate(gateway, r) for r in requests))
            for index, result in zip(order, results, strict=True):
                assert greedy_chain(prompts[index], 40) == list(result.token_ids)


def transitions(token_ids: Sequence[int], size: int) -> np.ndarray:
    """How often each id followed each pair of ids, [size, size, size]."""
    counts = np.zeros((size, size, size))
    for first, second, third in zip(token_ids, token_ids[1:], token_ids[2:], strict=False):
        counts[first, second, third] += 1
    return counts


@pytest.mark.parametrize("rule", ["rejection-token", "rejection-block"])
@pytest.mark.parametrize("num_draft_tokens", [1, 4])
async def test_sampled_tokens_follow_the_targets_law(
    pair: Running, rule: str, num_draft_tokens: int
) -> None:
    """B01, B33: at temperature 1 every transition has the target's law, drafts or not.

    12,000 tokens, one chi-square over all 49 contexts (fresh seeds, so p > 1e-6: a right build
    fails once in a million runs). Drawing the recovered token from the target itself, the mildest
    of the usual mistakes, moves 0.03 of the mass after a wrong draft and gives p < 1e-12 here.
    """
    options = GenerationOptions(
        max_tokens=3000,
        temperature=1.0,
        rule=rule,
        num_draft_tokens=num_draft_tokens,
        ignore_eos=True,
    )
    async with connect(pair.address) as gateway:
        request = options.request(text_prompt("ab"))
        results = await asyncio.gather(*(generate(gateway, request) for _ in range(4)))
    counts = np.sum([transitions([0, 1, *r.token_ids], 7) for r in results], axis=0)
    statistic, freedom = 0.0, 0
    for first in range(7):
        for second in range(7):
            expected = np.full(7, 0.3 / 6)
            expected[(first + 2 * second + 1) % 7] = 0.7
            seen = counts[first, second]
            statistic += float(
                ((seen - seen.sum() * expected) ** 2 / (seen.sum() * expected)).sum()
            )
            freedom += 6
    assert stats.chi2.sf(statistic, freedom) > 1e-6
    assert sum(r.stats.accepted_token_count for r in results) > 1000
    assert len({r.started.seed for r in results}) == 4


async def test_rejections_recover_the_targets_law_where_the_draft_is_wrong(pair: Running) -> None:
    """B01: acceptance is sum(min(p, q)), not sum(p q): the law of the draft reaches the verifier.

    The draft prefers another letter after `c` (1/7 of the places) and equals the target elsewhere:
    sum(min(p, q)) is 1 there and 0.35 here, so acceptance is near 0.9; with the law lost it would
    be sum(p q) = 0.5.
    """
    options = GenerationOptions(
        max_tokens=3000,
        temperature=1.0,
        rule="rejection-token",
        num_draft_tokens=1,
        ignore_eos=True,
    )
    async with connect(pair.address) as gateway:
        result = await generate(gateway, options.request(text_prompt("ab")))
    assert 0.86 < result.stats.acceptance_rate < 0.95


@pytest.mark.parametrize("temperature", [1.0, 0.8])
async def test_a_seed_fixes_the_output(pair: Running, temperature: float) -> None:
    """B12, B37, B40: one seed, one text: for every draft and length, alone, at once and resumed.

    Another seed gives another text, and a request without one another still.
    """
    seeded = GenerationOptions(
        max_tokens=120, temperature=temperature, top_p=0.95, seed=7, ignore_eos=True
    )
    prompt = gateway_pb2.Prompt(token_ids=gateway_pb2.TokenIds(token_ids=[0, 1, 2]))
    ways = [
        replace(seeded, draft=draft, num_draft_tokens=length)
        for draft in ("", "ngram", "none")
        for length in (0, 1, 2, 4, 8, None)
    ]
    async with connect(pair.address) as gateway:
        requests = [way.request(prompt) for way in ways]
        results = await asyncio.gather(*(generate(gateway, request) for request in requests))
        expected = results[0].token_ids
        assert [expected] * len(ways) == [result.token_ids for result in results]
        accepted = sum(result.stats.accepted_token_count for result in results)
        assert 0 < accepted < sum(result.stats.drafted_token_count for result in results)
        requests[4].committed_token_ids.extend(expected[:50])
        rest = await generate(gateway, requests[4])
        assert expected[50:] == rest.token_ids
        others = [replace(seeded, seed=seed) for seed in (8, 9, None, None)]
        texts = {(await generate(gateway, other.request(prompt))).token_ids for other in others}
    assert 4 == len(texts - {expected})


async def test_stream_adds_up_to_the_answer(pair: Running) -> None:
    """B24, B80: ids, origins and text of the events are those of Complete, piece by piece."""
    request = GenerationOptions(max_tokens=50, temperature=GREEDY).request(text_prompt("abc"))
    async with connect(pair.address) as gateway:
        streamed = await generate(gateway, request)
        whole = await gateway.Complete(gateway_pb2.CompleteRequest(generation=request))
    assert whole.text == streamed.text
    assert list(whole.token_ids) == list(streamed.token_ids)
    assert len(whole.origins) == len(whole.token_ids) == 50
    assert whole.finished.usage.completion_token_count == 50
    assert whole.finished.finish_reason == gateway_pb2.FINISH_REASON_LENGTH


@pytest.mark.parametrize(
    "options",
    [
        GenerationOptions(presence_penalty=3.0),
        GenerationOptions(frequency_penalty=0.2),
        GenerationOptions(repetition_penalty=10.0),
        GenerationOptions(logit_bias=((3, -100.0),)),
        GenerationOptions(temperature=1.0, min_p=0.5),
    ],
    ids=["presence", "frequency", "repetition", "bias", "min_p"],
)
async def test_parameters_act_and_equal_plain_decoding(
    pair: Running, options: GenerationOptions
) -> None:
    """B30, B34: other ids than without, and the same ones for every proposal length."""
    options = replace(options, max_tokens=60, temperature=options.temperature or GREEDY)
    async with connect(pair.address) as gateway:
        request = text_prompt("abcd")
        results = [
            await generate(gateway, replace(options, num_draft_tokens=length).request(request))
            for length in (0, 1, 4, None)
        ]
    if options.min_p:  # only the likeliest token of each place holds half of its probability
        assert greedy_chain("abcd", 60) == list(results[0].token_ids)
    else:
        assert greedy_chain("abcd", 60) != list(results[0].token_ids)
    assert 1 == len({result.token_ids for result in results})
    assert results[2].stats.accepted_token_count > 0


async def test_log_probs_do_not_depend_on_the_draft(pair: Running) -> None:
    """B41, B42: the table's own log-probabilities, one per id, drafted or not."""
    options = GenerationOptions(max_tokens=40, temperature=GREEDY, num_log_probs=1)
    async with connect(pair.address) as gateway:
        for length in (0, 3):
            asked = replace(options, num_draft_tokens=length).request(text_prompt("abcd"))
            result = await generate(gateway, asked)
            assert 40 == len(result.token_ids) == len(result.log_probs)
            for token_id, told in zip(result.token_ids, result.log_probs, strict=True):
                assert [token_id] == list(told.top_token_ids)
                assert np.log(0.7) == pytest.approx(told.chosen, abs=1e-6)


async def test_resumes_where_an_attempt_broke_off(pair: Running) -> None:
    """What was committed is gone on from; max_tokens still counts from the prompt."""
    whole = greedy_chain("abc", 40)
    request = GenerationOptions(max_tokens=40, temperature=GREEDY).request(
        gateway_pb2.Prompt(token_ids=gateway_pb2.TokenIds(token_ids=[0, 1, 2]))
    )
    request.committed_token_ids.extend(whole[:13])
    async with connect(pair.address) as gateway:
        rest = await generate(gateway, request)
    assert whole[13:] == list(rest.token_ids)


async def test_deadline_is_honoured(pair: Running) -> None:
    """B109: a generation that outlives its caller's deadline ends with DEADLINE_EXCEEDED."""
    request = GenerationOptions(max_tokens=4000, temperature=GREEDY).request(text_prompt("abc"))
    async with connect(pair.address) as gateway:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            async for _ in gateway.Generate(request, timeout=0.3):
                pass
    assert grpc.StatusCode.DEADLINE_EXCEEDED == failure.value.code()
    assert "DEADLINE" in error_of(failure.value).reason
