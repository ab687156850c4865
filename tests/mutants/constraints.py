"""Mistakes in constrained output: the mask of a row is not that of the text it stands behind."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_CONSTRAINT = "paceline/engine/constraint.py"
_DRAFTER = "draft_service/drafters/model.py"

_AT_EVERY_ROW = ("tests/engine/test_constraint.py", "tests/law/test_constraint.py")
_MASK = "masks.append(walker.mask())"

MUTANTS = (
    Mutant(
        "every row under the mask of the first",
        _CONSTRAINT,
        _MASK,
        "masks.append(masks[0])",
        _AT_EVERY_ROW,
    ),
    Mutant(
        "no mask at the bonus row",
        _CONSTRAINT,
        _MASK,
        "masks.append(walker.mask() | (len(masks) == num_rows - 1))",
        _AT_EVERY_ROW,
    ),
    Mutant(
        "the matcher behind rejected tokens",
        _CONSTRAINT,
        "masks, walker = [self.mask()], self.fork()",
        "masks, walker = [self.mask()], self",
        _AT_EVERY_ROW,
    ),
    Mutant(
        "a stop before the form is complete",
        _CONSTRAINT,
        "        if self._has_ended or self._state.is_accepting():\n",
        "        if True:\n",
        _AT_EVERY_ROW,
    ),
    Mutant(
        "the draft's matcher behind what it drafted",
        _DRAFTER,
        "        return matcher.fork()\n",
        "        return matcher\n",
        ("tests/draft_service/test_constraint.py",),
    ),
)
