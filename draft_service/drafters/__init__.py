"""The sources of draft tokens, one file each, behind one small interface."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

from paceline.records import Advance, DraftSource, Opened, Proposal, ReplicaLoad, SessionSpec


class DraftSession(Protocol):
    """One session with one source. Its calls come from one thread, in the order of the stream."""

    @property
    def opened(self) -> Opened:
        """What the session found and what its limits are."""

    def advance(self, advance: Advance) -> Future[Proposal]:
        """Takes in what was committed and drafts what continues it.

        The tokens of every advance count, also of one whose drafting a newer one supersedes: its
        future then fails with Aborted, reason SUPERSEDED.

        Raises:
            Aborted: the committed length does not follow from what came before.
        """

    def close(self) -> None:
        """Frees what the session holds."""


class Drafter(Protocol):
    """A source of draft tokens, shared by its sessions."""

    @property
    def source(self) -> DraftSource:
        """Its name, and the model behind it if there is one."""

    @property
    def is_alive(self) -> bool:
        """Whether it can still draft."""

    async def open(self, spec: SessionSpec) -> DraftSession:
        """Opens a session.

        Raises:
            InvalidArgument: the session's tokens do not fit the source.
        """

    def load(self) -> ReplicaLoad:
        """How busy it is."""

    def stop(self) -> None:
        """Ends it, after its sessions."""
