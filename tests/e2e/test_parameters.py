"""Every parameter of a request through the three services, for one seed.

Each visibly acts, and what comes out is what plain decoding gives, whatever the draft.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from paceline.cli.client import Generation, GenerationOptions, connect, generate, ids_prompt
from paceline.v1 import gateway_pb2, speculation_pb2

if TYPE_CHECKING:
    from tests.e2e.conftest import Running

pytestmark = pytest.mark.e2e

Change = Callable[[gateway_pb2.GenerateRequest], Any]
WAYS = (("", 1), ("", 4), ("", None), ("ngram", 3))
LONG = 30
"""Tokens for which a draft is always there in time; a short text may be over before it is."""
LATE_STOP = {"stop_token_ids": [2], "min_tokens": 12}


def sampling(**fields: Any) -> Change:
    """Sets sampling parameters."""
    return lambda request: request.sampling.MergeFrom(type(request.sampling)(**fields))


def request(**fields: Any) -> Change:
    """Sets fields of the request itself."""
    return lambda message: message.MergeFrom(gateway_pb2.GenerateRequest(**fields))


def nothing(_: gateway_pb2.GenerateRequest) -> None:
    """Leaves a request as it is."""


# What is set, and what it is compared with: a request that is the same but for this.
CASES: dict[str, tuple[Change, Change]] = {
    "temperature": (sampling(temperature=0.5), nothing),
    "greedy": (sampling(temperature=0.0), nothing),
    "top_k": (sampling(top_k=2), nothing),
    "top_p": (sampling(top_p=0.7), nothing),
    "min_p": (sampling(min_p=0.3), nothing),
    "repetition_penalty": (sampling(repetition_penalty=2.0), nothing),
    "presence_penalty": (sampling(presence_penalty=3.0), nothing),
    "frequency_penalty": (sampling(frequency_penalty=1.0), nothing),
    "logit_bias": (sampling(logit_bias={3: -100.0, 5: 2.0}), nothing),
    "stop_token_ids": (sampling(stop_token_ids=[2]), nothing),
    "min_tokens": (sampling(**LATE_STOP), sampling(stop_token_ids=[2])),
    "ignore_eos": (sampling(ignore_eos=True), nothing),
    "banned_sequences": (sampling(banned_sequences=[{"token_ids": [4, 5]}]), nothing),
    "log_prob_count": (sampling(log_prob_count=2), nothing),
    "prompt_log_prob_count": (sampling(prompt_log_prob_count=2), nothing),
    "regex": (sampling(constraint={"regex": "(abc|cba){4}"}), nothing),
    "grammar": (sampling(constraint={"grammar": 'root ::= "a" ("bd" | "ce")+'}), nothing),
    "max_tokens": (request(max_tokens=2), nothing),
    "stop_strings": (request(stop_strings=["fg"]), nothing),
    "include_stop": (
        request(stop_strings=["fg"], include_stop=True),
        request(stop_strings=["fg"]),
    ),
    "seed": (request(seed=8), nothing),
    "first_sample_index": (request(first_sample_index=2), nothing),
}


def told(generation: Generation) -> tuple[Any, ...]:
    """All that a client is told of a text; a table's log-probabilities are exact."""
    usage = generation.finished.usage
    return (
        generation.token_ids,
        generation.text,
        generation.finished.finish_reason,
        (usage.prompt_token_count, usage.completion_token_count),
        [one.SerializeToString() for one in generation.log_probs],
        [one.SerializeToString() for one in generation.prompt_log_probs],
    )


def wanted(draft: str, length: int | None, *changes: Change) -> gateway_pb2.GenerateRequest:
    """The request that all cases start from, with changes."""
    options = GenerationOptions(
        max_tokens=40, temperature=1.0, seed=3, draft=draft, num_draft_tokens=length
    )
    message = options.request(ids_prompt([0, 1, 2, 3]))
    for change in changes:
        change(message)
    return message


@pytest.mark.parametrize("name", CASES)
async def test_a_parameter_acts_and_equals_plain_decoding(ending_pair: Running, name: str) -> None:
    """B30, B34, B40: another answer than without it, and the same one with every draft."""
    change, without = CASES[name]
    async with connect(ending_pair.address) as gateway:
        plain = await generate(gateway, wanted("none", 0, change))
        bare = await generate(gateway, wanted("none", 0, without))
        drafted = [await generate(gateway, wanted(*way, change)) for way in WAYS]
    assert told(bare) != told(plain)
    for generation in drafted:
        assert told(plain) == told(generation)
    if len(plain.token_ids) >= LONG:
        assert sum(generation.stats.accepted_token_count for generation in drafted) > 0


def test_every_field_has_its_case() -> None:
    """A parameter that is added to the contract must be added here."""
    added = gateway_pb2.GenerateRequest.DESCRIPTOR.fields_by_name
    sampled = speculation_pb2.SamplingParams.DESCRIPTOR.fields_by_name
    elsewhere = {"model", "prompt", "sampling", "sample_count", "speculation", "constraint"}
    elsewhere |= {"committed_token_ids", "cache_domain", "request_id"}
    assert set(CASES) - {"greedy", "regex", "grammar"} == {*added, *sampled} - elsewhere
