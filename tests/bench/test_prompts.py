"""The prompts: our own are well formed, files are read line by line, limits spread."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from paceline.bench.prompts import Question, own_questions, read_questions, spread


def test_own_questions() -> None:
    """About twenty, in categories of equal size, each once."""
    questions = own_questions()
    assert set(Counter(question.category for question in questions).values()) == {4}
    assert len({question.id for question in questions}) == len(questions) == 20
    assert len({question.text for question in questions}) == len(questions)


def test_reads_lines(tmp_path: Path) -> None:
    """The first turn is the prompt; ids become text; empty lines are skipped."""
    file = tmp_path / "questions.jsonl"
    file.write_text('{"question_id": 81, "category": "math", "turns": ["one", "two"]}\n\n')
    assert [Question("81", "math", "one")] == read_questions(file)


def test_only_a_newline_ends_a_line(tmp_path: Path) -> None:
    """JSON may hold other separators of lines as they are; files are UTF-8 on every machine."""
    file = tmp_path / "questions.jsonl"
    line = '{"question_id": %d, "category": "a", "turns": ["a\u2028b\x85\u00e9"]}'
    file.write_bytes("\r\n".join([line % 1, "", line % 2, ""]).encode())
    text = "a\u2028b\x85\u00e9"
    assert [Question("1", "a", text), Question("2", "a", text)] == read_questions(file)


@pytest.mark.parametrize(
    "line", ["{", '{"question_id": 1, "category": "a"}', '{"question_id": 1, "turns": ["x"]}', "[]"]
)
def test_malformed_line_is_named(tmp_path: Path, line: str) -> None:
    """A line in another format is refused with its number."""
    file = tmp_path / "questions.jsonl"
    file.write_text('{"question_id": 1, "category": "a", "turns": ["x"]}\n' + line)
    with pytest.raises(ValueError, match="line 2"):
        read_questions(file)


def test_spread_takes_turns() -> None:
    """A limit takes from every category before it takes a second one of any."""
    names = ["a1", "a2", "a3", "b1", "c1", "c2"]
    questions = [Question(name, name[0], name) for name in names]
    assert ["a1", "b1", "c1", "a2"] == [question.id for question in spread(questions, 4)]
    assert sorted(names) == sorted(question.id for question in spread(questions, 99))
