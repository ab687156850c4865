"""The contracts: generated code is fresh, the protos lint, and no enum's zero means anything."""

from __future__ import annotations

import re
import shutil
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
    reference = "docs/reference.md"
    assert (tmp_path / reference).read_text() == (ROOT / reference).read_text()


def test_reference_has_everything() -> None:
    """Every RPC, message, field and enum value of the contracts is in the reference, explained."""
    lines = (ROOT / "docs" / "reference.md").read_text().splitlines()
    for text in (proto.read_text() for proto in PROTOS):
        for kind, name in re.findall(r"^\s*(message|enum|service) (\w+)", text, re.M):
            heading = f"service {name}" if kind == "service" else name
            assert [line for line in lines if re.fullmatch(rf"### (\w+\.)*{heading}", line)], name
        for name in re.findall(r"^\s*rpc (\w+)\(", text, re.M):
            assert [line for line in lines if line.endswith(f".{name}") and "####" in line], name
        for name in re.findall(r"^\s+[\w.<>, ]*?(\w+) = \d+(?: \[.*\])?;", text, re.M):
            rows = [line for line in lines if line.startswith(f"| `{name}` |")]
            assert rows and not [row for row in rows if row.endswith("|  |")], name


def test_protos_lint() -> None:
    """`buf lint` and `buf format` have nothing to say."""
    buf = str(Path(sys.executable).parent / "buf")
    lint = _run(buf, "lint", "protos")
    assert (lint.returncode, lint.stdout + lint.stderr) == (0, "")
    formatted = _run(buf, "format", "--diff", "--exit-code", "protos")
    assert (formatted.returncode, formatted.stdout) == (0, "")


def _breaking(protos: Path) -> subprocess.CompletedProcess[str]:
    buf = str(Path(sys.executable).parent / "buf")
    return _run(buf, "breaking", str(protos), "--against", str(ROOT / "protos/released.txtpb"))


def test_nothing_released_is_broken() -> None:
    """The contracts still read and serve everything that the last release did."""
    found = _breaking(ROOT / "protos")
    assert (found.returncode, found.stdout + found.stderr) == (0, "")


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("  string text = 1;\n", "  string text = 1;\n  // A new one.\n  bool added = 99;\n", ""),
        ("  string text = 1;\n", "", "deleted"),
        ("  string text = 1;", "  string words = 1;", "changed name"),
        ("  bool include_stop = 6;", "  int32 include_stop = 6;", "changed type"),
        ("  rpc Tokenize(TokenizeRequest) returns (TokenizeResponse);", "", "deleted"),
    ],
    ids=["added", "removed", "renamed", "retyped", "rpc"],
)
def test_a_break_is_seen(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    """A field may be added; whatever a client may use may not change or go."""
    copy = Path(shutil.copytree(ROOT / "protos", tmp_path / "protos"))
    gateway = copy / "paceline" / "v1" / "gateway.proto"
    assert old in gateway.read_text()
    gateway.write_text(gateway.read_text().replace(old, new))
    found = _breaking(copy)
    assert (complaint != "", complaint in found.stdout) == (found.returncode != 0, True)


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
