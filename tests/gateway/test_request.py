"""Requests: what becomes of each field, and what is refused with its limit named."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.contextvars import bound_contextvars

from gateway.request import (
    MAX_SAMPLE_INDEX,
    MAX_STOP_STRINGS,
    read_generation,
    read_num_samples,
)
from gateway.tiers import Target
from gateway.tokenizer import Tokenizer
from paceline.errors import InvalidArgument
from paceline.records import ModelIdentity, SamplingParams, VerificationRule
from paceline.v1 import gateway_pb2

BLOCK, TOKEN = VerificationRule.REJECTION_BLOCK, VerificationRule.REJECTION_TOKEN
COUPLED = VerificationRule.COUPLED
EOS = 256


@pytest.fixture
def target(model: ModelIdentity, bytes_tokenizer: Tokenizer) -> Target:
    """The scripted target: 257 ids, at most 64 tokens."""
    return Target(model, 8, frozenset({BLOCK, TOKEN, COUPLED}), bytes_tokenizer)


def request(**fields: Any) -> gateway_pb2.GenerateRequest:
    """A request with a prompt of ids unless it is given another."""
    prompt = gateway_pb2.Prompt(token_ids=gateway_pb2.TokenIds(token_ids=[1, 2, 3]))
    return gateway_pb2.GenerateRequest(**{"prompt": prompt, **fields})


def chat(*turns: tuple[str, str]) -> gateway_pb2.Prompt:
    """A prompt of messages."""
    messages = [gateway_pb2.ChatMessage(role=role, content=content) for role, content in turns]
    return gateway_pb2.Prompt(chat=gateway_pb2.Chat(messages=messages))


def ids(*token_ids: int) -> gateway_pb2.Prompt:
    """A prompt of ids."""
    return gateway_pb2.Prompt(token_ids=gateway_pb2.TokenIds(token_ids=token_ids))


async def test_defaults(target: Target) -> None:
    """Unset fields: all of the context, the model's own end, the block rule, adapted length."""
    generation = await read_generation(request(), target, BLOCK)
    assert ((1, 2, 3), 3) == (generation.spec.token_ids, generation.spec.prompt_length)
    assert 61 == generation.ending.max_tokens
    assert 64 == generation.last_length
    assert frozenset({EOS}) == generation.ending.stop_token_ids
    assert (EOS,) == generation.spec.sampling.stop_token_ids
    assert BLOCK is generation.spec.rule
    assert (None, None) == (generation.num_draft_tokens, generation.max_draft_tokens)
    assert 16 == len(generation.spec.request_id)


async def test_each_generation_draws_its_own_seed(target: Target) -> None:
    """64 fresh bits, or answers to one question would all be the same."""
    seeds = {(await read_generation(request(), target, BLOCK)).spec.seed for _ in range(20)}
    assert 20 == len(seeds)
    assert max(seeds) >= 2**60
    assert all(0 <= seed < 2**64 for seed in seeds)


@pytest.mark.parametrize("seed", [0, 7, 2**64 - 1])
@pytest.mark.parametrize("default", [BLOCK, TOKEN, COUPLED])
@pytest.mark.parametrize("named", [None, BLOCK, TOKEN, COUPLED])
async def test_a_seed_and_its_rule(
    target: Target, seed: int, default: VerificationRule, named: VerificationRule | None
) -> None:
    """B37: with a seed the rule is the coupled one, unless the request names another."""
    asked = request(seed=seed)
    if named is not None:
        asked.speculation.rule = asked.speculation.rule.__class__(named.value)
    spec = (await read_generation(asked, target, default)).spec
    assert (seed, named or COUPLED, False) == (spec.seed, spec.rule, spec.has_fresh_seed)
    asked.ClearField("seed")
    spec = (await read_generation(asked, target, default)).spec
    assert (named or default, True) == (spec.rule, spec.has_fresh_seed)


