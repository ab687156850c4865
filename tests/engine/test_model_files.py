"""Damaged and incomplete model directories: each a named error, never a traceback or a guess."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.engine.model_files import ModelFiles
from paceline.errors import FailedPrecondition, NotFound

SaveModel = Callable[..., Path]


def read_all(directory: Path) -> None:
    """Reads everything that a directory holds."""
    files = ModelFiles(str(directory))
    config = files.read_config()
    files.read_tokenizer()
    files.read_network(config, torch.float32)


def test_absent_weight_is_refused(save_model: SaveModel) -> None:
    """A tensor that is not in the file is named; transformers would draw it at random."""
    directory = save_model("llama")
    weights = load_file(directory / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(FailedPrecondition, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        read_all(directory)


def test_tied_head_is_not_absent(save_model: SaveModel) -> None:
    """A head that shares the embedding's weights is not in the file, and need not be."""
    directory = save_model("llama", tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(directory / "model.safetensors")
    read_all(directory)


def test_weights_of_another_shape_are_refused(save_model: SaveModel) -> None:
    """A configuration that does not fit the tensors is refused."""
    directory = save_model("llama")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "intermediate_size": 128}))
    with pytest.raises(FailedPrecondition):
        read_all(directory)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_damaged_file_is_refused(save_model: SaveModel, name: str) -> None:
    """A file cut short is FailedPrecondition or NotFound, with the directory."""
    directory = save_model("llama")
    content = (directory / name).read_bytes()
    (directory / name).write_bytes(content[: len(content) // 2])
    with pytest.raises((FailedPrecondition, NotFound)) as caught:
        read_all(directory)
    assert str(directory) in caught.value.message


def test_missing_weights_are_not_found(save_model: SaveModel) -> None:
    """A directory without weights holds no model."""
    directory = save_model("llama")
    (directory / "model.safetensors").unlink()
    with pytest.raises(NotFound, match="no weights there"):
        read_all(directory)


def test_missing_configuration_is_an_error(save_model: SaveModel) -> None:
    """A directory without a configuration is refused by the configuration's name."""
    directory = save_model("llama")
    (directory / "config.json").unlink()
    with pytest.raises((FailedPrecondition, NotFound), match="configuration"):
        read_all(directory)


def test_missing_tokenizer_is_an_error(save_model: SaveModel) -> None:
    """A directory without a tokenizer is refused: the gateway gets it from here."""
    directory = save_model("llama")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).unlink()
    with pytest.raises((FailedPrecondition, NotFound), match="tokenizer"):
        read_all(directory)


def test_unknown_architecture_is_refused(tmp_path: Path) -> None:
    """A model type that this transformers does not know is named."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "hovercraft"}))
    with pytest.raises(FailedPrecondition, match="hovercraft"):
        ModelFiles(str(tmp_path)).read_config()
