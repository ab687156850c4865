"""A distilled draft on disk: what comes back, and what is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from paceline.engine import models
from paceline.engine.draft_files import DraftFiles, Recipe, own_parameters, write_draft
from paceline.engine.model_files import ModelFiles
from paceline.engine.model_source import INT4_PER_GROUP, INT8_PER_ROW, find_source
from paceline.engine.tokenizer_archive import fingerprint_tokenizer
from paceline.errors import FailedPrecondition, InvalidArgument, NotFound

HEAD_IDS = torch.tensor([1, 2, 77, 499])
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def target(save_model: Any) -> Path:
    """A target of four layers, each with a window of its own or none."""
    directory: Path = save_model(
        "qwen2",
        num_hidden_layers=4,
        use_sliding_window=True,
        max_window_layers=2,
        layer_types=["full_attention", "sliding_attention"] * 2,
    )
    return directory


@pytest.fixture
def draft(target: Path, tmp_path: Path) -> Path:
    """A draft of the first and the last layer, whose weights are its own."""
    return write_draft_of(target, tmp_path)


def write_draft_of(target: Path, tmp_path: Path) -> Path:
    """Such a draft of any target of four layers."""
    network = AutoModelForCausalLM.from_pretrained(target, num_hidden_layers=2)
    torch.manual_seed(5)
    own = {
        name: one + 0.01 * torch.randn(one.shape) for name, one in own_parameters(network).items()
    }
    recipe = Recipe(
        "the target", fingerprint_tokenizer(AutoTokenizer.from_pretrained(target)), (0, 3)
    )
    write_draft(tmp_path / "draft", recipe, own, HEAD_IDS)
    return tmp_path / "draft"


@pytest.fixture
def files(draft: Path, target: Path) -> DraftFiles:
    """Both of them."""
    return DraftFiles(draft, ModelFiles(str(target)))


def read(files: DraftFiles) -> PreTrainedModel:
    """Reads a network as loading does."""
    return files.read_network(files.read_config(), torch.float32)


def rewrite(draft: Path, change: Callable[[Tensors], object]) -> None:
    """Changes a draft's tensors."""
    tensors = load_file(draft / "draft.safetensors")
    change(tensors)
    save_file(tensors, draft / "draft.safetensors")


def test_a_draft_is_its_layers_and_its_targets_rest(files: DraftFiles, target: Path) -> None:
    """Layers and norm come from its own file, in half precision; embeddings and head do not."""
    assert {"draft.json", "draft.safetensors"} == {path.name for path in files.directory.iterdir()}
    network = read(files)
    whole = AutoModelForCausalLM.from_pretrained(target)
    tensors = load_file(files.directory / "draft.safetensors")
    assert {torch.float16, torch.int32} == {one.dtype for one in tensors.values()}
    assert torch.equal(whole.model.embed_tokens.weight, network.model.embed_tokens.weight)
    for name, parameter in own_parameters(network).items():
        assert torch.equal(tensors[name].float(), parameter), name
    with torch.inference_mode():
        ids = torch.tensor([[5, 6, 7]])
        logits = network(ids).logits
        hidden = network.model(ids).last_hidden_state
        assert torch.allclose(whole.lm_head(hidden)[..., HEAD_IDS], logits[..., HEAD_IDS])
    assert 520 == logits.shape[-1]
    assert len(HEAD_IDS) == int(logits[0, 0].isfinite().sum())


def test_a_draft_of_odd_sizes(save_model: Any, tmp_path: Path) -> None:
    """Where 4 bits do not fit the matrices, a draft has 8 on the CPU."""
    target = save_model("qwen2", num_hidden_layers=4, intermediate_size=88)
    draft = write_draft_of(target, tmp_path)
    options = models.LoadOptions(tmp_path, target=str(target))
    loaded = models.load(str(draft), options, lambda _: None)
    assert INT8_PER_ROW == loaded.identity.quantization


def test_a_draft_whose_bits_are_named(draft: Path, target: Path, tmp_path: Path) -> None:
    """A name with a prefix is what is loaded."""
    options = models.LoadOptions(tmp_path, target=str(target))
    loaded = models.load(f"quantized:int8:{draft}", options, lambda _: None)
    assert INT8_PER_ROW == loaded.identity.quantization


def test_layers_keep_their_kind(files: DraftFiles) -> None:
    """What a configuration says of each layer is said of the layers that were taken."""
    config = files.read_config()
    assert (2, ["full_attention", "sliding_attention"]) == (
        config.num_hidden_layers,
        config.layer_types,
    )