async def test_every_field_arrives(target: Target) -> None:
    """What a client sets is what the tiers get."""
    asked = request(
        max_tokens=7,
        stop_strings=["x", "yz"],
        include_stop=True,
        cache_domain="tenant",
        request_id="mine",
        committed_token_ids=[9, 10],
    )
    asked.sampling.temperature = 0.5
    asked.sampling.top_k = 3
    asked.sampling.stop_token_ids.extend([4, EOS])
    asked.sampling.min_p = 0.25
    asked.sampling.repetition_penalty = 1.5
    asked.sampling.presence_penalty = 0.75
    asked.sampling.frequency_penalty = -0.5
    asked.sampling.logit_bias[5] = 2.0
    asked.sampling.min_tokens = 7
    asked.sampling.banned_sequences.add(token_ids=[8, 9])
    asked.sampling.log_prob_count = 3
    asked.speculation.draft_source = "ngram"
    asked.speculation.draft_token_count = 0
    asked.speculation.max_draft_token_count = 6
    asked.speculation.rule = gateway_pb2.SpeculationParams().rule.__class__(TOKEN.value)
    generation = await read_generation(asked, target, BLOCK)
    assert ((1, 2, 3), (9, 10)) == (generation.prompt_token_ids, generation.committed_token_ids)
    assert (3, "tenant", "mine") == (
        generation.spec.prompt_length,
        generation.spec.cache_domain,
        generation.spec.request_id,
    )
    assert (7, ("x", "yz"), True) == (
        generation.ending.max_tokens,
        generation.ending.stop_strings,
        generation.ending.include_stop,
    )
    assert generation.spec.sampling == SamplingParams(
        temperature=0.5,
        top_k=3,
        stop_token_ids=(4, EOS),
        min_p=0.25,
        repetition_penalty=1.5,
        presence_penalty=0.75,
        frequency_penalty=-0.5,
        logit_bias=((5, 2.0),),
        min_tokens=7,
        banned_sequences=((8, 9),),
        num_log_probs=3,
    )
    assert ("ngram", 0, 6, TOKEN) == (
        generation.draft_source,
        generation.num_draft_tokens,
        generation.max_draft_tokens,
        generation.spec.rule,
    )


async def test_ignoring_the_end_keeps_the_clients_stops(target: Target) -> None:
    """B20: ignore_eos drops the model's ids and nothing else."""
    asked = request()
    asked.sampling.ignore_eos = True
    asked.sampling.stop_token_ids.append(4)
    generation = await read_generation(asked, target, BLOCK)
    assert frozenset({4}) == generation.ending.stop_token_ids


async def test_the_default_rule_is_the_services(target: Target) -> None:
    """A request that names no rule takes the configured one."""
    assert TOKEN is (await read_generation(request(), target, TOKEN)).spec.rule


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"prompt": None}, "prompt", "must be set"),
        ({"prompt": gateway_pb2.Prompt(text="")}, "prompt.text", "is empty"),
        ({"prompt": ids()}, "prompt.token_ids", "at least one id"),
        ({"prompt": ids(1, 257)}, "prompt.token_ids[1]", "vocabulary size of 257, got 257"),
        ({"prompt": ids(2**32 - 1)}, "prompt.token_ids[0]", "vocabulary"),
        ({"prompt": ids(*[1] * 64)}, "prompt", "64 tokens"),
        ({"prompt": ids(*[1] * 1000)}, "prompt", "1000 tokens"),
        ({"prompt": chat()}, "prompt.chat.messages", "at least one"),
        ({"prompt": chat(("wizard", "x"))}, "prompt.chat.messages[0].role", "wizard"),
        ({"max_tokens": 0}, "max_tokens", "at least 1, got 0"),
        ({"max_tokens": -5}, "max_tokens", "at least 1, got -5"),
        ({"max_tokens": 62}, "max_tokens", "is 64"),
        ({"max_tokens": 10**8}, "max_tokens", "100000000"),
        ({"stop_strings": ["a", ""]}, "stop_strings[1]", "empty"),
        ({"stop_strings": ["a"] * (MAX_STOP_STRINGS + 1)}, "stop_strings", "at most 16, got 17"),
        ({"committed_token_ids": [300]}, "committed_token_ids[0]", "vocabulary"),
        ({"committed_token_ids": [1, 2], "max_tokens": 2}, "committed_token_ids", "all of"),
        (
            {"committed_token_ids": [1], "prompt": gateway_pb2.Prompt(text="a")},
            "committed_token_ids",
            "prompt of token_ids",
        ),
    ],
)
async def test_what_is_refused(
    target: Target, fields: dict[str, Any], field: str, message: str
) -> None:
    """B67, B68: each fault is INVALID_ARGUMENT, naming its field and the limit."""
    with pytest.raises(InvalidArgument, match=message) as refused:
        await read_generation(request(**fields), target, BLOCK)
    assert field == refused.value.field


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("temperature", float("nan"), "sampling.temperature"),
        ("temperature", -0.1, "sampling.temperature"),
        ("top_p", 0.0, "sampling.top_p"),
        ("top_k", 0, "sampling.top_k"),
        ("min_p", 1.1, "sampling.min_p"),
        ("stop_token_ids", [257], "sampling.stop_token_ids"),
        ("logit_bias", {257: 1.0}, "sampling.logit_bias"),
        ("banned_sequences", [{"token_ids": [3, 257]}], "sampling.banned_sequences"),
        ("min_tokens", 62, "sampling.min_tokens"),
        ("prompt_log_prob_count", 65, "sampling.prompt_log_prob_count"),
    ],
)
async def test_sampling_that_is_refused(target: Target, name: str, value: Any, field: str) -> None:
    """Sampling parameters out of range or not supported are named."""
    sampling = gateway_pb2.GenerateRequest().sampling.__class__(**{name: value})
    with pytest.raises(InvalidArgument) as refused:
        await read_generation(request(sampling=sampling), target, BLOCK)
    assert field == refused.value.field


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"sample_count": 0}, "sample_count", "must be in [1, 4], got 0"),
        ({"sample_count": -1}, "sample_count", "must be in [1, 4], got -1"),
        ({"sample_count": 5}, "sample_count", "must be in [1, 4], got 5"),
        ({"sample_count": 2, "committed_token_ids": [1]}, "sample_count", "must be 1 with"),
        ({"first_sample_index": -1}, "first_sample_index", "got -1"),
        ({"first_sample_index": MAX_SAMPLE_INDEX + 1}, "first_sample_index", "must be in [0,"),
    ],
)
def test_samples_that_are_refused(fields: dict[str, Any], field: str, message: str) -> None:
    """B68: how many samples may be asked for is said, and nothing is cut down to it."""
    with pytest.raises(InvalidArgument) as refused:
        read_num_samples(request(**fields), 4)
    assert field == refused.value.field
    assert message in refused.value.description


