"""What the chart repeats is fresh, and every value is explained. Needs no program."""

from __future__ import annotations

from deploy import generate


def test_generated_parts_are_fresh() -> None:
    """`make chart` was run after the last change of a setting or a value."""
    assert 0 == generate.main(["--check"])


def test_every_value_is_explained() -> None:
    """Each row of the table says what its key does."""
    rows = list(generate.table_of((generate.CHART / "values.yaml").read_text()))[2:]
    assert len(rows) > 70
    assert [] == [row for row in rows if row.endswith("|  |")]


def test_an_unexplained_value_is_seen() -> None:
    """The check can fail: a comment belongs to the key right below it."""
    table = list(generate.table_of("# Why.\n\na: 1\n# What.\nb: 2\ndraft:\n  c: 3\n"))[2:]
    assert [
        "| `a` | `1` |  |",
        "| `b` | `2` | What. |",
        "| `draft.c` | `3` | Instead of `defaults.c`. |",
    ] == table
