"""Several samples of one prompt through the three services."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from paceline.cli.client import (
    GenerationOptions,
    connect,
    generate,
    generate_samples,
    ids_prompt,
)
from paceline.v1 import gateway_pb2

if TYPE_CHECKING:
    from tests.e2e.conftest import Running

pytestmark = pytest.mark.e2e

PROMPT = ids_prompt([i % 7 for i in range(40)])
SEEDED = GenerationOptions(max_tokens=60, temperature=1.0, seed=7, ignore_eos=True)


@pytest.mark.parametrize("length", [0, 4, None])
async def test_each_sample_is_its_own_and_one_seed_fixes_all(
    pair: Running, length: int | None
) -> None:
    """B40: four samples differ; each is what its index draws alone, the first what n = 1 draws."""
    several = replace(SEEDED, num_samples=4, num_draft_tokens=length)
    async with connect(pair.address) as gateway:
        samples = await generate_samples(gateway, several.request(PROMPT))
        again = await generate_samples(gateway, several.request(PROMPT))
        alone = await generate(gateway, SEEDED.request(PROMPT))
        third = SEEDED.request(PROMPT)
        third.first_sample_index = 3
        last = await generate(gateway, third)
    texts = [sample.token_ids for sample in samples]
    assert 4 == len(set(texts))
    assert texts == [sample.token_ids for sample in again]
    assert (texts[0], texts[3]) == (alone.token_ids, last.token_ids)
    assert [40, 0, 0, 0] == [one.finished.usage.prompt_token_count for one in samples]


@pytest.mark.parametrize("rule", ["rejection-block", "rejection-token", "coupled"])
async def test_unseeded_samples_never_repeat(pair: Running, rule: str) -> None:
    """B39, B40: every rule, drafted: eight texts of two calls, and no two alike."""
    options = replace(SEEDED, seed=None, rule=rule, num_samples=4, num_draft_tokens=3)
    async with connect(pair.address) as gateway:
        calls = [await generate_samples(gateway, options.request(PROMPT)) for _ in range(2)]
    samples = [sample for call in calls for sample in call]
    assert 8 == len({sample.token_ids for sample in samples})
    assert 2 == len({sample.started.seed for sample in samples})
    assert sum(sample.stats.accepted_token_count for sample in samples) > 0


async def test_greedy_samples_are_alike(pair: Running) -> None:
    """Nothing is drawn, so nothing differs; all of them share the prompt's cache."""
    options = GenerationOptions(max_tokens=30, temperature=0.0, num_samples=3)
    async with connect(pair.address) as gateway:
        request = options.request(PROMPT)
        samples = await generate_samples(gateway, request)
        whole = await gateway.Complete(gateway_pb2.CompleteRequest(generation=request))
    assert 1 == len({sample.token_ids for sample in samples})
    assert [sample.text for sample in samples] == [sample.text for sample in whole.samples]


async def test_a_sample_that_was_cut_off_goes_on(pair: Running) -> None:
    """The third of three, resumed by itself from what had come of it."""
    async with connect(pair.address) as gateway:
        several = replace(SEEDED, num_samples=3).request(PROMPT)
        expected = (await generate_samples(gateway, several))[2].token_ids
        rest = SEEDED.request(PROMPT)
        rest.first_sample_index = 2
        rest.committed_token_ids.extend(expected[:23])
        assert expected[23:] == (await generate(gateway, rest)).token_ids
