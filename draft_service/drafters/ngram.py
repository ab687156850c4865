"""Prompt lookup: what followed the last time these tokens stood in the session.

It knows no other session, and no tokenizer, so no constraint either: for forced tokens it is put
behind `grammar` in a hybrid.
"""

from __future__ import annotations

from collections.abc import Sequence

NAME = "ngram"

# A single token recurs by chance: proposing on it costs rows of the target for little.
_MIN_TOKENS, _MAX_TOKENS = 2, 4


class NgramIndex:
    """Tokens, and for every n-gram in them where it was last followed by something."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self.token_ids: list[int] = []
        self._followed_at: dict[tuple[int, ...], int] = {}
        self.extend(token_ids)

    def extend(self, token_ids: Sequence[int]) -> None:
        """Adds tokens; an n-gram is known once its follower is there, so it never finds itself."""
        ids = self.token_ids
        for token_id in token_ids:
            end = len(ids)
            for size in range(_MIN_TOKENS, min(_MAX_TOKENS, end) + 1):
                self._followed_at[tuple(ids[end - size :])] = end
            ids.append(token_id)

    def continuation(self, num_tokens: int) -> tuple[int, ...]:
        """What followed the longest known n-gram that the tokens end with; empty if none is."""
        ids = self.token_ids
        for size in range(min(_MAX_TOKENS, len(ids)), _MIN_TOKENS - 1, -1):
            start = self._followed_at.get(tuple(ids[-size:]))
            if start is not None:
                return tuple(ids[start : start + num_tokens])
        return ()

    def close(self) -> None:
        """There is nothing to free."""
