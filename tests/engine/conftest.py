"""Tiny models with random weights, saved like real ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

NUM_TINY_IDS = 500
_SPECIALS = ["<s>", "</s>", "<|user|>"]
_TINY_SIZES = {
    "vocab_size": 520,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
    "sliding_window": 16,
}

SaveModel = Callable[..., Path]
BuildNetwork = Callable[..., PreTrainedModel]


@pytest.fixture(scope="session")
def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of exactly 500 ids, three of them special."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=NUM_TINY_IDS,
        show_progress=False,
        special_tokens=_SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    words = [f"{a}{b}{c}" for a in "abcdefgh" for b in "rstuvwxyz" for c in "ijklmno"]
    tokenizer.train_from_iterator(words, trainer)
    assert tokenizer.get_vocab_size() == NUM_TINY_IDS
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=_SPECIALS[0], eos_token=_SPECIALS[1]
    )


@pytest.fixture
def save_model(tmp_path: Path, tiny_tokenizer: PreTrainedTokenizerFast) -> SaveModel:
    """Saves a tiny random model of a type, with settings of its own, and gives its directory."""

    def save(model_type: str, *, seed: int = 0, folder: str = "model", **settings: Any) -> Path:
        config = CONFIG_MAPPING[model_type](**{**_TINY_SIZES, **settings})
        directory = tmp_path / folder
        torch.manual_seed(seed)
        AutoModelForCausalLM.from_config(config).save_pretrained(directory)
        tiny_tokenizer.save_pretrained(directory)
        return directory

    return save


@pytest.fixture(scope="session")
def tiny_network() -> BuildNetwork:
    """Builds a tiny random network of a type, with settings of its own, ready to run."""

    def build(model_type: str, *, seed: int = 0, **settings: Any) -> PreTrainedModel:
        config = CONFIG_MAPPING[model_type](**{**_TINY_SIZES, **settings})
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config).eval()

    return build
