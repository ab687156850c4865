"""The target of a distillation: once as a network to begin from, once as what writes.

Knows no draft.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from paceline.engine import models, runners
from paceline.engine.lean.weights import serves
from paceline.engine.model_files import ModelFiles
from paceline.engine.model_source import INT8_PREFIX, find_source
from paceline.engine.step import ModelRunner
from paceline.engine.table_model import TABLE_PREFIX
from paceline.errors import FailedPrecondition, InvalidArgument
from paceline.records import ModelIdentity

Progress = Callable[[str], None]

_MIN_WORD_LETTERS = 5
"""Shorter ones are mostly pieces of words."""


def read_target(
    name: str, cache_dir: Path, progress: Progress
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Reads a target's weights in float32, and its tokenizer.

    Raises:
        NotFound: there is no such model.
        InvalidArgument: it is not one that drafts are distilled from.
        FailedPrecondition: its files do not fit, or its architecture is not served.
    """
    if name.startswith(TABLE_PREFIX):
        raise InvalidArgument("target", "a table has no layers that a draft could be made of")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    files, _ = find_source(name, cache_dir, progress)
    assert isinstance(files, ModelFiles)  # a draft would have been refused
    network = files.read_network(files.read_config(), torch.float32)
    if not serves(network):
        raise FailedPrecondition(
            f"drafts are distilled from Llama, Mistral, Qwen2 and Qwen3 models, not from"
            f" {type(network).__name__}",
            reason="MODEL_NOT_SUPPORTED",
        )
    return network, files.read_tokenizer()


def list_words(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The whole words among a tokenizer's tokens, in order: names, things, deeds, of any kind."""
    texts = tokenizer.batch_decode([[token_id] for token_id in range(len(tokenizer))])
    words = {text[1:] for text in texts if text.startswith(" ") and text[1:].isalpha()}
    return sorted(word for word in words if len(word) >= _MIN_WORD_LETTERS)


def build_runner(
    name: str, cache_dir: Path, device: str, progress: Progress
) -> tuple[ModelRunner, ModelIdentity, PreTrainedTokenizerBase]:
    """The target as it writes, who it is, and its tokenizer.

    On the CPU it writes in int8, which takes two thirds of the time; its laws share nine tenths of
    their mass with those of float32, while those of a draft share half. Elsewhere in bfloat16.

    Raises:
        NotFound, FailedPrecondition: as `models.load`.
    """
    files, quantization = find_source(name, cache_dir, progress)
    is_cpu = device == "cpu"
    loaded = models.load(
        f"{INT8_PREFIX}{name}" if is_cpu and not quantization else name,
        models.LoadOptions(cache_dir, "float32" if is_cpu else "bfloat16", device),
        progress,
    )
    return runners.build_runner(loaded), loaded.identity, files.read_tokenizer()
