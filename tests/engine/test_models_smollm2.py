"""The built-in model, converted once for the session: its words, its ends and its int8 twin."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from paceline.engine.models import LoadedModel, LoadOptions, load
from paceline.engine.table_model import TableModel

# The conversion is tens of seconds of one core, more where others compute.
pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

CHAT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n<|im_start|>user\nName three planets.<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> LoadOptions:
    """One cache for all tests here, so that the conversion happens once."""
    return LoadOptions(cache_dir=tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def target(options: LoadOptions) -> LoadedModel:
    """The model in float32."""
    return load("smollm2", options, lambda _: None)


@pytest.fixture(scope="module")
def tokenizer(
    target: LoadedModel, tmp_path_factory: pytest.TempPathFactory
) -> PreTrainedTokenizerBase:
    """The tokenizer as the gateway gets it."""
    directory = tmp_path_factory.mktemp("tokenizer")
    zipfile.ZipFile(io.BytesIO(target.tokenizer_archive)).extractall(directory)
    return AutoTokenizer.from_pretrained(directory)


def network_of(model: LoadedModel) -> PreTrainedModel:
    """The network of a model that is no table."""
    assert not isinstance(model.network, TableModel)
    return model.network


def test_identity(target: LoadedModel) -> None:
    """Vocabulary, end and length are the model's."""
    identity = target.identity
    assert ("smollm2", 49_152, (2,), 8192) == (
        identity.name,
        identity.vocabulary_size,
        identity.eos_token_ids,
        identity.max_length,
    )


def test_chat_template(tokenizer: PreTrainedTokenizerBase) -> None:
    """The template that the model ships renders ChatML with its own system prompt."""
    messages = [{"role": "user", "content": "Name three planets."}]
    assert CHAT == tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )


def test_answers_and_int8_agrees(
    target: LoadedModel, tokenizer: PreTrainedTokenizerBase, options: LoadOptions
) -> None:
    """The converted weights answer sensibly, and int8 mostly has the same next token."""
    quantized = load("quantized:int8:smollm2", options, lambda _: None)
    prompt = tokenizer(CHAT, return_tensors="pt")
    with torch.inference_mode():
        ids = network_of(target).generate(**prompt, max_new_tokens=20, do_sample=False)
        choices = [
            network_of(model)(ids).logits[0, prompt["input_ids"].shape[1] - 1 :].argmax(-1)
            for model in (target, quantized)
        ]
    text = tokenizer.decode(ids[0])
    assert any(planet in text for planet in ("Mercury", "Venus", "Mars", "Jupiter", "Saturn"))
    assert (choices[0] == choices[1]).float().mean() > 0.8
    assert target.identity.fingerprint != quantized.identity.fingerprint


def test_second_load_does_not_convert(target: LoadedModel, options: LoadOptions) -> None:
    """Once converted, loading says only that it loads, and finds the same model."""
    lines: list[str] = []
    again = load("smollm2", options, lines.append)
    assert ["loading smollm2 in float32 on cpu"] == lines
    assert target.identity == again.identity
    assert [] == list(Path(options.cache_dir).glob(".converting-*"))


def test_the_shipped_draft_agrees_with_the_target(
    target: LoadedModel, options: LoadOptions, tokenizer: PreTrainedTokenizerBase
) -> None:
    """`smollm2-draft` loads beside its target and often thinks the same token likeliest.

    Its directory is no larger than what a repository should carry.
    """
    draft = load("smollm2-draft", replace(options, target="smollm2"), lambda _: None)
    assert target.identity.tokenizer_fingerprint == draft.identity.tokenizer_fingerprint
    ids = tokenizer(CHAT, return_tensors="pt").input_ids
    with torch.inference_mode():
        text = network_of(target).generate(ids, max_new_tokens=48, do_sample=False)
        logits = network_of(draft)(text).logits[0, ids.shape[1] - 1 : -1]
    assert 8192 == int(logits[0].isfinite().sum())
    agreement = (logits.argmax(dim=1) == text[0, ids.shape[1] :]).float().mean()
    assert agreement > 0.2
    directory = Path(str(resources.files("paceline.drafts"))) / "smollm2"
    assert sum(path.stat().st_size for path in directory.iterdir()) < 25 << 20
