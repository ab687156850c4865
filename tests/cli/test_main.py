"""The command line itself: every command has help, and asking for it costs nothing."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from paceline.cli.main import COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command(paceline: Any, name: str) -> None:
    """Each command is found, opens with a sentence, and shows the default of every option."""
    result = paceline(name, "--help")
    assert result.exit_code == 0
    assert f"Usage: main {name}" in result.stdout


def test_commands_are_listed(paceline: Any) -> None:
    """The group's help names them all."""
    listed = paceline("--help").stdout
    assert [name for name in COMMANDS if f"  {name} " not in listed] == []


def test_unknown_command(paceline: Any) -> None:
    """What is not a command is wrong usage."""
    assert paceline("fly").exit_code == 2


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_load_no_model_code(name: str) -> None:
    """A command is there at once: neither torch nor transformers is imported for its help."""
    code = (
        "import sys; from paceline.cli.main import main\n"
        f"main(['{name}', '--help'], standalone_mode=False)\n"
        "print([m for m in ('torch', 'transformers', 'matplotlib') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("flag", "shown"),
    [
        ("--target", "smollm2"),
        ("--draft", "quantized:int4"),
        ("--rule", "rejection-block"),
        ("--gateway-port", "50051"),
        ("--draft-replicas", "1"),
        ("--verify-threads", "number of cores"),
        ("--omp-wait-policy", "passive"),
    ],
)
def test_help_shows_defaults(paceline: Any, flag: str, shown: str) -> None:
    """Every default of `up` is printed with its option."""
    text = " ".join(paceline("up", "--help").stdout.split())
    entry = text[text.index(f" {flag} ") :].split(" --", 2)[1]
    assert "[default:" in entry
    assert shown in entry
