"""One generation's session on the draft tier, which may be absent, late, lost or come back.

A task reads for as long as the session lives and opens it again, in the background, when it was
lost. Whatever happens to the draft costs speed and nothing else. It does not know the target's
session or when a generation ends.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections import Counter
from dataclasses import dataclass

from gateway.faults import for_caller
from gateway.pairing import NO_DRAFT, find_source
from gateway.replicas import Replica, Replicas
from gateway.stream import Stream
from gateway.tiers import Sources
from paceline import wire
from paceline.errors import (
    Exhausted,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PacelineError,
    RetryableError,
    Unavailable,
)
from paceline.pairing import fits
from paceline.records import Advance, ModelIdentity, Proposal, SessionSpec
from paceline.v1 import draft_pb2

_METHOD = "/paceline.v1.DraftService/Draft"
_FIRST_RETRY_S, _LAST_RETRY_S = 0.1, 5.0
# The caller asked for what cannot be had; said by the first replica that is asked, it is the
# generation's error. Later it can only be a replica that changed, and the target goes on alone.
_CALLERS_FAULT = (FailedPrecondition, NotFound, InvalidArgument)


@dataclass(frozen=True, slots=True)
class DraftChoice:
    """Which draft a generation wants."""

    source: str
    """Name of the source; empty takes the default, "none" goes without."""
    target: ModelIdentity
    stall_s: float
    """Wait for a proposal before the replica counts as lost. It must be generous: whether a late
    block is dropped may not depend on what was drafted."""
    deadline_s: float | None = None
    """Event loop time at which the caller gives up."""
    traceparent: str = ""
    """Context of the generation's span; empty where it is not traced."""


