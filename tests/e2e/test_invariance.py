"""The invariance run from end to end: it starts its pair, loses parts of it, and ends it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

LONG = "800"
"""Tokens of a text: a service is killed behind the first eighth, long before the end."""


@pytest.mark.timeout(300)
def test_a_seed_gives_one_text_in_every_way(tables: dict[str, str], tmp_path: Path) -> None:
    """B12, B37, B98, B127: no id differs, and every loss has happened: else it says so."""
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"question_id": i, "category": "x", "turns": [t]} for i, t in enumerate(("ab", "cde"))]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    models = ("--target", tables["target"], "--draft", tables["draft"])
    command = (sys.executable, "-m", "paceline.bench.invariance", "--prompts", str(prompts))
    done = subprocess.run(
        (*command, *models, "--max-tokens", LONG),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stdout if done.returncode else "")
    assert f"0 flips in {16 * 2 * int(LONG)} tokens" in done.stdout
