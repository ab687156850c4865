"""The clients in clients/ do what they show, on a running system, as they are."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.e2e.conftest import Running

pytestmark = pytest.mark.e2e

CLIENTS = Path(__file__).parents[2] / "clients"
PROMPT = "abc"
# What every client prints: text, figures, a refusal with its ErrorInfo, a deadline.
SHOWN = re.compile(
    r"[a-g]{32}\n32 tokens in \d+ rounds\n"
    r"INVALID_ARGUMENT: sampling.temperature: must be in [^\n]*\n"
    r"paceline INVALID_ARGUMENT \{\}\n"
    r"DEADLINE_EXCEEDED after \d+ tokens\n"
)


def run(*command: str, cwd: Path = CLIENTS, **environment: str) -> str:
    """What a command prints, which must be all it has to say."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr), done.stdout
    return done.stdout


def found(name: str) -> str:
    """The path of a program; beside the interpreter goes first."""
    here = str(Path(sys.executable).parent)
    path = shutil.which(name, path=f"{here}{os.pathsep}{os.environ.get('PATH', '')}")
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def test_python(pair: Running) -> None:
    """With the modules of this package."""
    root = str(CLIENTS.parent)
    printed = run(sys.executable, "python/client.py", pair.address, PROMPT, PYTHONPATH=root)
    assert SHOWN.fullmatch(printed), printed


@pytest.fixture(scope="module")
def node_client(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Node, and a copy of the client with the packages that its lock file names."""
    node, npm = found("node"), found("npm")
    root = tmp_path_factory.mktemp("node")
    shutil.copytree(CLIENTS, root / "clients", ignore=shutil.ignore_patterns("node_modules"))
    shutil.copytree(CLIENTS.parent / "protos", root / "protos")
    folder = root / "clients" / "node"
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )
    if "network" in done.stderr or "ENOTCACHED" in done.stderr:
        pytest.skip("npm reaches no registry")
    assert 0 == done.returncode, done.stderr
    return node, folder


def test_node(pair: Running, node_client: tuple[str, Path]) -> None:
    """With grpc-js and the protos, nothing generated."""
    node, folder = node_client
    printed = run(node, "client.js", pair.address, PROMPT, cwd=folder)
    assert SHOWN.fullmatch(printed), printed


def test_grpcurl(pair: Running) -> None:
    """Answers are JSON; the ErrorInfo is printed by name, with the field that is wrong."""
    printed = run("bash", "grpcurl/client.sh", pair.address, PROMPT, GRPCURL=found("grpcurl"))
    whole, *_ = printed.split("ERROR:")
    assert 32 == len("".join(re.findall(r'^    "text": "([a-g]+)"', whole, re.M)))
    assert '"completionTokenCount": 32' in printed
    info = r'"@type":"type.googleapis.com/google.rpc.ErrorInfo","domain":"paceline"'
    assert info in printed
    assert '"field":"sampling.temperature"' in printed
    codes = re.findall(r"Code: (\w+)", printed)
    assert ["InvalidArgument", "DeadlineExceeded"] == codes
