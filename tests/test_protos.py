"""The contracts: generated code is fresh, the protos lint, and no enum's zero means anything."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROTOS = sorted((ROOT / "protos" / "paceline" / "v1").glob("*.proto"))
GENERATED = "paceline/v1"


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_generated_code_is_fresh(tmp_path: Path) -> None:
    """What the Makefile's own command generates is what is committed, file by file."""
    # -o takes the environment as built, so that a test never installs anything.
    command = ("make", "-s", "-o", "setup", "protos")
    made = _run(*command, f"PROTO_OUT={tmp_path}", f"PYTHON={sys.executable}")
    assert (made.returncode, made.stderr) == (0, "")

    fresh = {file.name: file.read_text() for file in (tmp_path / GENERATED).iterdir()}
    committed = {
        file.name: file.read_text()
        for file in (ROOT / GENERATED).iterdir()
        if file.is_file() and file.name != "__init__.py"
    }
    assert sorted(fresh) == sorted(committed)
    stale = [name for name in fresh if fresh[name] != committed[name]]
    assert stale == []


def test_protos_lint() -> None:
    """`buf lint` and `buf format` have nothing to say."""
    buf = str(Path(sys.executable).parent / "buf")
    lint = _run(buf, "lint", "protos")
    assert (lint.returncode, lint.stdout + lint.stderr) == (0, "")
    formatted = _run(buf, "format", "--diff", "--exit-code", "protos")
    assert (formatted.returncode, formatted.stdout) == (0, "")


@pytest.mark.parametrize("proto", PROTOS, ids=lambda path: path.stem)
def test_zero_of_every_enum_is_unspecified(proto: Path) -> None:
    """An unset enum field can never be read as a value that means something."""
    for name, body in re.findall(r"\benum (\w+) \{(.*?)\}", proto.read_text(), re.DOTALL):
        zero = re.search(r"(\w+) = 0;", body)
        prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper()
        assert zero is not None
        assert f"{prefix}_UNSPECIFIED" == zero.group(1)


def test_enums_are_seen() -> None:
    """The expression above finds the enums that are there."""
    text = "".join(proto.read_text() for proto in PROTOS)
    assert len(re.findall(r"\benum (\w+) \{(.*?)\}", text, re.DOTALL)) == 6


@pytest.mark.parametrize("proto", PROTOS, ids=lambda path: path.stem)
def test_every_rpc_lists_its_errors(proto: Path) -> None:
    """Each RPC's comment says which statuses it ends with and what the caller does."""
    lines = proto.read_text().splitlines()
    for number, line in enumerate(lines):
        if line.strip().startswith("rpc "):
            start = number
            while lines[start - 1].strip().startswith("//"):
                start -= 1
            assert "Errors:" in "\n".join(lines[start:number]), f"{proto.name}: {line.strip()}"
