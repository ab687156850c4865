"""The table format: which law applies when, and that each fault is named by its key."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.engine.table_model import TableModel, load_table, parse_table
from paceline.errors import InvalidArgument, NotFound

DEFAULT = [0.5, 0.25, 0.25]
AFTER_A = [0.0, 1.0, 0.0]
AFTER_BA = [0.0, 0.0, 1.0]
FIRST = [1.0, 0.0, 0.0]
TABLE: dict[str, Any] = {
    "alphabet": "abc",
    "eos": "c",
    "default": DEFAULT,
    "suffixes": {"a": AFTER_A, "ba": AFTER_BA},
    "positions": [FIRST],
}


def law(model: TableModel, text: str, generated_index: int) -> list[float]:
    """The probabilities after `text`."""
    tail = tuple(map(model.alphabet.index, text))
    row: list[float] = model.logits[model.find_row(tail, generated_index)].exp().tolist()
    return row


@pytest.mark.parametrize(
    ("text", "generated_index", "expected"),
    [
        ("", 1, DEFAULT),
        ("b", 1, DEFAULT),
        ("a", 1, AFTER_A),
        ("aa", 1, AFTER_A),
        ("ba", 1, AFTER_BA),
        ("cba", 7, AFTER_BA),
        ("ba", 0, FIRST),
        ("ba", -1, AFTER_BA),
    ],
)
def test_which_law_applies(text: str, generated_index: int, expected: list[float]) -> None:
    """Positions go before suffixes, the longest suffix before shorter ones, default is last."""
    assert expected == law(parse_table(TABLE), text, generated_index)


def test_logits_are_log_probabilities() -> None:
    """Rows are float32 log p, with -inf for 0."""
    model = parse_table({"alphabet": "ab", "default": [1.0, 0.0]})
    assert torch.float32 == model.logits.dtype
    assert [[0.0, -math.inf]] == model.logits.tolist()


@pytest.mark.parametrize(("eos", "expected"), [("a", 0), ("c", 2), (None, None)])
def test_eos(eos: str | None, expected: int | None) -> None:
    """The end is a character's id, or there is none."""
    assert expected == parse_table({**TABLE, "eos": eos}).eos_token_id


def test_optional_keys() -> None:
    """Alphabet and default are enough."""
    model = parse_table({"alphabet": "abc", "default": DEFAULT})
    assert (None, (), {}) == (model.eos_token_id, model.position_rows, model.suffix_rows)
    assert DEFAULT == law(model, "abc", 0)


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("alphabet", "", "alphabet"),
        ("alphabet", "aba", "alphabet"),
        ("alphabet", ["a", "b", "c"], "alphabet"),
        ("alphabet", "ab\ud800", "alphabet"),
        ("eos", "z", "eos"),
        ("eos", "ab", "eos"),
        ("eos", "", "eos"),
        ("eos", 2, "eos"),
        ("default", None, "default"),
        ("default", [0.5, 0.5], "default"),
        ("default", [0.5, 0.25, 0.2500001], "default"),
        ("default", [1.5, -0.5, 0.0], "default"),
        ("default", [math.nan, 0.5, 0.5], "default"),
        ("default", [True, False, False], "default"),
        ("default", ["1", 0, 0], "default"),
        ("suffixes", [], "suffixes"),
        ("suffixes", {"": DEFAULT}, "suffixes['']"),
        ("suffixes", {"az": DEFAULT}, "suffixes['az']"),
        ("suffixes", {"a": [1.0]}, "suffixes['a']"),
        ("positions", {}, "positions"),
        ("positions", [FIRST, [1.0]], "positions[1]"),
        ("prefixes", {}, "prefixes"),
    ],
)
def test_each_fault_is_named(key: str, value: object, named: str) -> None:
    """A malformed table is InvalidArgument, and the field is where the fault is."""
    with pytest.raises(InvalidArgument) as caught:
        parse_table({**TABLE, key: value})
    assert named == caught.value.field


def test_sum_tolerance() -> None:
    """Rounded thirds pass; what is off by more than 1e-9 does not (above)."""
    parse_table({"alphabet": "abc", "default": [0.3333333333, 0.3333333333, 0.3333333334]})


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[1, 2]", b""])
def test_file_that_is_no_table(tmp_path: Path, content: bytes) -> None:
    """A file that is not a JSON object is InvalidArgument for the table."""
    path = tmp_path / "table.json"
    path.write_bytes(content)
    with pytest.raises(InvalidArgument) as caught:
        load_table(path)
    assert "table" == caught.value.field


def test_load_table(tmp_path: Path) -> None:
    """A file gives the same model as its content; a missing one is NotFound."""
    path = tmp_path / "table.json"
    path.write_text(json.dumps(TABLE))
    assert parse_table(TABLE).suffix_rows == load_table(path).suffix_rows
    with pytest.raises(NotFound):
        load_table(tmp_path / "absent.json")
    with pytest.raises(NotFound):
        load_table(tmp_path)
