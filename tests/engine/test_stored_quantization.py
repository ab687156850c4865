"""Weights that a library quantized before they were stored run through transformers' modules.

Where torchao is installed its own are stored and served; it is no dependency, since every process
that loads a model would import it. Without it a tensor of our own stands in for one of its.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, TorchAoConfig

from paceline.engine.assembly import EngineSettings, assemble
from paceline.engine.engine import Engine
from paceline.engine.lean.weights import serves, serves_on_cuda
from paceline.engine.model_fingerprint import fingerprint_network
from paceline.engine.model_runner import NetworkRunner
from paceline.engine.models import LoadOptions, load
from paceline.engine.runners import build_runner
from paceline.engine.table_model import TableModel
from paceline.errors import FailedPrecondition

OPTIONS = LoadOptions(Path("unused"), "bfloat16")


class Rounded(torch.Tensor):
    """A matrix of codes and a scale, as quantization libraries make them."""

    codes: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def __new__(cls, codes: torch.Tensor, scale: torch.Tensor) -> Rounded:
        """A tensor without numbers of its own."""
        made = torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=scale.dtype)
        made.codes, made.scale = codes, scale
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        """The names of what it is made of."""
        return ["codes", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]  # it is a class method of torch's own subclasses too
        """Detaching is all that a parameter needs."""
        assert func is torch.ops.aten.detach.default, func
        return cls(args[0].codes, args[0].scale)


@pytest.fixture
def rounded(save_model: Any) -> Any:
    """A network with one such matrix."""
    network = AutoModelForCausalLM.from_pretrained(save_model("llama"))
    assert serves(network)
    linear = network.model.layers[1].mlp.up_proj
    codes = torch.ones(linear.weight.shape, dtype=torch.int8)
    linear.weight = nn.Parameter(Rounded(codes, torch.ones(1)), requires_grad=False)
    return network


def test_a_matrix_of_codes_is_left_to_transformers(rounded: Any) -> None:
    """The lean decoder would lay it out anew, as if it were numbers."""
    assert not serves(rounded)


def test_codes_are_fingerprinted(rounded: Any) -> None:
    """A code that differs makes another model."""
    digest = partial(
        fingerprint_network, rounded, dtype="float32", quantization="", tokenizer_archive=b""
    )
    before = digest()
    assert before == digest()
    rounded.model.layers[1].mlp.up_proj.weight.codes.add_(1)
    assert before != digest()


def test_a_library_that_is_not_here(save_model: Any) -> None:
    """The start fails with its name; a name that quantizes again fails before."""
    directory = save_model("llama")
    path = directory / "config.json"
    config = {**json.loads(path.read_text()), "quantization_config": {"quant_method": "aqlm"}}
    path.write_text(json.dumps(config))
    with pytest.raises(FailedPrecondition, match=r"(?i)aqlm"):
        load(str(directory), OPTIONS, lambda _: None)
    with pytest.raises(FailedPrecondition, match="quantized already, by aqlm"):
        load(f"quantized:int8:{directory}", OPTIONS, lambda _: None)


@pytest.fixture
def store(save_model: Any, tmp_path: Path) -> Callable[..., Path]:
    """Saves a model whose matrices are torchao's, in int8."""
    config = pytest.importorskip("torchao.quantization").Int8WeightOnlyConfig

    def save(name: str = "stored", **changes: Any) -> Path:
        whole: Path = save_model("llama", folder=f"{name}-whole", **changes)
        network = AutoModelForCausalLM.from_pretrained(
            whole, dtype=torch.bfloat16, quantization_config=TorchAoConfig(config())
        )
        network.save_pretrained(tmp_path / name)
        for path in whole.glob("*token*"):
            shutil.copy(path, tmp_path / name)
        return tmp_path / name

    return save


@pytest.fixture
def stored(store: Callable[..., Path]) -> Path:
    """One such model."""
    return store()


@pytest.fixture
def engines() -> Iterator[list[Engine]]:
    """Engines that a test started; they end with it."""
    started: list[Engine] = []
    yield started
    for engine in started:
        engine.stop()


def test_it_is_named_and_runs(stored: Path, tmp_path: Path, engines: list[Engine]) -> None:
    """The paged runner passes its self-test on it, and its identity says who quantized it."""
    settings = EngineSettings(tmp_path, "bfloat16", max_length=64, memory_bytes=64 << 20)
    served, engine = assemble(str(stored), settings, lambda _: None)
    engines.append(engine)
    assert ("torchao", "bfloat16") == (served.identity.quantization, served.identity.dtype)


def test_it_is_no_plain_matrix(stored: Path) -> None:
    """The lean decoder, which lays weights out anew, leaves it to transformers' modules."""
    loaded = load(str(stored), OPTIONS, lambda _: None)
    assert not isinstance(loaded.network, TableModel)
    assert not serves(loaded.network)
    assert not serves_on_cuda(loaded.network.to("meta"))
    assert isinstance(build_runner(loaded), NetworkRunner)


def test_equal_files_are_one_model(store: Callable[..., Path]) -> None:
    """In two places they have one fingerprint."""
    one, two = (load(str(store(name)), OPTIONS, lambda _: None) for name in ("one", "two"))
    assert one.identity.fingerprint == two.identity.fingerprint


def test_there_is_no_exact_mode_for_it(stored: Path) -> None:
    """It is refused at load."""
    with pytest.raises(FailedPrecondition, match="no exact kernels"):
        load(str(stored), replace(OPTIONS, dtype="float32", exact=True), lambda _: None)
