"""Loading: names, identities, limits, and what is refused before a weight is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from paceline.engine.models import LoadedModel, LoadOptions, load, measure
from paceline.engine.native.grouped import round_4, round_8
from paceline.engine.quantization import PackedInt8Linear, PlainInt8Linear
from paceline.engine.table_model import TableModel
from paceline.errors import FailedPrecondition, InvalidArgument, NotFound

SaveModel = Callable[..., Path]


@pytest.fixture
def options(tmp_path: Path) -> LoadOptions:
    """Default options with a cache of the test's own."""
    return LoadOptions(cache_dir=tmp_path / "cache")


def ignore(_: str) -> None:
    """Takes progress and says nothing."""


def network_of(model: LoadedModel) -> PreTrainedModel:
    """The network of a model that is no table."""
    assert not isinstance(model.network, TableModel)
    return model.network


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "mistral", "gemma3_text"])
def test_loads_decoder_only_models(
    save_model: SaveModel, options: LoadOptions, model_type: str
) -> None:
    """A directory loads as the very network that was saved there, ready to run."""
    directory = save_model(model_type)
    model = load(str(directory), options, ignore)
    network = network_of(model)
    ids = torch.arange(10)[None]
    with torch.no_grad():
        expected = AutoModelForCausalLM.from_pretrained(directory).eval()(ids).logits
    assert not network.training
    assert not any(parameter.requires_grad for parameter in network.parameters())
    assert torch.equal(expected, network(ids).logits)


def test_padded_head_is_not_vocabulary(save_model: SaveModel, options: LoadOptions) -> None:
    """B44: a head of 520 rows and a tokenizer of 500 ids make a vocabulary of 500."""
    narrow = load(str(save_model("llama", vocab_size=512, folder="narrow")), options, ignore)
    padded = load(str(save_model("llama", vocab_size=520, folder="padded")), options, ignore)
    assert 500 == padded.identity.vocabulary_size
    assert narrow.identity.vocabulary_size == padded.identity.vocabulary_size
    assert narrow.identity.tokenizer_fingerprint == padded.identity.tokenizer_fingerprint
    assert narrow.identity.fingerprint != padded.identity.fingerprint


def test_tokenizer_beyond_head_is_refused(save_model: SaveModel, options: LoadOptions) -> None:
    """B45: a head with fewer rows than the tokenizer has ids is refused at load."""
    with pytest.raises(FailedPrecondition, match="500 ids but the head has only 499 rows"):
        load(str(save_model("llama", vocab_size=499)), options, ignore)


def test_identity_names_what_was_loaded(save_model: SaveModel, options: LoadOptions) -> None:
    """B90: name, dtype, limits and ends are the model's and the options' own."""
    name = str(save_model("llama"))
    identity = load(name, replace(options, dtype="bfloat16"), ignore).identity
    assert (name, "bfloat16", "") == (identity.name, identity.dtype, identity.quantization)
    assert (1,) == identity.eos_token_ids
    assert 256 == identity.max_length
    assert not identity.exact


@pytest.mark.parametrize(("asked", "expected"), [(0, 256), (64, 64), (256, 256), (1000, 256)])
def test_max_length_is_bounded_by_the_model(
    save_model: SaveModel, options: LoadOptions, asked: int, expected: int
) -> None:
    """B62: the option lowers the model's limit and cannot raise it."""
    model = load(str(save_model("llama")), replace(options, max_length=asked), ignore)
    assert expected == model.identity.max_length


def test_eos_list_of_generation_config(save_model: SaveModel, options: LoadOptions) -> None:
    """All ends of the generation configuration count, and it goes before the configuration."""
    directory = save_model("llama")
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))
    assert (2, 7) == load(str(directory), options, ignore).identity.eos_token_ids


def test_dtype_is_applied_and_changes_the_fingerprint(
    save_model: SaveModel, options: LoadOptions
) -> None:
    """B90: the same weights in another dtype are another model."""
    directory = str(save_model("llama"))
    single = load(directory, options, ignore)
    half = load(directory, replace(options, dtype="float16"), ignore)
    assert {torch.float16} == {p.dtype for p in network_of(half).parameters()}
    assert single.identity.fingerprint != half.identity.fingerprint


def test_fingerprint_is_of_the_content(save_model: SaveModel, options: LoadOptions) -> None:
    """Equal files in two places have one fingerprint; other weights have another."""
    first = load(str(save_model("llama", folder="first")), options, ignore)
    copy = load(str(save_model("llama", folder="copy")), options, ignore)
    tuned = load(str(save_model("llama", folder="tuned", seed=1)), options, ignore)
    assert first.identity.fingerprint == copy.identity.fingerprint
    assert first.tokenizer_archive == copy.tokenizer_archive
    assert first.identity.fingerprint != tuned.identity.fingerprint


def test_quantized_name(save_model: SaveModel, options: LoadOptions) -> None:
    """`quantized:int8:NAME` has int8 linears and an identity of its own."""
    directory = str(save_model("qwen2"))
    plain = load(directory, options, ignore)
    quantized = load(f"quantized:int8:{directory}", options, ignore)
    kinds = {type(m) for m in network_of(quantized).modules() if hasattr(m, "in_features")}
    assert kinds < {PackedInt8Linear, PlainInt8Linear}
    assert "int8-per-row" == quantized.identity.quantization
    assert plain.identity.fingerprint != quantized.identity.fingerprint
    assert plain.identity.tokenizer_fingerprint == quantized.identity.tokenizer_fingerprint


