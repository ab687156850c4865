"""Compiled loops on disk, found again by every process.

Numba names a loop by what it captures, as that is pickled, and a loop that is captured is pickled
with a number that each process draws anew: nothing that captures one would ever be found. Here a
loop is its place in the sources, what it captures (loops likewise) and all sources of this package,
since loops are compiled into one another. Knows no loop.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core import serialize
from numba.core.caching import FunctionCache
from numba.core.dispatcher import Dispatcher


class LoopCache(FunctionCache):  # type: ignore[misc]  # numba has no types
    """The files of one loop."""

    def __init__(self, loop: Callable[..., Any]) -> None:
        """Finds a place for them.

        Raises:
            RuntimeError: there is none where this process may write.
        """
        super().__init__(loop)
        self._cache_file = _Files(Path(self._cache_path), self._impl.filename_base)

    def _index_key(self, sig: Any, codegen: Any) -> str:
        """What tells a loop, compiled for these arguments and this processor, from all others."""
        parts = numba.__version__, sources_digest(), describe(self._py_func)
        return _digest(repr((*parts, sig, codegen.magic_tuple())).encode())


class _Files:
    """One file per key. Two processes that write one at once write the same."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name

    def load(self, key: str) -> Any:
        """What was saved under a key; None without it."""
        try:
            return pickle.loads(self._path(key).read_bytes())
        except OSError:
            return None

    def save(self, key: str, data: Any) -> None:
        """Keeps what was compiled; a reader sees all of it or nothing."""
        path = self._path(key)
        part = path.with_name(f"{path.name}.{os.getpid()}")
        part.write_bytes(serialize.dumps(data))
        part.replace(path)

    def _path(self, key: str) -> Path:
        return self._directory / f"{self._name}-{key}.nbc"


def name_apart(loop: Any) -> None:
    """Gives a loop a name of its own among those of one place that capture something else.

    Compiled code calls by name, and numba tells names apart by a number that each process draws
    anew: of two loops that were kept by two processes, one would be called for the other.
    """
    loop.__qualname__ = f"{loop.__qualname__}_{_digest(describe(loop).encode())}"


def describe(value: Any) -> str:
    """A loop, or what one captures, in words that are the same in every process."""
    function = value.py_func if isinstance(value, Dispatcher) else value
    return _describe_loop(function) if hasattr(function, "__code__") else repr(value)


@functools.cache  # Loops capture one another many times over.
def _describe_loop(function: Any) -> str:
    captured = [describe(cell.cell_contents) for cell in function.__closure__ or ()]
    place = f"{function.__module__}.{function.__qualname__}:{function.__code__.co_firstlineno}"
    return f"{place}-{_digest(repr(captured).encode())}"


@functools.cache
def sources_digest() -> str:
    """Of every source of this package."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return _digest(b"".join(source.read_bytes() for source in sources))


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=12).hexdigest()
