"""Fingerprints: equal for equal models, different for each thing that changes the output."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from paceline.engine import model_fingerprint
from paceline.engine.model_fingerprint import fingerprint_network, fingerprint_table
from paceline.engine.table_model import parse_table

BASE: dict[str, Any] = {"dtype": "float32", "quantization": "", "tokenizer_archive": b"zip"}
TABLE: dict[str, Any] = {"alphabet": "ab", "default": [0.5, 0.5], "suffixes": {"a": [1.0, 0.0]}}


def build(**settings: Any) -> PreTrainedModel:
    """A tiny network, the same each time."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24}
    heads = {"num_hidden_layers": 1, "num_attention_heads": 2}
    return AutoModelForCausalLM.from_config(LlamaConfig(**{**sizes, **heads, **settings}))


def test_equal_networks_have_equal_fingerprints() -> None:
    """A fingerprint is of the content; where it was loaded from does not matter."""
    named = build()
    named.config._name_or_path = "elsewhere"
    named.config.architectures = ["LlamaForCausalLM"]
    assert fingerprint_network(build(), **BASE) == fingerprint_network(named, **BASE)


@pytest.mark.parametrize(
    "change", [{"dtype": "bfloat16"}, {"quantization": "int8-per-row"}, {"tokenizer_archive": b""}]
)
def test_each_setting_counts(change: dict[str, Any]) -> None:
    """B90: dtype, quantization and tokenizer each make another model."""
    network = build()
    assert fingerprint_network(network, **BASE) != fingerprint_network(
        network, **{**BASE, **change}
    )


def test_the_grammar_library_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generation with a constraint goes on only where the same library masks it."""
    version = importlib.metadata.version("llguidance")
    assert version in model_fingerprint._RULES_VERSION
    network, table = build(), parse_table(TABLE)
    before = {fingerprint_network(network, **BASE), fingerprint_table(table, b"zip")}
    changed = model_fingerprint._RULES_VERSION.replace(version, "of tomorrow")
    monkeypatch.setattr(model_fingerprint, "_RULES_VERSION", changed)
    after = {fingerprint_network(network, **BASE), fingerprint_table(table, b"zip")}
    assert not before & after


def test_settings_do_not_run_together() -> None:
    """Moving a character from one setting to the next is a change."""
    network = build()
    first = fingerprint_network(network, **{**BASE, "dtype": "ab", "quantization": "c"})
    second = fingerprint_network(network, **{**BASE, "dtype": "a", "quantization": "bc"})
    assert first != second


def test_each_parameter_counts() -> None:
    """One number changed in any parameter is another model (small ones are read whole)."""
    seen = {fingerprint_network(build(), **BASE)}
    names = [name for name, _ in build().named_parameters()]
    for name in names:
        network = build()
        with torch.no_grad():
            network.get_parameter(name).view(-1)[-1] += 1e-6
        seen.add(fingerprint_network(network, **BASE))
    assert 1 + len(names) == len(seen)


def test_fine_tune_of_a_large_parameter_counts() -> None:
    """A change all over a parameter too large to read whole is seen in the sample."""
    base, tuned = build(vocab_size=4096), build(vocab_size=4096)
    with torch.no_grad():
        tuned.get_input_embeddings().weight += 1e-6
    assert fingerprint_network(base, **BASE) != fingerprint_network(tuned, **BASE)


def test_configuration_counts() -> None:
    """Equal weights that compute otherwise are another model."""
    assert fingerprint_network(build(), **BASE) != fingerprint_network(
        build(rms_norm_eps=1e-3), **BASE
    )


def test_numerics_count() -> None:
    """What decides the last bits is part of it where bits are promised."""
    seen = {fingerprint_network(build(), **BASE, numerics=text) for text in ("", "one", "two")}
    assert 3 == len(seen)


@pytest.mark.parametrize(
    "change",
    [
        {"default": [0.25, 0.75]},
        {"suffixes": {"b": [1.0, 0.0]}},
        {"suffixes": {}, "positions": [[1.0, 0.0]]},
    ],
)
def test_each_part_of_a_table_counts(change: dict[str, Any]) -> None:
    """Laws and where they apply make a table; so does its tokenizer."""
    table = parse_table(TABLE)
    assert fingerprint_table(table, b"zip") == fingerprint_table(parse_table(TABLE), b"zip")
    assert fingerprint_table(table, b"zip") != fingerprint_table(table, b"other")
    changed = parse_table({**TABLE, **change})
    assert fingerprint_table(table, b"zip") != fingerprint_table(changed, b"zip")
