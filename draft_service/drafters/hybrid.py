"""Several sources as one: those without a model first, the last one where they are silent.

Whether a source without a model is silent depends on committed text alone, so which source speaks
says nothing of a drawn token, and neither does the time it takes. The last source takes in every
round, so that a model's cache stays in step. It knows none of the sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

from draft_service.drafters import Drafter, DraftSession
from draft_service.drafters.lookup import LookupDrafter
from paceline.records import Advance, DraftSource, Opened, Proposal, ReplicaLoad, SessionSpec

PREFIX = "hybrid:"


class HybridDrafter:
    """Sources in the order in which they are asked; they are loaded and stopped by others."""

    def __init__(self, name: str, first: Sequence[LookupDrafter], last: Drafter) -> None:
        # Every source that was made for a target was made for the same one.
        models = [drafter.source.model for drafter in (last, *first)]
        self.source = DraftSource(name, next((m for m in models if m is not None), None))
        self._first = tuple(first)
        self._last = last

    async def open(self, spec: SessionSpec) -> HybridDraftSession:
        """Opens a session with every source; one that fails leaves none open."""
        sessions: list[DraftSession] = []
        try:
            for drafter in (*self._first, self._last):
                sessions.append(await drafter.open(spec))
        except BaseException:
            for session in sessions:
                session.close()
            raise
        return HybridDraftSession(self.source.name, sessions)

    @property
    def is_alive(self) -> bool:
        """Whether the last source can still draft."""
        return self._last.is_alive

    def load(self) -> ReplicaLoad:
        """Nothing of its own: the sources tell their own."""
        return ReplicaLoad()

    def stop(self) -> None:
        """There is nothing of its own to end."""


class HybridDraftSession:
    """One session with each source."""

    def __init__(self, name: str, sessions: Sequence[DraftSession]) -> None:
        self._first = sessions[:-1]
        self._last = sessions[-1]
        # Past the last one's context the others go on.
        max_length = max(session.opened.max_length for session in sessions)
        self.opened: Opened = replace(self._last.opened, max_length=max_length, source=name)

    def advance(self, advance: Advance) -> Future[Proposal]:
        """Asks one source after the other; those without a model answer on the spot."""
        spoken: Future[Proposal] | None = None
        for session in self._first:
            answer = session.advance(
                advance if spoken is None else replace(advance, num_draft_tokens=0)
            )
            if spoken is None and answer.result().token_ids:
                spoken = answer
        if spoken is None:
            return self._last.advance(advance)
        # A fault of this one shows when the last source is asked for tokens.
        self._last.advance(replace(advance, num_draft_tokens=0))
        return spoken

    def close(self) -> None:
        """Closes every session."""
        for session in (*self._first, self._last):
            session.close()
