"""Drafts by prompt lookup: what followed the last time these tokens stood here.

No model: the source fits every target, and each proposal is a point mass. It knows no probability.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future

from draft_service.drafters.history import CommittedLength, chain_length
from paceline.records import (
    Advance,
    DraftSource,
    LawEncoding,
    Opened,
    Proposal,
    ReplicaLoad,
    SessionSpec,
)

NAME = "ngram"

# A single token recurs by chance: proposing on it costs rows of the target for little.
_MIN_TOKENS, _MAX_TOKENS = 2, 4
_UNLIMITED = 2**31 - 1


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


class NgramDrafter:
    """Prompt lookup for all its sessions; they share nothing."""

    def __init__(self, max_draft_tokens: int) -> None:
        self.source = DraftSource(NAME)
        self.max_draft_tokens = max_draft_tokens

    async def open(self, spec: SessionSpec) -> NgramDraftSession:
        """Opens a session."""
        return NgramDraftSession(self.max_draft_tokens, spec)

    @property
    def is_alive(self) -> bool:
        """Always: there is nothing that could end."""
        return True

    def load(self) -> ReplicaLoad:
        """Nothing ever queues here."""
        return ReplicaLoad()

    def stop(self) -> None:
        """There is nothing to end."""


class NgramDraftSession:
    """One session: its own tokens are all it looks at."""

    def __init__(self, max_draft_tokens: int, spec: SessionSpec) -> None:
        self._stop_token_ids = spec.sampling.stop_token_ids
        self._index = NgramIndex(spec.token_ids)
        self._committed = CommittedLength(len(spec.token_ids))
        self.opened = Opened(0, _UNLIMITED, max_draft_tokens, NAME)

    def advance(self, advance: Advance) -> Future[Proposal]:
        """Takes in what was committed and looks up; done on return."""
        started_at = time.perf_counter()
        self._committed.advance(advance)
        self._index.extend(advance.new_token_ids)
        num_tokens = min(advance.num_draft_tokens, self.opened.max_draft_tokens)
        found = self._index.continuation(num_tokens) if num_tokens else ()
        future: Future[Proposal] = Future()
        future.set_result(
            Proposal(
                round=advance.round,
                base_length=advance.committed_length,
                token_ids=found[: chain_length(found, self._stop_token_ids)],
                encoding=LawEncoding.POINT_MASS,
                draft_s=time.perf_counter() - started_at,
            )
        )
        return future

    def close(self) -> None:
        """There is nothing to free."""
