"""`paceline bench` on a gateway made of a rule: which rows, which requests, what is written."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

FLAGS = ("bench", "--limit", "2", "--max-tokens", "9")


def test_rows_and_requests(gateway: Any, paceline: Any, tmp_path: Path) -> None:
    """Plain and each draft, every prompt once for each size, one more of each row to warm up."""
    out = tmp_path / "deep" / "out.json"
    sizes = ("--concurrency", "2", "--concurrency", "1", "--concurrency", "2")
    result = paceline(*FLAGS, *sizes, "--draft", "int8", "--draft", "ngram", "--json", str(out))
    assert 0 == result.exit_code, result.output
    asked = Counter(
        (r.speculation.draft_source, r.speculation.HasField("draft_token_count"))
        for r in gateway.requests
    )
    assert {("none", True): 5, ("int8", False): 5, ("ngram", False): 5} == asked
    assert {(1, 2)} == {tuple(r.prompt.token_ids.token_ids) for r in gateway.requests}
    written = json.loads(out.read_text())
    assert {"plain", "int8", "ngram"} == {run["row"] for run in written["runs"]}
    assert 3 * (2 + 2) == len(written["runs"])
    assert ("letters", ["int8", "ngram"]) == (written["target"], written["drafts"])
    assert [2, 1, 2] == written["settings"]["concurrency"]
    assert None is written["settings"]["prompts"]
    assert written["machine"]["cores"] >= 1
    assert out.with_suffix(".png").is_file()


def test_the_services_draft_is_the_default(gateway: Any, paceline: Any) -> None:
    """Without --draft its first source heads the row, and the service is left to choose."""
    result = paceline(*FLAGS)
    assert 0 == result.exit_code, result.output
    assert {"none", ""} == {r.speculation.draft_source for r in gateway.requests}
    assert "int8" in result.output and "ngram" not in result.output


def test_a_process_is_told(gateway: Any, paceline: Any, tmp_path: Path) -> None:
    """The gateway's own process, found by its address."""
    pytest.importorskip("psutil")
    out = tmp_path / "out.json"
    result = paceline(*FLAGS, "--json", str(out))
    (process,) = json.loads(out.read_text())["processes"]
    assert "gateway" == process["service"] and process["peak_mib"] > 0
    assert f"{process['peak_mib']:.0f}" in result.output


def test_malformed_prompts_are_wrong_usage(gateway: Any, paceline: Any, tmp_path: Path) -> None:
    """A line that is none is named, and nothing is asked."""
    path = tmp_path / "prompts.jsonl"
    path.write_text("{}\n")
    result = paceline(*FLAGS, "--prompts", str(path))
    assert 2 == result.exit_code
    assert "line 1" in result.output
    assert [] == gateway.requests