def test_load_beside_a_target(draft: Path, target: Path, tmp_path: Path) -> None:
    """A directory is recognised; on the CPU it has 4 bits; its head has all rows outside."""
    options = models.LoadOptions(tmp_path, target=str(target))
    loaded = models.load(str(draft), options, lambda _: None)
    whole = models.load(str(target), options, lambda _: None)
    assert (INT4_PER_GROUP, whole.identity.vocabulary_size, 256) == (
        loaded.identity.quantization,
        loaded.identity.vocabulary_size,
        loaded.identity.max_length,
    )
    assert whole.identity.tokenizer_fingerprint == loaded.identity.tokenizer_fingerprint
    assert whole.identity.fingerprint != loaded.identity.fingerprint
    size = models.measure(str(draft), options, lambda _: None)
    full_size = models.measure(str(target), options, lambda _: None)
    assert 2 * size.kv_bytes_per_token == full_size.kv_bytes_per_token


def test_a_quantized_target_is_the_same_target(draft: Path, target: Path, tmp_path: Path) -> None:
    """Embeddings are borrowed from the files behind the name."""
    found = find_source(str(draft), tmp_path, lambda _: None, f"quantized:int8:{target}")
    assert (DraftFiles(draft, ModelFiles(str(target))), "") == found


def test_a_draft_without_a_target(draft: Path, tmp_path: Path) -> None:
    """It cannot be loaded by itself, nor beside another draft."""
    with pytest.raises(InvalidArgument, match="beside its target"):
        find_source(str(draft), tmp_path, lambda _: None)
    with pytest.raises(InvalidArgument, match="beside its target"):
        find_source(str(draft), tmp_path, lambda _: None, str(draft))


def test_target_with_other_tokens(files: DraftFiles) -> None:
    """Refused with both names, before any weight is read."""
    path = files.directory / "draft.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer": "other"}))
    with pytest.raises(FailedPrecondition, match=r"made for the target, not for .*tokens") as error:
        files.read_tokenizer()
    assert "TOKENIZER_MISMATCH" == error.value.reason


def test_target_of_another_shape(draft: Path, save_model: Any) -> None:
    """The tensors that do not fit are named."""
    wider = save_model("qwen2", folder="wider", num_hidden_layers=4, intermediate_size=128)
    with pytest.raises(FailedPrecondition, match=r"another shape: .*mlp\.down_proj") as error:
        read(DraftFiles(draft, ModelFiles(str(wider))))
    assert "DRAFT_NOT_OF_TARGET" == error.value.reason


def test_target_with_fewer_layers(draft: Path, save_model: Any) -> None:
    """A draft that began as layers that the target does not have was made for another."""
    shorter = save_model("qwen2", folder="shorter", num_hidden_layers=3)
    with pytest.raises(FailedPrecondition, match=r"layers \(0, 3\) of 3"):
        DraftFiles(draft, ModelFiles(str(shorter))).read_config()


def test_target_that_is_not_there(draft: Path, tmp_path: Path) -> None:
    """The target is named, not the draft."""
    with pytest.raises(NotFound, match="nothing"):
        DraftFiles(draft, ModelFiles(str(tmp_path / "nothing"))).read_config()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("head_ids"), "lack head_ids"),
        (lambda t: t.update(head_ids=torch.tensor([5, 5])), "do not ascend"),
        (lambda t: t.update(head_ids=torch.tensor([5, 3])), "do not ascend"),
        (lambda t: t.update(head_ids=torch.tensor([-1, 3])), "do not ascend"),
        (lambda t: t.update(head_ids=torch.tensor([3, 520])), r"ascend in \[0, 520\)"),
        (lambda t: t.pop("model.norm.weight"), r"absent or too many: model\.norm\.weight"),
        (lambda t: t.update(more=torch.zeros(1)), r"absent or too many: more \(1 in all\)"),
    ],
)
def test_damaged_weights(files: DraftFiles, change: Any, message: str) -> None:
    """What is wrong is named, and the draft's directory with it."""
    rewrite(files.directory, change)
    with pytest.raises(FailedPrecondition, match=message) as error:
        read(files)
    assert "WEIGHTS_INCOMPLETE" == error.value.reason
    assert str(files.directory) in error.value.message


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"target": "x", "tokenizer": "y"}'])
def test_damaged_recipe(files: DraftFiles, text: str) -> None:
    """A recipe that cannot be read says so."""
    (files.directory / "draft.json").write_text(text)
    with pytest.raises(FailedPrecondition, match=r"no readable draft\.json"):
        files.read_config()


def test_weights_that_are_no_weights(files: DraftFiles) -> None:
    """Neither absent nor cut files are passed over."""
    path = files.directory / "draft.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(FailedPrecondition, match="cannot be read"):
        read(files)
    path.unlink()
    with pytest.raises(FailedPrecondition, match="cannot be read"):
        read(files)
