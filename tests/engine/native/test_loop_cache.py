"""Compiled loops on disk: found again, and never taken for one another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.engine.native import loop_cache
from paceline.engine.native.compiled import compiled
from paceline.engine.native.grouped import pack_4
from paceline.engine.native.layer_loop import build_layer_loop


def _build_step(width: int) -> Any:
    def step(number: Any) -> Any:
        return number + width

    return compiled()(step)


def _build_steps(width: int, count: int) -> Any:
    step = _build_step(width)

    def steps(number: Any) -> Any:
        for _ in range(count):
            number = step(number)
        return number

    return compiled()(steps)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where these tests keep their loops."""
    monkeypatch.setattr(
        loop_cache, "_Files", lambda _, name, real=loop_cache._Files: real(tmp_path, name)
    )
    return tmp_path


def test_a_loop_that_captures_another_is_found_again(place: Path) -> None:
    """Built a second time, as by another process, it is read and not compiled."""
    first, second = _build_steps(3, 4), _build_steps(3, 4)
    assert 12 == first(0)
    assert [0, 1] == [_num_hits(first), _num_misses(first)]
    files = sorted(place.iterdir())
    assert 12 == second(0)
    assert [1, 0] == [_num_hits(second), _num_misses(second)]
    assert files == sorted(place.iterdir())


def test_loops_are_told_apart_by_what_they_capture() -> None:
    """Of one place in the sources, for other numbers, in themselves or in a loop that they call."""
    results = [_build_steps(width, count)(0) for width, count in ((3, 4), (3, 5), (2, 4))]
    assert [12, 15, 8] == results


def test_loops_are_compiled_for_their_arguments() -> None:
    """One that was kept for integers is not run for other numbers."""
    assert 12 == _build_steps(3, 4)(0)
    assert 12.5 == _build_steps(3, 4)(0.5)


def test_another_source_is_another_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops of other files are compiled in, so what was kept before a change is not taken."""
    assert 12 == _build_steps(3, 4)(0)
    monkeypatch.setattr(loop_cache, "sources_digest", lambda: "changed")
    changed = _build_steps(3, 4)
    assert 12 == changed(0)
    assert 0 == _num_hits(changed)


def test_half_a_file_is_never_read(place: Path) -> None:
    """Files appear whole, under their own names."""
    _build_steps(3, 4)(0)
    assert all(path.suffix == ".nbc" for path in place.iterdir())


def test_loops_of_several_processes_have_names_of_their_own() -> None:
    """Compiled code calls by name, so what two processes kept must not be taken for one another."""
    names = {_build_steps(*captured).py_func.__qualname__ for captured in ((3, 4), (3, 5), (2, 4))}
    assert 3 == len(names)
    assert names == {_build_steps(*one).py_func.__qualname__ for one in ((2, 4), (3, 5), (3, 4))}


def test_names_are_the_same_in_every_process() -> None:
    """The loops of a decoder, which capture loops that capture loops, are described alike."""
    ours = [_describe(width) for width in (2, 4)]
    program = (
        "import torch\n"
        "from paceline.engine.native.grouped import pack_4\n"
        "from paceline.engine.native.layer_loop import build_layer_loop as build\n"
        "from paceline.engine.native.loop_cache import describe, sources_digest\n"
        "tiles = pack_4(torch.zeros(32, 32)).tiles\n"
        "print([(describe(build(width, tiles)), sources_digest()) for width in (2, 4)])"
    )
    theirs = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert str(ours) == theirs.stdout.decode().strip()
    assert ours[0] != ours[1]
    assert " at 0x" not in str(ours)


def _describe(width: int) -> tuple[str, str]:
    loop = build_layer_loop(width, pack_4(torch.zeros(32, 32)).tiles)
    return loop_cache.describe(loop), loop_cache.sources_digest()


def _num_hits(loop: Any) -> int:
    return sum(loop.stats.cache_hits.values())


def _num_misses(loop: Any) -> int:
    return sum(loop.stats.cache_misses.values())
