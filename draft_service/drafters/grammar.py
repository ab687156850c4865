"""Drafts what a session's constraint leaves no choice about; silent everywhere else.

It needs the target's tokenizer and no model.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.engine.constraint import Grammars
from paceline.records import ModelIdentity, SessionSpec
from paceline.tier import check_token_ids

NAME = "grammar"


class GrammarLookup:
    """One session: a matcher behind what is committed, where there is a constraint."""

    def __init__(self, grammars: Grammars, identity: ModelIdentity, spec: SessionSpec) -> None:
        """Reads the constraint.

        Raises:
            InvalidArgument: it is malformed, or an id is outside the vocabulary.
        """
        check_token_ids(spec, identity)
        self._matcher = grammars.matcher(spec)

    def extend(self, token_ids: Sequence[int]) -> None:
        """Takes committed tokens in."""
        if self._matcher is not None:
            self._matcher.accept(token_ids)

    def continuation(self, num_tokens: int) -> tuple[int, ...]:
        """What must come next."""
        return tuple(self._matcher.forced()[:num_tokens]) if self._matcher is not None else ()

    def close(self) -> None:
        """There is nothing to free."""
