"""`paceline ab` on logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log with 40 tenants in each of two arms; the second is twice as fast."""
    lines = [
        json.dumps(
            {
                "event": "generation",
                "arm": arm,
                "ab_unit": f"{arm}{number}",
                "outcome": "STOP",
                "tokens": 21,
                "rounds": 5,
                "plain_rounds": 1,
                "drafted": 20,
                "accepted": 15 + number % 3,
                "first_token_s": 0.1,
                "token_s": token_s * (1 + 0.01 * (number % 5)),
            }
        )
        for arm, token_s in (("control", 0.02), ("fast", 0.01))
        for number in range(40)
    ]
    path = tmp_path / "gateway.log"
    path.write_text("\n".join(["starting", *lines]))
    return path


def test_a_table(paceline: Any, log: Path) -> None:
    """Arms with their intervals, and the verdict."""
    result = paceline("ab", str(log))
    assert 0 == result.exit_code
    assert "control" in result.stdout and "fast" in result.stdout
    assert "against control" in " ".join(result.stdout.split())
    assert "faster" in result.stdout
    assert "too few" not in result.stdout


def test_json(paceline: Any, log: Path) -> None:
    """The same as numbers."""
    result = paceline("ab", str(log), "--json", "--level", "0.9")
    answer = json.loads(result.stdout)
    control, fast = answer["arms"]
    assert (0.9, "control", 40, None) == (
        answer["level"],
        control["arm"],
        control["units"],
        control["speedup"],
    )
    assert abs(fast["speedup"]["value"] - 2.0) < 1e-9
    assert 1.9 < fast["speedup"]["low"] < 2.0 < fast["speedup"]["high"] < 2.1
    assert 40 < control["tokens_per_second"]["low"] < control["tokens_per_second"]["high"] < 51


def test_several_logs_and_few_tenants(paceline: Any, log: Path, tmp_path: Path) -> None:
    """Logs add up; an arm of few tenants is named."""
    lines = log.read_text().splitlines()
    first, second = tmp_path / "1.log", tmp_path / "2.log"
    first.write_text("\n".join(lines[:41]))
    second.write_text("\n".join(lines[41:46]))
    result = paceline("ab", str(first), str(second))
    assert 0 == result.exit_code
    assert "fast: 5 units, too few" in result.stdout
    assert "control: " not in result.stdout


def test_a_log_without_an_experiment(paceline: Any, tmp_path: Path) -> None:
    """Said, with exit code 1."""
    path = tmp_path / "gateway.log"
    path.write_text('{"event": "ready"}\n')
    result = paceline("ab", str(path))
    assert 1 == result.exit_code
    assert "no generation of an experiment" in result.stderr