class DrafterSession:
    """The `Drafter` of one generation."""

    def __init__(self, replicas: Replicas[Sources], spec: SessionSpec, choice: DraftChoice) -> None:
        self._replicas = replicas
        self._spec = spec
        self._choice = choice
        self._token_ids = list(spec.token_ids)
        self._num_sent = 0
        """How many of the ids the replica has."""
        self._stream: Stream | None = None
        self._awaited: tuple[Advance, asyncio.Future[Proposal | None]] | None = None
        self._is_open = False
        """Whether the replica has answered on this stream."""
        self._max_draft_tokens = 0
        self._max_length = 0
        """Longest sequence, in tokens, that the draft continues; 0 until its replica answers."""
        self._absence = "opening"
        """Why there is no stream, as the name of a fallback's cause."""
        self._num_closed_bytes = 0
        self.replica: Replica[Sources] | None = None
        self.source = ""
        """Name of the source in use, once a session was open."""
        self.fallbacks: Counter[str] = Counter()
        """Rounds that asked for draft tokens and got none, by cause."""
        self.num_stale = 0
        """Proposals that nobody waited for any more."""
        self._has_retired = False
        """Whether the generation has outgrown the draft's context."""
        has_draft = bool(replicas.targets) and choice.source != NO_DRAFT
        self._task = asyncio.create_task(self._run()) if has_draft else None

    @property
    def num_bytes(self) -> int:
        """Bytes of all messages of all streams, both ways."""
        return self._num_closed_bytes + (self._stream.num_bytes if self._stream else 0)

    async def propose(self, advance: Advance) -> Proposal:
        """A proposal, or an empty one with its cause counted.

        Raises:
            PacelineError: draft and target do not fit, or the source does not exist.
        """
        self._token_ids += advance.new_token_ids
        nothing = Proposal(advance.round, advance.committed_length)
        if self._is_open and advance.committed_length >= self._max_length:
            self._retire()
        if self._task is None:
            if self._has_retired and advance.num_draft_tokens:
                self.fallbacks["draft_context"] += 1
            return nothing
        proposal = await self._ask(advance)
        if self._task.done() and not self._task.cancelled():
            self._task.result()
        if proposal is not None and proposal.token_ids:
            return proposal
        if advance.num_draft_tokens:
            self.fallbacks[self._absence if proposal is None else "empty"] += 1
        return nothing

    def give_up(self, cause: str) -> None:
        """Ends the session for good; this round and those that follow fall back for this cause."""
        self.close()
        self._absence = cause
        self.fallbacks[cause] += 1

    def close(self) -> None:
        """Ends the session on its replica, at once."""
        self._forget_stream()
        if self._task is not None:
            self._task.cancel()
            if self._task.done() and not self._task.cancelled():
                self._task.exception()  # told through `propose`, or no longer of interest

    def _retire(self) -> None:
        """Ends the session for good: the draft can say nothing more, and need not be asked."""
        self.close()
        self._task, self._has_retired = None, True

    async def _ask(self, advance: Advance) -> Proposal | None:
        """The answer to an advance; None without one, for the reason in `_absence`."""
        stream = self._stream
        if stream is None:
            return None
        try:
            async with asyncio.timeout(self._choice.stall_s):
                answer = await self._send(stream, advance)
                if answer is None:
                    return Proposal(advance.round, advance.committed_length)
                return await answer
        except TimeoutError:
            self._absence = "stalled"
            stream.cancel()
        except PacelineError as error:
            self._absence = _cause(error)
        return None

    async def _send(
        self, stream: Stream, advance: Advance
    ) -> asyncio.Future[Proposal | None] | None:
        """Sends an advance; gives what its answer will arrive in, if there will be one."""
        num_draft_tokens = advance.num_draft_tokens
        if self._is_open:
            num_draft_tokens = min(num_draft_tokens, self._max_draft_tokens)
        new_token_ids = tuple(self._token_ids[self._num_sent :])
        self._num_sent = len(self._token_ids)
        advance = Advance(advance.round, advance.committed_length, new_token_ids, num_draft_tokens)
        answer: asyncio.Future[Proposal | None] | None = None
        if num_draft_tokens:  # else it keeps the draft warm and is not answered
            answer = asyncio.get_running_loop().create_future()
            self._awaited = advance, answer
        await stream.write(draft_pb2.DraftRequest(advance=wire.encode_advance(advance)))
        return answer

    async def _run(self) -> None:
        """Opens the session, reads until it ends, and opens it again."""
        was_open = False
        delay_s = _FIRST_RETRY_S
        while True:
            error = await self._serve()
            if self._is_open:
                was_open, delay_s = True, _FIRST_RETRY_S
            self._absence = _cause(error)
            self._forget_stream()
            if not was_open and isinstance(error, _CALLERS_FAULT):
                raise for_caller(error)
            # A replica that was refused or lost says when to come back; it is not hurried.
            retry_after_s = error.retry_after_s if isinstance(error, RetryableError) else 0.0
            await asyncio.sleep(max(delay_s * random.uniform(0.5, 1.0), retry_after_s))
            delay_s = min(2 * delay_s, _LAST_RETRY_S)

    async def _serve(self) -> PacelineError:
        """One session on one replica, from Open to its end; gives the reason of the end."""
        try:
            stream = await self._open()
            while True:
                self._take(await stream.read(draft_pb2.DraftResponse))
        except PacelineError as error:
            return error

    async def _open(self) -> Stream:
        replica = self._replicas.pick(self._serves, avoided=self._last_address())
        if replica is None:
            raise Unavailable("no replica is ready", reason="NO_DRAFT", retry_after_s=0.0)
        self.replica = replica
        replica.count_session()
        stream = Stream(
            replica.channel,
            _METHOD,
            timeout_s=self._remaining_s(),
            request_id=self._spec.request_id,
            traceparent=self._choice.traceparent,
        )
        session = dataclasses.replace(self._spec, token_ids=tuple(self._token_ids))
        self._num_sent = len(self._token_ids)
        opening = draft_pb2.DraftOpen(
            session=wire.encode_session(session),
            source=self._choice.source,
            target=wire.encode_identity(self._choice.target),
        )
        try:
            await stream.write(draft_pb2.DraftRequest(open=opening))
        except BaseException:  # the generation may end meanwhile, and knows no such stream
            stream.cancel()
            raise
        self._stream = stream
        return stream

    def _take(self, response: draft_pb2.DraftResponse) -> None:
        """Takes in one message of the replica."""
        if response.HasField("opened"):
            opened = wire.decode_opened(response.opened)
            self._is_open, self._max_draft_tokens = True, opened.max_draft_tokens
            self._max_length = opened.max_length
            self.source = opened.source
        elif response.HasField("proposal"):
            self._deliver(wire.decode_proposal(response.proposal))
        else:
            self.num_stale += 1  # a table that this build does not ask for

    def _deliver(self, proposal: Proposal) -> None:
        """Hands a proposal to the round that waits for it, or drops it."""
        if self._awaited is None:
            self.num_stale += 1
            return
        advance, answer = self._awaited
        if (proposal.round, proposal.base_length) != (advance.round, advance.committed_length):
            self.num_stale += 1
            return
        vocabulary_size = self._choice.target.vocabulary_size
        if (
            len(proposal.token_ids) > advance.num_draft_tokens
            or max(proposal.token_ids, default=0) >= vocabulary_size
        ):
            # The target would refuse it, and that would end the generation.
            raise Unavailable("a proposal breaks the protocol", reason="PEER_FAILED")
        self._awaited = None
        if not answer.done():
            answer.set_result(proposal)

    def _forget_stream(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
            self._num_closed_bytes += self._stream.num_bytes
        if self._awaited is not None and not self._awaited[1].done():
            self._awaited[1].set_result(None)
        self._stream, self._awaited, self._is_open = None, None, False

    def _serves(self, sources: Sources) -> bool:
        source = find_source(sources, self._choice.source)
        return source is not None and fits(source.model, self._choice.target, self._spec.rule)

    def _last_address(self) -> tuple[str, ...]:
        return (self.replica.address,) if self.replica else ()

    def _remaining_s(self) -> float | None:
        if self._choice.deadline_s is None:
            return None
        return max(0.0, self._choice.deadline_s - asyncio.get_running_loop().time())


def _cause(error: PacelineError) -> str:
    """The name under which rounds without this draft are counted."""
    if error.reason == "NO_DRAFT":
        return "no_replica"
    if error.reason == "CLOSED":  # by ourselves, while the session goes on
        return "stalled"
    if error.reason in ("LOADING", "DRAINING") or isinstance(error, Exhausted):
        return "refused"
    return "lost"
