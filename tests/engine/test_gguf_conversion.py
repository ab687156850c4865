"""Conversion happens once, survives a failure, and a second process waits for the first."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.engine import gguf_conversion
from paceline.engine.gguf_conversion import convert
from paceline.errors import FailedPrecondition

Writer = Callable[[Path, Path, Callable[[str], None]], None]


def ignore(_: str) -> None:
    """Takes progress and says nothing."""


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    """A file that is no real GGUF file."""
    path = tmp_path / "some.gguf"
    path.write_bytes(bytes(range(256)) * 100)
    return path


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replaces the reading of weights; gives the directories that were written."""
    directories: list[Path] = []

    def write(_: Path, directory: Path, __: Callable[[str], None]) -> None:
        directory.mkdir()
        directories.append(directory)

    monkeypatch.setattr(gguf_conversion, "_write", write)
    return directories


def test_converts_once(tmp_path: Path, gguf: Path, written: list[Path]) -> None:
    """B126: the second time the first is found; nothing is said or written (read-only mounts)."""
    lines: list[str] = []
    cache_dir = tmp_path / "deep" / "cache"
    first = convert(gguf, "some", cache_dir, lines.append)
    assert first.name.startswith("some-")
    assert any("some.gguf" in line for line in lines)
    lines.clear()
    lock = cache_dir / f".{first.name}.lock"
    lock.unlink()
    assert first == convert(gguf, "some", cache_dir, lines.append)
    assert [first] == written
    assert [] == lines
    assert not lock.exists()


@pytest.mark.parametrize("place", [0, 12_345, -1])
def test_other_content_is_another_conversion(
    tmp_path: Path, gguf: Path, written: list[Path], place: int
) -> None:
    """A file of the same name and size with another byte is converted anew."""
    first = convert(gguf, "some", tmp_path, ignore)
    content = bytearray(gguf.read_bytes())
    content[place] ^= 1
    gguf.write_bytes(content)
    assert first != convert(gguf, "some", tmp_path, ignore)
    assert 2 == len(written)


def test_longer_file_is_another_conversion(tmp_path: Path, gguf: Path, written: list[Path]) -> None:
    """The size counts, so a large file cut short is not taken for the whole."""
    gguf.write_bytes(bytes(1 << 20))
    first = convert(gguf, "some", tmp_path, ignore)
    gguf.write_bytes(bytes((1 << 20) + 1))
    assert first != convert(gguf, "some", tmp_path, ignore)
    assert 2 == len(written)


def test_second_process_waits(tmp_path: Path, gguf: Path, written: list[Path]) -> None:
    """B126: while another holds the lock nothing is converted; its result is used then."""
    directory = convert(gguf, "some", tmp_path, ignore)
    directory.rmdir()
    written.clear()
    waiting = threading.Event()
    found: list[Path] = []

    def progress(line: str) -> None:
        assert "another process" in line
        waiting.set()

    with (tmp_path / f".{directory.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(
            target=lambda: found.append(convert(gguf, "some", tmp_path, progress))
        )
        thread.start()
        assert waiting.wait(30)
        directory.mkdir()  # what the other process made
    thread.join(30)
    assert [directory] == found
    assert [] == written


def test_damaged_file_leaves_nothing(tmp_path: Path, gguf: Path) -> None:
    """A file that is no GGUF is FailedPrecondition, and no half-made directory stays."""
    cache_dir = tmp_path / "cache"
    with pytest.raises(FailedPrecondition, match="configuration cannot be read"):
        convert(gguf, "some", cache_dir, ignore)
    assert [] == [path for path in cache_dir.iterdir() if path.is_dir()]
