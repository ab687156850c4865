"""Every mutant still applies to the source as it is, and leaves a module that can be imported.

Whether the tests see it is `make mutants`, which takes minutes.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutants import MUTANTS
from tests.mutants.mutant import DoesNotApply, Mutant

ROOT = Path(__file__).parents[2]


def test_there_are_many_and_no_two_are_one() -> None:
    """Each is named once and leaves a tree of its own."""
    assert len(MUTANTS) > 100
    assert len(MUTANTS) == len({mutant.name for mutant in MUTANTS})
    assert len(MUTANTS) == len({(m.file, m.before, m.after) for m in MUTANTS})


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_applies(mutant: Mutant) -> None:
    """Exactly one place changes, what is left is Python, and the tests that must fail exist."""
    source = (ROOT / mutant.file).read_text()
    mutated = mutant.mutated(source)
    assert source != mutated
    assert ast.dump(ast.parse(source)) != ast.dump(ast.parse(mutated))
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert f"def {name}" in (ROOT / file).read_text()


@pytest.mark.parametrize("before", ["gone", "twice"])
def test_mutant_that_no_longer_applies(before: str) -> None:
    """It fails loudly: silently it would be killed by nothing, or by chance."""
    mutant = Mutant("a mistake", "a.py", before, "x", ("tests/a.py",))
    with pytest.raises(DoesNotApply, match=r"a mistake: a\.py holds [02] times"):
        mutant.mutated("twice and twice\n")
