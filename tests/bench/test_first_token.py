"""Time to the first token: prompts nobody has seen, the same prefix again, and transformers."""

from __future__ import annotations

from typing import Any

from transformers import AutoModelForCausalLM

from paceline.bench.first_token import measure, ratio


async def test_every_prompt_is_new_and_comes_back_once(counting: Any, networks: Any) -> None:
    """Otherwise its prefix would be kept; the pass that warms up is not among the times."""
    gateway, stub = counting
    network = AutoModelForCausalLM.from_pretrained(networks.find())
    assert gateway.vocabulary_size < network.config.vocab_size
    times = await measure(stub, network, num_tokens=20, repeats=2)
    assert {"unseen": 2, "kept prefix": 2, "transformers": 2} == {
        name: len(values) for name, values in times.items()
    }
    prompts = [tuple(request.prompt.token_ids.token_ids) for request in gateway.requests]
    assert 6 == len(set(prompts))
    for unseen, again in zip(prompts[::2], prompts[1::2], strict=True):
        assert unseen[:-1] == again[:-1]
    assert 3 == len({prompt[:-1] for prompt in prompts})
    assert all(max(prompt) < gateway.vocabulary_size for prompt in prompts)
    assert {0} == {request.speculation.draft_token_count for request in gateway.requests}


async def test_another_measurement_asks_for_other_prompts(counting: Any, networks: Any) -> None:
    """What the services still keep of the last one is no prefix of this one's."""
    gateway, stub = counting
    network = AutoModelForCausalLM.from_pretrained(networks.find())
    for _ in range(2):
        await measure(stub, network, num_tokens=20, repeats=1)
    prompts = [tuple(request.prompt.token_ids.token_ids) for request in gateway.requests]
    assert 4 == len({prompt[:-1] for prompt in prompts})


def test_ratios_are_of_medians() -> None:
    """One slow repeat decides nothing."""
    assert 0.5 == ratio({"a": [1.0, 99.0, 2.0], "b": [4.0, 4.0, 4.0]}, "a", "b")
