"""`paceline distill`: flags reach the training, and mistakes are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import InvalidArgument


def test_makes_a_draft_and_says_how_good_it_is(
    paceline: Any, networks: Any, tmp_path: Path
) -> None:
    """The last line names the directory and the held-out figures."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("What is tea?\nWho walks?\n")
    result = paceline(
        "distill",
        *("--target", networks.find(), "--out", str(tmp_path / "draft"), "--layers", "0"),
        *("--num-tokens", "50", "--num-steps", "2", "--rounds", "1", "--threads", "1"),
        *("--prompts", str(prompts), "--cache-dir", str(tmp_path), "--head-ids", "50"),
    )
    assert 0 == result.exit_code, result.output
    last = result.stdout.splitlines()[-1]
    assert last.startswith(f"{tmp_path / 'draft'}: greedy agreement 0.")
    assert [0] == json.loads((tmp_path / "draft" / "draft.json").read_text())["layers"]
    assert "The head scores 50" in (tmp_path / "draft" / "README.md").read_text()


def test_a_prompt_is_a_line(paceline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines end at line ends alone, are taken as they are, and blank ones ask nothing."""
    from paceline.distill.run import DistillOptions

    seen: list[DistillOptions] = []

    def refuse(options: DistillOptions, _: Any) -> None:
        seen.append(options)
        raise InvalidArgument("target", "not today")

    monkeypatch.setattr("paceline.distill.run.distill", refuse)
    prompts = tmp_path / "prompts.txt"
    prompts.write_bytes(" What is\u2028tea? \r\n\n \t\nWho\x85 w\u00e4lks?\n".encode())
    result = paceline("distill", "--out", str(tmp_path), "--prompts", str(prompts))
    assert (1, True) == (result.exit_code, "not today" in result.output)
    assert (" What is\u2028tea? ", "Who\x85 w\u00e4lks?") == seen[0].own_prompts


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (("--layers", "0,x"), 2, "no list of layers"),
        (("--layers", "7"), 1, "there is no layer 7"),
        (("--target", "./nothing"), 1, "there is no such directory"),
        (("--num-steps", "0"), 2, "--num-steps"),
    ],
)
def test_mistakes(
    paceline: Any,
    networks: Any,
    tmp_path: Path,
    flags: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    """Wrong usage is 2, what the files do not allow is 1."""
    out = ("--out", str(tmp_path / "draft"), "--target", networks.find())
    result = paceline("distill", *out, *flags)
    assert (code, True) == (result.exit_code, message in result.output), result.output
