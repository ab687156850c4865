"""What every draft session must know of its stream: how much is committed, and where a block ends.

It knows no source.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.errors import Aborted, InvalidArgument
from paceline.records import Advance


class CommittedLength:
    """The number of tokens, prompt and committed, that the stream has told of."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._round = 0

    def advance(self, advance: Advance, vocabulary_size: int | None = None) -> int:
        """Takes an advance in and returns the length before it.

        Raises:
            InvalidArgument: an id is outside the vocabulary.
            Aborted: the round is not a newer one, or the lengths do not add up.
        """
        before, after = self._length, self._length + len(advance.new_token_ids)
        if advance.round <= self._round:
            raise Aborted(
                f"round {self._round} was told of already, not {advance.round}",
                reason="ROUND_OUT_OF_ORDER",
                metadata={"TRUE_ROUND": str(self._round), "TRUE_LENGTH": str(before)},
            )
        if advance.committed_length != after:
            raise Aborted(
                f"{before} tokens and {len(advance.new_token_ids)} new ones make {after}, not "
                f"{advance.committed_length}",
                reason="LENGTH_MISMATCH",
                metadata={"TRUE_LENGTH": str(before)},
            )
        if vocabulary_size is not None and any(
            token_id >= vocabulary_size for token_id in advance.new_token_ids
        ):
            raise InvalidArgument("advance.new_token_ids", f"ids must be under {vocabulary_size}")
        self._round, self._length = advance.round, after
        return before


def chain_length(token_ids: Sequence[int], stop_token_ids: Sequence[int]) -> int:
    """Length of the chain up to and including its first stop token: nothing follows a stop."""
    for index, token_id in enumerate(token_ids, start=1):
        if token_id in stop_token_ids:
            return index
    return len(token_ids)
