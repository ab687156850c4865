"""A tiny target with an opinion, and samples of what it writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from paceline.distill.shards import Sample
from paceline.engine.draft_files import Recipe
from paceline.engine.tokenizer_archive import fingerprint_tokenizer

SayLaws = Callable[[PreTrainedModel, Sequence[Sequence[int]], int], list[Sample]]


@pytest.fixture(scope="session")
def target(networks: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny target with sharper laws, so that there is something to learn."""
    directory = tmp_path_factory.mktemp("sharp")
    network = AutoModelForCausalLM.from_pretrained(networks.find())
    network.model.norm.weight.data.mul_(15)
    network.save_pretrained(directory)
    AutoTokenizer.from_pretrained(networks.find()).save_pretrained(directory)
    return directory


@pytest.fixture
def network(target: Path) -> PreTrainedModel:
    """The target's network."""
    return AutoModelForCausalLM.from_pretrained(target).eval().requires_grad_(False)


@pytest.fixture
def recipe(target: Path) -> Recipe:
    """A draft of the target's last layer."""
    tokenizer = AutoTokenizer.from_pretrained(target)
    return Recipe(str(target), fingerprint_tokenizer(tokenizer), (1,))


@pytest.fixture
def say_laws() -> SayLaws:
    """Gives the laws of a network behind each token of sequences, from a prompt's length on."""

    def say(
        network: PreTrainedModel, sequences: Sequence[Sequence[int]], prompt_length: int
    ) -> list[Sample]:
        samples = []
        for ids in sequences:
            with torch.inference_mode():
                logits = network(torch.tensor([list(ids)])).logits[0, prompt_length - 1 : -1, :258]
            top, top_ids = logits.log_softmax(dim=1).topk(32, dim=1)
            samples.append(Sample(torch.tensor(ids), prompt_length, top_ids.int(), top.half()))
        return samples

    return say
