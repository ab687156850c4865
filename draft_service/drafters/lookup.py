"""Sources that read what comes next off committed text, without a model: their shared session.

Each proposal is a point mass, and whether there is one depends on committed text alone. It knows
no probability and not how the text is searched; that is each source's own file.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

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

_UNLIMITED = 2**31 - 1


class Lookup(Protocol):
    """What one session looks its continuations up in."""

    def extend(self, token_ids: Sequence[int]) -> None:
        """Takes committed tokens in."""

    def continuation(self, num_tokens: int) -> tuple[int, ...]:
        """At most `num_tokens` that may follow what is committed; empty where nothing is known."""

    def close(self) -> None:
        """Takes in that the session has ended."""


class LookupDrafter:
    """A source without a model for all its sessions."""

    def __init__(
        self, source: DraftSource, max_draft_tokens: int, make: Callable[[SessionSpec], Lookup]
    ) -> None:
        """Takes how a session's lookup is made; it runs beside the event loop."""
        self.source = source
        self.max_draft_tokens = max_draft_tokens
        self._make = make

    async def open(self, spec: SessionSpec) -> LookupDraftSession:
        """Opens a session."""
        lookup = await asyncio.to_thread(self._make, spec)
        return LookupDraftSession(self, spec, lookup)

    @property
    def is_alive(self) -> bool:
        """Always: there is nothing that could end."""
        return True

    def load(self) -> ReplicaLoad:
        """Nothing ever queues here."""
        return ReplicaLoad()

    def stop(self) -> None:
        """There is nothing to end."""


class LookupDraftSession:
    """One session; its proposals are ready when it is asked."""

    def __init__(self, drafter: LookupDrafter, spec: SessionSpec, lookup: Lookup) -> None:
        self._stop_token_ids = spec.sampling.stop_token_ids
        self._lookup = lookup
        self._committed = CommittedLength(len(spec.token_ids))
        self.opened = Opened(0, _UNLIMITED, drafter.max_draft_tokens, drafter.source.name)

    def advance(self, advance: Advance) -> Future[Proposal]:
        """Takes in what was committed and looks up; done on return."""
        started_at = time.perf_counter()
        self._committed.advance(advance)
        self._lookup.extend(advance.new_token_ids)
        num_tokens = min(advance.num_draft_tokens, self.opened.max_draft_tokens)
        found = self._lookup.continuation(num_tokens) if num_tokens else ()
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
        """Ends the lookup."""
        self._lookup.close()
