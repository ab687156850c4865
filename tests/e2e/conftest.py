"""The three services as real processes, started with the command that a user starts them with."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

ALPHABET = "abcdefgh"


def law(*likely: tuple[str, float]) -> list[float]:
    """A row of a table: the given masses, the rest spread over the other letters but the last."""
    row = dict.fromkeys(ALPHABET, 0.0)
    row.update(likely)
    rest = [letter for letter in ALPHABET[:-1] if row[letter] == 0.0]
    for letter in rest:
        row[letter] = (1.0 - sum(mass for _, mass in likely)) / len(rest)
    return [row[letter] for letter in ALPHABET]


def chain_table(*, wrong_after: str = "") -> dict[str, Any]:
    """A table whose greedy text walks on for ever and depends on the last two letters.

    After each letter of `wrong_after` it prefers another letter: a draft that is right sometimes.
    """
    letters = ALPHABET[:-1]
    suffixes = {}
    for first, second in itertools.product(letters, letters):
        step = letters.index(first) + 2 * letters.index(second) + 1
        step += second in wrong_after
        suffixes[first + second] = law((letters[step % len(letters)], 0.7))
    return {
        "alphabet": ALPHABET,
        "eos": ALPHABET[-1],
        "default": law(("a", 0.5)),
        "suffixes": suffixes,
    }


@dataclass
class Running:
    """A pair that runs."""

    process: subprocess.Popen[str]
    address: str
    pids: dict[str, list[int]] = field(default_factory=dict)
    """Process ids by service, in order of start."""
    addresses: dict[str, list[str]] = field(default_factory=dict)
    readers: list[threading.Thread] = field(default_factory=list)

    def follow(self, stream: IO[str], lines: list[str]) -> None:
        """Reads a stream to its end in the background, so that the process never blocks on it."""

        def read() -> None:
            with stream:
                lines.extend(stream)

        self.readers.append(threading.Thread(target=read))
        self.readers[-1].start()

    def kill(self, service: str, index: int = 0, number: int = signal.SIGKILL) -> None:
        """Signals one of the services."""
        os.kill(self.pids[service][index], number)


Start = Callable[..., Running]


def start(*arguments: str) -> Running:
    """Runs `paceline up` until it is ready.

    Raises:
        AssertionError: it ended before; with what it printed.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline.cli.main", "up", "--gateway-port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    log: list[str] = []
    running = Running(process, "")
    running.follow(process.stderr, log)
    for line in process.stdout:
        if found := re.match(r"pid (\w+)=(\d+) address=(\S+)", line):
            running.pids.setdefault(found[1], []).append(int(found[2]))
            running.addresses.setdefault(found[1], []).append(found[3])
        if found := re.match(r"ready gateway=(\S+)", line):
            running.address = found[1]
            running.follow(process.stdout, [])
            return running
    process.stdout.close()
    process.wait()
    running.readers[0].join()
    raise AssertionError("paceline up ended early:\n" + "".join(log[-30:]))


def stop(running: Running) -> None:
    """Ends a pair and everything it started."""
    for pids in running.pids.values():
        for pid in pids:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                continue
    running.process.send_signal(signal.SIGTERM)
    try:
        running.process.wait(60)
    except subprocess.TimeoutExpired:
        running.process.send_signal(signal.SIGTERM)  # the second signal kills
        running.process.wait(30)
    for reader in running.readers:
        reader.join()


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Model names of a target and of a draft that is right for most of its text."""
    folder = tmp_path_factory.mktemp("tables")
    contents = {"target": chain_table(), "draft": chain_table(wrong_after="c")}
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return {name: f"table:{folder / name}.json" for name in contents}


@pytest.fixture
def start_pair(tables: dict[str, str]) -> Iterator[Start]:
    """Starts pairs of the two tables that end with the test."""
    started: list[Running] = []

    def start_one(*arguments: str) -> Running:
        models = ("--target", tables["target"], "--draft", tables["draft"])
        running = start(*models, *arguments)
        started.append(running)
        return running

    yield start_one
    for running in started:
        stop(running)


@pytest.fixture(scope="session")
def pair(tables: dict[str, str]) -> Iterator[Running]:
    """One pair for all tests that leave it as they found it."""
    running = start("--target", tables["target"], "--draft", tables["draft"])
    yield running
    stop(running)


@pytest.fixture(scope="module")
def independent_pair(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Running, tuple[list[float], list[float]]]]:
    """A pair with one law at every place, and these laws: the target's and the draft's."""
    laws = [0.30, 0.25, 0.20, 0.15, 0.10], [0.20, 0.10, 0.30, 0.30, 0.10]
    folder, names = tmp_path_factory.mktemp("laws"), []
    for number, one in enumerate(laws):
        path = folder / f"{number}.json"
        path.write_text(json.dumps({"alphabet": "abcde", "default": one}))
        names.append(f"table:{path}")
    running = start("--target", names[0], "--draft", names[1])
    yield running, laws
    stop(running)


@pytest.fixture(scope="module")
def ending_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A pair whose texts walk on through a to g and end by themselves now and then, at h.

    The draft is less sure of the next letter than the target.
    """
    folder, names = tmp_path_factory.mktemp("ending"), []
    for name, likely in (("target", 0.6), ("draft", 0.4)):
        end = (ALPHABET[-1], 0.03)
        rows = {
            letter: law((ALPHABET[(i + 1) % 7], likely), end)
            for i, letter in enumerate(ALPHABET[:-1])
        }
        content = {"alphabet": ALPHABET, "eos": "h", "default": rows["a"], "suffixes": rows}
        (folder / f"{name}.json").write_text(json.dumps(content))
        names.append(f"table:{folder / name}.json")
    running = start("--target", names[0], "--draft", names[1])
    yield running
    stop(running)


@pytest.fixture(scope="session")
def smollm2_pair() -> Iterator[Running]:
    """The built-in model with its built-in drafts."""
    running = start()
    yield running
    stop(running)


@pytest.fixture(scope="session")
def table_path(tables: dict[str, str]) -> Path:
    """The target's table."""
    return Path(tables["target"].removeprefix("table:"))
