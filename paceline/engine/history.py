"""The text that a row stands behind, for parameters that depend on it.

Nothing here is kept from one step to the next: a history is read off the sequence each time, so
that a token which was rejected has never been counted. It knows no logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.engine.constraint import Mask, Matcher
from paceline.engine.law import Ids


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """Every token before the one that a row is the law of."""

    token_ids: Ids
    """Prompt, committed output, and the draft tokens in front of the row [n]."""
    prompt_length: int
    allowed: Mask | None = None
    """What a constraint leaves [V]; None without one."""

    @property
    def output(self) -> Ids:
        """The tokens behind the prompt."""
        return self.token_ids[self.prompt_length :]


def row_histories(
    token_ids: Sequence[int],
    *,
    prompt_length: int,
    num_rows: int,
    matcher: Matcher | None = None,
) -> list[History]:
    """Returns the histories of the last rows of a sequence, each one token longer than the last.

    Args:
        token_ids: The sequence up to and including the token that its last row feeds.
        prompt_length: How many leading ones are prompt.
        num_rows: How many rows.
        matcher: Of the output's constraint, if there is one.
    """
    ids = np.array(token_ids, dtype=np.int64)
    first = len(ids) - num_rows + 1
    lengths = range(first, len(ids) + 1)
    if matcher is None:
        return [History(ids[:length], prompt_length) for length in lengths]
    masks = matcher.row_masks(token_ids[prompt_length:], num_rows)
    return [
        History(ids[:length], prompt_length, allowed)
        for length, allowed in zip(lengths, masks, strict=True)
    ]
