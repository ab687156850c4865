"""The distance of two models' laws: by hand, of tiny networks, and as llama.cpp tells it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from paceline.bench.distance import Text, compare, describe_distance, load_laws, write
from paceline.bench.llama_cpp import LlamaCppLaws
from paceline.bench.prompts import Question

TEXTS = [Text((3, 4, 5, 6, 7), 2), Text((9, 8), 1), Text((1, 2, 3), 3)]


def test_by_hand() -> None:
    """Sums over places, not means of texts; a text without an output says nothing."""
    p = {1: torch.tensor([[0.5, 0.5, 0.0]]), 3: torch.tensor([[1.0, 0.0, 0.0]] * 3)}
    q = {1: torch.tensor([[0.5, 0.25, 0.25]]), 3: torch.tensor([[0.0, 1.0, 0.0]] * 3)}
    nothing = torch.zeros(0, 3)
    found = compare(
        lambda text: p.get(text.num_places, nothing).double(),
        lambda text: q.get(text.num_places, nothing).double(),
        TEXTS,
    )
    assert (4, 0.25) == (found.num_places, found.agreement)
    assert (0.25 + 3) / 4 == pytest.approx(found.mean_tv)


def test_the_laws_of_a_network(networks: Any, tmp_path: Path) -> None:
    """Those of the tokens of the output, as the network itself has them, text after text."""
    name = networks.find()
    network = AutoModelForCausalLM.from_pretrained(name)
    laws = load_laws(name, tmp_path, longest=5)
    for text in TEXTS:
        with torch.inference_mode():
            logits = network(torch.tensor([text.token_ids])).logits[0].double()
        found = laws(text)  # a padded head scores more
        wanted = logits[text.prompt_length - 1 : -1, : found.shape[1]].softmax(dim=1)
        assert torch.allclose(wanted, found, atol=1e-6)


def test_a_quantized_model_is_near_and_not_the_same(networks: Any) -> None:
    """Four bits are farther away than eight."""
    name = networks.find()
    near, far = (
        describe_distance(f"quantized:{kind}:{name}", TEXTS)["mean_tv"] for kind in ("int8", "int4")
    )
    assert 0.0 < near < far < 0.5


def test_weights_that_are_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """No error: what was measured otherwise is told all the same."""
    assert "no such directory" in describe_distance("quantized:int8:/nowhere", TEXTS)["unknown"]
    assert "before they came here" in describe_distance("/models/one-of-torchao", TEXTS)["unknown"]
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert {"unknown": "the engine is not installed here"} == describe_distance("any", TEXTS)


class FakeServer:
    """Tells three log-probabilities of four."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []

    def handle_completions(
        self, request: dict[str, Any], callback: Callable[[dict[str, Any]], bool]
    ) -> None:
        """Calls back once."""
        self.requests.append(request)
        told = [{"id": token_id, "logprob": -1.0 - token_id} for token_id in (2, 0, 1)]
        content = [{"id": 2, "top_logprobs": told}]
        callback({"choices": [{"text": "x", "logprobs": {"content": content}}]})


def test_the_law_that_llama_cpp_tells() -> None:
    """By id, of one token behind the text; what it leaves out has no probability."""
    server = FakeServer()
    assert [-1.0, -2.0, -3.0, -math.inf] == LlamaCppLaws(server).law((5, 6), 4)
    (request,) = server.requests
    assert ([5, 6], 1, 4) == (request["prompt"], request["n_predict"], request["n_probs"])


async def test_what_is_read(counting: Any) -> None:
    """What the target writes without a draft, behind the ids of each question."""
    gateway, stub = counting
    texts = await write(stub, [Question("1", "a", "four"), Question("2", "a", "sixsix")], 3)
    assert [Text((4, 0, 1, 2), 1), Text((6, 0, 1, 2), 1)] == texts
    assert [(3, 0.0, 0)] * 2 == [
        (one.max_tokens, one.sampling.temperature, one.speculation.draft_token_count)
        for one in gateway.requests
    ]
