"""The command line's config file: what it sets, what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.cli.config_file import service_variables


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A path for a config file."""
    return tmp_path / "paceline.toml"


def test_table_gives_defaults(gateway: Any, paceline: Any, config: Path) -> None:
    """A command's table sets its options; a flag goes before it."""
    config.write_text('[generate]\nmax-tokens = 3\ntop_k = 9\nstop = ["A"]\n')
    paceline("--config", str(config), "generate", "hi", "--top-k", "4")
    request = gateway.requests[0]
    found = (request.max_tokens, request.sampling.top_k, list(request.stop_strings))
    assert found == (3, 4, ["A"])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[generate]\nmax_tokenz = 3\n", "max_tokenz"),
        ("[generatee]\n", "generatee"),
        ("generate = 3\n", "generate"),
        ("[generate", "not TOML"),
        ("verify = 3\n", "verify must be a table"),
        ('[verify]\nconfig = "x.toml"\n', "a file names no other file"),
    ],
)
def test_unknown_names_are_refused(paceline: Any, config: Path, text: str, named: str) -> None:
    """A name that nothing would read ends with exit code 2 and is named."""
    config.write_text(text)
    result = paceline("--config", str(config), "generate", "hi")
    assert result.exit_code == 2
    assert named in result.stderr


def test_wrong_value_is_refused(gateway: Any, paceline: Any, config: Path) -> None:
    """A value of the wrong kind is refused like that of a flag."""
    config.write_text('[generate]\nmax_tokens = "many"\n')
    result = paceline("--config", str(config), "generate", "hi")
    assert (result.exit_code, gateway.requests) == (2, [])
    assert "many" in result.stderr


def test_service_tables_become_variables() -> None:
    """The services' tables reach them under the names that they read."""
    tables = {
        "verify": {"max-rows": 64, "exact": True},
        "gateway": {"draft": ["a:1", "b:2"]},
        "generate": {"top_k": 3},
    }
    assert {
        "PACELINE_VERIFY_MAX_ROWS": "64",
        "PACELINE_VERIFY_EXACT": "True",
        "PACELINE_GATEWAY_DRAFT": "a:1,b:2",
    } == service_variables(tables)