def test_rounded_name(save_model: SaveModel, options: LoadOptions) -> None:
    """`quantized:int4:NAME` has rounded weights, its embedding as it was, and its own identity."""
    directory = str(save_model("qwen2"))
    plain, rounded = (load(f"{p}{directory}", options, ignore) for p in ("", "quantized:int4:"))
    assert "int4-per-group" == rounded.identity.quantization
    assert plain.identity.fingerprint != rounded.identity.fingerprint
    before, after = network_of(plain), network_of(rounded)
    mlp = before.model.layers[0].mlp.up_proj.weight
    assert torch.equal(round_4(mlp), after.model.layers[0].mlp.up_proj.weight)
    assert torch.equal(round_8(before.lm_head.weight), after.lm_head.weight)
    assert torch.equal(before.model.embed_tokens.weight, after.model.embed_tokens.weight)


def test_rounding_takes_whole_groups(save_model: SaveModel, options: LoadOptions) -> None:
    """The layer that has none is named."""
    directory = str(save_model("llama", intermediate_size=72))
    with pytest.raises(FailedPrecondition, match=r"down_proj has 72 inputs, .* multiples of 32"):
        load(f"quantized:int4:{directory}", options, ignore)


def test_refusal_comes_before_the_weights(save_model: SaveModel, options: LoadOptions) -> None:
    """An architecture that is not served is refused although its weights are gone."""
    directory = save_model("llama", rope_parameters={"rope_type": "dynamic", "factor": 2.0})
    (directory / "model.safetensors").unlink()
    with pytest.raises(FailedPrecondition, match="'dynamic'"):
        load(str(directory), options, ignore)


def test_measure_reads_no_weights(save_model: SaveModel, options: LoadOptions) -> None:
    """B89: size is known before loading and is that of the loaded parameters."""
    directory = save_model("llama", tie_word_embeddings=True)
    parameters = list(network_of(load(str(directory), options, ignore)).parameters())
    (directory / "model.safetensors").unlink()
    size = measure(str(directory), options, ignore)
    half = measure(str(directory), replace(options, dtype="bfloat16"), ignore)
    # A kernel keeps the tied head once more, in float32 alone, in a layout of its own.
    head_bytes = 520 * 64 * 4
    assert sum(p.nbytes for p in parameters) + head_bytes == size.weights_bytes
    assert 2 * 2 * 2 * 16 * 4 == size.kv_bytes_per_token
    assert size.weights_bytes - head_bytes == 2 * half.weights_bytes
    assert size.workspace_bytes_per_row >= 520 * 4


@pytest.mark.parametrize(
    "bad", [{"dtype": "float8"}, {"dtype": ""}, {"max_length": -1}], ids=["float8", "none", "-1"]
)
def test_bad_options_are_named(tmp_path: Path, bad: dict[str, object]) -> None:
    """B91: a wrong option fails at once and is named."""
    with pytest.raises(InvalidArgument) as caught:
        LoadOptions(cache_dir=tmp_path, **bad)  # type: ignore[arg-type]  # wrong on purpose
    assert next(iter(bad)) == caught.value.field


def test_model_without_limit_wants_one(save_model: SaveModel, options: LoadOptions) -> None:
    """A model that names no limit is loaded only with one given."""
    directory = str(save_model("bloom", max_position_embeddings=None))
    with pytest.raises(InvalidArgument, match="max_length"):
        load(directory, options, ignore)
    model = load(directory, replace(options, max_length=77), ignore)
    assert 77 == model.identity.max_length


def test_table_is_a_model(tmp_path: Path, options: LoadOptions) -> None:
    """A table file loads under its name, with limits and an identity like any other."""
    path = tmp_path / "table.json"
    path.write_text(json.dumps({"alphabet": "abc", "eos": "c", "default": [0.5, 0.25, 0.25]}))
    model = load(f"table:{path}", options, ignore)
    assert isinstance(model.network, TableModel)
    assert f"table:{path}" == model.identity.name
    assert (3, (2,), 4096) == (
        model.identity.vocabulary_size,
        model.identity.eos_token_ids,
        model.identity.max_length,
    )
    assert 8 == measure(f"table:{path}", options, ignore).kv_bytes_per_token
    short = load(f"table:{path}", replace(options, max_length=9), ignore)
    assert 9 == short.identity.max_length


def test_missing_table_is_not_found(tmp_path: Path, options: LoadOptions) -> None:
    """A table file that is not there is NotFound, with its path."""
    with pytest.raises(NotFound, match=r"absent\.json"):
        load(f"table:{tmp_path / 'absent.json'}", options, ignore)


def test_progress_tells_what_is_loaded(
    save_model: SaveModel, options: LoadOptions, tiny_tokenizer: PreTrainedTokenizerFast
) -> None:
    """Loading says what it loads, and how."""
    lines: list[str] = []
    directory = save_model("llama")
    load(f"quantized:int8:{directory}", options, lines.append)
    assert any(str(directory) in line and "float32" in line for line in lines)
    assert any("int8-per-row" in line for line in lines)
