"""What tokens a model speaks, and whether a draft's fit a target's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.engine import models
from paceline.engine.model_tokens import ModelTokens, check_tokens, read_tokens
from paceline.errors import FailedPrecondition, InvalidArgument, NotFound

TEXTS = {token_id: f"t{token_id}" for token_id in range(10)}
TARGET = ModelTokens("big", TEXTS, (1, 2), "f", b"")


def ignore(_: str) -> None:
    """Tells nobody."""


@pytest.mark.parametrize("name", ["target", "eos", "table"])
def test_as_the_loaded_model_says(
    networks: Any, write_table: Any, tmp_path: Path, name: str
) -> None:
    """B46: the same tokenizer, ids and ends as the model itself, without its weights."""
    model = write_table(0.5, 0.5, eos="b") if name == "table" else networks.find(name)
    identity = models.load(model, models.LoadOptions(tmp_path), ignore).identity
    found = read_tokens(model, tmp_path, ignore).identity()
    for field in ("name", "tokenizer_fingerprint", "vocabulary_size", "eos_token_ids"):
        assert getattr(identity, field) == getattr(found, field), field
    assert identity.noise_version == found.noise_version


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    """NOT_FOUND, as for the weights."""
    with pytest.raises(NotFound):
        read_tokens(str(tmp_path / "nothing"), tmp_path, ignore)


@pytest.mark.parametrize("extra", [{}, {10: "more"}, {10: "more", 600: "far"}])
def test_tokens_that_one_side_lacks_are_no_fault(extra: dict[int, str]) -> None:
    """B44, B46: what both have means the same; the rest is padding or was added."""
    longer = replace(TARGET, name="longer", texts=TEXTS | extra)
    for draft, target in ((longer, TARGET), (TARGET, longer)):
        check_tokens(draft, target, maps_ends=False)


def test_an_id_that_means_two_things() -> None:
    """B46: refused, with the id and both strings."""
    draft = replace(TARGET, name="small", texts=TEXTS | {7: "seven"})
    with pytest.raises(FailedPrecondition) as caught:
        check_tokens(draft, TARGET, maps_ends=True)
    assert (
        "draft 'small' does not fit target 'big': id 7 is 'seven' there and 't7' here"
        == caught.value.message
    )
    assert "DRAFT_MISMATCH" == caught.value.reason


def test_other_ends_are_mapped_on_demand_alone() -> None:
    """B46: the same ends in another order are the same; others need the operator's word."""
    check_tokens(replace(TARGET, eos_token_ids=(2, 1)), TARGET, maps_ends=False)
    draft = replace(TARGET, eos_token_ids=(3,))
    check_tokens(draft, TARGET, maps_ends=True)
    with pytest.raises(FailedPrecondition, match=r"are \[3\] there and \[1, 2\] here; map_ends"):
        check_tokens(draft, TARGET, maps_ends=False)


# Early exits -------------------------------------------------------------------------------------


def test_an_early_exit_is_the_models_first_layers(networks: Any, tmp_path: Path) -> None:
    """The first layers, then the model's own norm and head: another model, with its tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    name = networks.find()
    options = models.LoadOptions(tmp_path)
    whole = models.load(name, options, ignore)
    early = models.load(f"early-exit:1:{name}", options, ignore)
    stock = AutoModelForCausalLM.from_pretrained(name)
    ids = torch.tensor([[5, 6, 7]])
    with torch.inference_mode():
        del stock.model.layers[1:]
        expected = stock(ids, use_cache=False).logits
        network: Any = early.network
        assert torch.equal(expected, network(ids, use_cache=False).logits)
    assert whole.identity.fingerprint != early.identity.fingerprint
    assert whole.identity.tokenizer_fingerprint == early.identity.tokenizer_fingerprint
    sizes = [models.measure(n, options, ignore) for n in (name, f"early-exit:1:{name}")]
    assert 2 * sizes[1].kv_bytes_per_token == sizes[0].kv_bytes_per_token
    assert sizes[1].weights_bytes < sizes[0].weights_bytes


def test_all_layers_are_the_model(networks: Any, tmp_path: Path) -> None:
    """The last exit is no early one."""
    name = networks.find()
    options = models.LoadOptions(tmp_path)
    assert (
        models.load(name, options, ignore).identity.fingerprint
        == models.load(f"early-exit:2:{name}", options, ignore).identity.fingerprint
    )


@pytest.mark.parametrize("count", ["3", "0", "x", "", "-1"])
def test_an_exit_that_is_not_there(networks: Any, tmp_path: Path, count: str) -> None:
    """More layers than there are, or none: named."""
    with pytest.raises(InvalidArgument) as caught:
        models.load(f"early-exit:{count}:{networks.find()}", models.LoadOptions(tmp_path), ignore)
    assert "model" == caught.value.field
