"""What a mutant is: one known mistake, as a piece of source and what stands in its place.

It knows how to make the mistake in a tree of files, not which tests see it there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class DoesNotApply(Exception):
    """The source has moved on: the piece is not there exactly once."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake."""

    name: str
    """What is wrong, in words."""
    file: str
    """Path from the root."""
    before: str
    """A piece of the file that occurs in it exactly once."""
    after: str
    """What replaces it."""
    tests: tuple[str, ...]
    """What pytest is given: files or tests of which at least one must fail."""

    def mutated(self, source: str) -> str:
        """The source with the mistake in it.

        Raises:
            DoesNotApply: `before` is not there exactly once.
        """
        if (count := source.count(self.before)) != 1:
            raise DoesNotApply(f"{self.name}: {self.file} holds {count} times {self.before!r}")
        return source.replace(self.before, self.after)

    def apply(self, root: Path) -> None:
        """Makes the mistake in a tree; errors as for `mutated`."""
        path = root / self.file
        path.write_text(self.mutated(path.read_text()))