async def test_samples_differ_in_their_index_alone(target: Target) -> None:
    """One seed, one prompt, counted and told of once; the indices follow the first."""
    asked = request(seed=7, sample_count=3, first_sample_index=5)
    asked.sampling.log_prob_count = asked.sampling.prompt_log_prob_count = 2
    generation = await read_generation(asked, target, BLOCK)
    samples = generation.samples(read_num_samples(asked, 4))
    assert [(7, 5), (7, 6), (7, 7)] == [(one.spec.seed, one.spec.sample_index) for one in samples]
    assert generation == samples[0]
    assert [False, True, True] == [one.shares_prompt for one in samples]
    told = [one.spec.sampling.num_prompt_log_probs for one in samples]
    assert [2, None, None] == told
    assert {2} == {one.spec.sampling.num_log_probs for one in samples}
    assert 1 == len({(one.spec.token_ids, one.ending, one.spec.request_id) for one in samples})
    assert 1 == read_num_samples(request(), 4)


@pytest.mark.parametrize("name", ["draft_token_count", "max_draft_token_count"])
async def test_negative_lengths_are_refused(target: Target, name: str) -> None:
    """A negative length is a mistake, not a way to say "unset"."""
    speculation = gateway_pb2.SpeculationParams(**{name: -1})  # type: ignore[arg-type]  # a count
    with pytest.raises(InvalidArgument, match="at least 0, got -1"):
        await read_generation(request(speculation=speculation), target, BLOCK)


@pytest.mark.parametrize("rule", [COUPLED, TOKEN])
async def test_rules_that_are_not_served(
    model: ModelIdentity, bytes_tokenizer: Tokenizer, rule: VerificationRule
) -> None:
    """A rule that the target does not list is refused, named or asked for by a seed."""
    target = Target(model, 8, frozenset({BLOCK}), bytes_tokenizer)
    asked = request()
    asked.speculation.rule = asked.speculation.rule.__class__(rule.value)
    for refused in (asked, request(seed=1)):
        with pytest.raises(InvalidArgument, match=r"supported are \['REJECTION_BLOCK'\]"):
            await read_generation(refused, target, BLOCK)


async def test_limits_are_in_the_details(target: Target) -> None:
    """B67: limit, prompt length and request are there for programs too."""
    with pytest.raises(InvalidArgument) as refused:
        await read_generation(request(max_tokens=10**8), target, BLOCK)
    assert {
        "max_length": "64",
        "prompt_length": "3",
        "max_tokens": "100000000",
    } == refused.value.metadata


async def test_the_context_can_be_filled_exactly(target: Target) -> None:
    """B64: prompt and max_tokens together exactly the longest sequence is legal."""
    assert 64 == (await read_generation(request(max_tokens=61), target, BLOCK)).last_length


@pytest.mark.parametrize("request_id", ["x" * 129, "caf\u00e9", "a\nb"])
async def test_request_ids_that_cannot_travel(target: Target, request_id: str) -> None:
    """It goes on to both tiers as metadata, and into the log."""
    with pytest.raises(InvalidArgument, match="at most 128 printable ASCII") as refused:
        await read_generation(request(request_id=request_id), target, BLOCK)
    assert "request_id" == refused.value.field


async def test_a_request_has_one_id_everywhere(target: Target) -> None:
    """Without an id of its own it is called as its call is in the log."""
    with bound_contextvars(request_id="of-the-call"):
        assert "of-the-call" == (await read_generation(request(), target, BLOCK)).spec.request_id
        named = request(request_id="x" * 128)
        assert "x" * 128 == (await read_generation(named, target, BLOCK)).spec.request_id
