"""Runs tests in a copy of the tree that has a mistake in it.

Each run is a process of its own, forked from one that has imported everything heavy but nothing of
this tree. It knows no mutant by name.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutant import Mutant

ROOT = Path(__file__).parents[2]
TREE = ("paceline", "draft_service", "verify_service", "gateway", "tests", "pyproject.toml")
_NUM_PROCESSES = 2
_PLUGINS = ["pytest_asyncio.plugin", "pytest_timeout"]
_HEAVY = [
    *("google.rpc.error_details_pb2", "grpc.aio", "grpc_health.v1.health", "grpc_status"),
    *(
        "jinja2",
        "llguidance",
        "numba",
        "prometheus_client",
        "pydantic_settings",
        "structlog",
        "uvloop",
    ),
    *("pytest", *_PLUGINS, "scipy.stats", "tokenizers", "torch"),
    "transformers.models.llama.modeling_llama",
]


@dataclass(frozen=True, slots=True)
class Run:
    """What became of the tests in one copy of the tree."""

    verdict: str
    """SURVIVED where all passed, killed where one failed, BROKEN where none could judge."""
    detail: str
    """The first test that failed, or pytest's exit status."""
    wall_s: float


class _Witness:
    """A plugin that notes the first failed test; a fixture that breaks is none."""

    def __init__(self) -> None:
        self.failed = ""

    def pytest_runtest_logreport(self, report: object) -> None:
        """Sees every phase of every test."""
        if getattr(report, "when", "") == "call" and getattr(report, "failed", False):
            self.failed = self.failed or str(getattr(report, "nodeid", ""))


def processes() -> ProcessPoolExecutor:
    """Where runs go: two at once, each in a new process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_HEAVY)
    return ProcessPoolExecutor(_NUM_PROCESSES, mp_context=context, max_tasks_per_child=1)


def run_tests(mutant: Mutant | None, tests: Sequence[str]) -> Run:
    """Runs tests up to the first failure, with a mistake in the tree unless there is none to make.

    For a process that does nothing else: its directory, its path and its output are changed.
    """
    started_at = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="paceline-mutant-") as name:
        copy = Path(name)
        _copy_tree(copy)
        if mutant is not None:
            mutant.apply(copy)
        status, failed = _run_pytest(copy, tests)
        os.chdir(ROOT)
    verdict, detail = "BROKEN", f"pytest ended with status {status}"
    if status == 0:
        verdict, detail = "SURVIVED", " ".join(tests)
    elif failed:
        verdict, detail = "killed", failed
    return Run(verdict, detail, time.perf_counter() - started_at)


def _copy_tree(copy: Path) -> None:
    for name in TREE:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name)
        else:
            shutil.copy2(source, copy / name)


def _run_pytest(copy: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Pytest's exit status and the first failed test, everything imported from the copy."""
    import pytest

    ours = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_of_tests(name)}
    sys.path[:] = [str(copy), *(p for p in sys.path if Path(p or ".").resolve() != ROOT)]
    os.chdir(copy)
    with open(os.devnull, "w") as nowhere:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere.fileno(), stream.fileno())
    witness = _Witness()
    # A plugin of pytest's is among what is imported already: its asserts are not what is judged.
    quiet = "ignore::pytest.PytestAssertRewriteWarning"
    options = ["-x", "-p", "no:cacheprovider", "-W", quiet, f"--rootdir={copy}"]
    options += [word for plugin in _PLUGINS for word in ("-p", plugin)]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    gc.freeze()  # pytest collects garbage over and over, and what is imported is none
    status = pytest.main([*options, *tests], plugins=[witness])
    import paceline

    assert Path(paceline.__file__).is_relative_to(copy), "the tests saw another tree"
    sys.modules.update(ours)  # what is returned is pickled under these names
    return int(status), witness.failed


def _is_of_tests(module: str) -> bool:
    return module.partition(".")[0] == "tests"
