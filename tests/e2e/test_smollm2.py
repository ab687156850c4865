"""The built-in model through the three services, against transformers in this process."""

from __future__ import annotations

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


@pytest.mark.timeout(300)
@pytest.mark.parametrize("source", ["quantized:int8", "ngram"])
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


async def test_answers_a_question(smollm2_pair: Running) -> None:
    """The whole path says something true, and ends by itself."""
    options = GenerationOptions(max_tokens=32, temperature=0.0)
    prompt = chat_prompt([("user", "What is the capital of France?")])
    async with connect(smollm2_pair.address) as gateway:
        generation = await generate(gateway, options.request(prompt))
    assert "The capital of France is Paris." == generation.text
    assert generation.token_ids[-1] == generation.started.model.eos_token_ids[0]
