"""The built-in model through the three services, against transformers in this process."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from paceline.bench.equality import Comparison, Reference, Target, compare
from paceline.bench.prompts import own_questions, spread
from paceline.cli.client import GenerationOptions, chat_prompt, connect, generate

if TYPE_CHECKING:
    from tests.e2e.conftest import Running

pytestmark = [pytest.mark.e2e, pytest.mark.model]

MAX_TOKENS = 24


@pytest.fixture(scope="module")
def references() -> list[Reference]:
    """Greedy ids of a few prompts by transformers' own `generate`."""
    target = Target("smollm2", 1, Path("~/.cache/paceline").expanduser())
    return list(target.references(spread(own_questions(), 4), MAX_TOKENS))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("source", ["quantized:int4", "ngram"])
async def test_greedy_ids_are_those_of_transformers(
    smollm2_pair: Running, references: list[Reference], source: str
) -> None:
    """B11: every id for several lengths; the numbers of a large run are in ARCHITECTURE.md."""
    options = {"concurrency": 4, "max_tokens": MAX_TOKENS}
    outcomes = 0
    async with connect(smollm2_pair.address) as gateway:
        for length in (0, 4, None):
            comparison = Comparison(source, length)
            await compare(gateway, references, comparison, options)
            assert [] == comparison.differences
            assert sum(len(r.token_ids) for r in references) == comparison.num_tokens
            outcomes += sum(comparison.outcomes.values())
    assert outcomes > 0


SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "country": {"enum": ["France", "Germany", "Italy"]},
            "population": {"type": "integer", "minimum": 0, "maximum": 99999999},
        },
        "required": ["name", "country", "population"],
        "additionalProperties": False,
    }
)


@pytest.mark.timeout(600)
async def test_a_json_schema_is_met(smollm2_pair: Running) -> None:
    """B35: sampled outputs parse, and greedy ids are those of plain constrained decoding."""
    prompt = chat_prompt([("user", "Describe a city in Europe as JSON.")])
    options = GenerationOptions(
        max_tokens=60, temperature=0.0, constraint=("json_schema", SCHEMA), num_draft_tokens=0
    )
    async with connect(smollm2_pair.address) as gateway:
        plain = await generate(gateway, options.request(prompt))
        drafted = replace(options, num_draft_tokens=6)
        greedy = await generate(gateway, drafted.request(prompt))
        assert plain.token_ids == greedy.token_ids
        for seed in range(3):
            sampled = replace(drafted, temperature=1.0, seed=seed)
            generation = await generate(gateway, sampled.request(prompt))
            city = json.loads(generation.text)
            assert ["name", "country", "population"] == list(city)
            assert city["country"] in ("France", "Germany", "Italy")
            assert generation.stats.accepted_token_count > 0


async def test_answers_a_question(smollm2_pair: Running) -> None:
    """The whole path says something true, and ends by itself."""
    options = GenerationOptions(max_tokens=32, temperature=0.0)
    prompt = chat_prompt([("user", "What is the capital of France?")])
    async with connect(smollm2_pair.address) as gateway:
        generation = await generate(gateway, options.request(prompt))
    assert "The capital of France is Paris." == generation.text
    assert generation.token_ids[-1] == generation.started.model.eos_token_ids[0]
