"""One generation's session on the verify tier, which moves to another replica when one is lost.

Reopening is always the same act: a new stream with the prompt and everything committed, and the
same proposal again. Draws are keyed by place and not by call, so the verdict is the same too. It
does not know where proposals come from or when a generation ends.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from dataclasses import dataclass

from gateway.faults import for_caller
from gateway.replicas import Replica, Replicas
from gateway.stream import Stream
from gateway.tiers import Target
from paceline import wire
from paceline.errors import (
    Aborted,
    Exhausted,
    FailedPrecondition,
    InvalidArgument,
    PacelineError,
    RetryableError,
    Unavailable,
)
from paceline.records import Proposal, SessionSpec, Verdict
from paceline.v1 import verify_pb2

_METHOD = "/paceline.v1.VerifyService/Verify"
# A prompt that kills engines must not walk through the fleet.
_MAX_LOST = 2
_BACKOFF_S = 0.05
_MAX_BACKOFF_S = 2.0


@dataclass(frozen=True, slots=True)
class VerifierBounds:
    """How long a session waits."""

    stall_s: float
    """For a verdict, before the replica counts as lost."""
    patience_s: float
    """For finding a replica that takes the session, from its loss on."""
    deadline_s: float | None = None
    """Event loop time at which the caller gives up."""
    traceparent: str = ""
    """Context of the generation's span; empty where it is not traced."""


class VerifierSession:
    """The `Verifier` of one generation."""

    def __init__(
        self,
        replicas: Replicas[Target],
        spec: SessionSpec,
        target: Target,
        bounds: VerifierBounds,
        home: str = "",
    ) -> None:
        self._replicas = replicas
        self._spec = spec
        self._fingerprint = target.model.fingerprint
        self._bounds = bounds
        self._home = home
        """Address of the replica that is taken first, if it is there."""
        self._token_ids = list(spec.token_ids)
        self._stream: Stream | None = None
        self._is_open = False
        """Whether the replica has answered on this stream."""
        self._round_offset = 0
        """Rounds that were answered on earlier streams; each stream counts from 1."""
        self._num_closed_bytes = 0
        self._num_lost = 0
        self._refused: set[str] = set()
        """Replicas that turned out to serve another model."""
        self.replica: Replica[Target] | None = None
        """Who serves the session now, or did last."""
        self.max_draft_tokens = target.max_draft_tokens
        self.num_reopened = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of all messages of all streams, both ways."""
        return self._num_closed_bytes + (self._stream.num_bytes if self._stream else 0)

    async def verify(self, proposal: Proposal) -> Verdict:
        """The verdict on a proposal, from whichever replica gives it.

        After a refusal of the proposal another one may be sent in its place.

        Raises:
            PacelineError: the proposal or the session is refused for good, or no replica was
                found in time, or two were lost under this generation.
        """
        if self._stream is None and self.replica is not None:
            self.num_reopened += 1  # the last stream ended with a refusal
        try:
            verdict = await self._exchange(proposal)
        except PacelineError as error:
            verdict = await self._reopen(proposal, error)
        self._token_ids += (*proposal.token_ids[: verdict.num_accepted], verdict.next_token_id)
        return verdict

    def close(self) -> None:
        """Ends the session on its replica, at once."""
        if self._stream is not None:
            self._stream.cancel()
            self._num_closed_bytes += self._stream.num_bytes
        self._stream, self._is_open = None, False

    async def _exchange(self, proposal: Proposal) -> Verdict:
        """One round on the stream, which is opened first where there is none."""
        try:
            async with asyncio.timeout(self._bounds.stall_s):
                stream = self._stream or await self._open(proposal.round)
                return await self._round_trip(stream, proposal)
        except TimeoutError:
            raise Unavailable(
                f"no verdict within {self._bounds.stall_s:g} s", reason="PEER_STALLED"
            ) from None

    async def _round_trip(self, stream: Stream, proposal: Proposal) -> Verdict:
        offset = self._round_offset
        if offset:
            proposal = dataclasses.replace(proposal, round=proposal.round - offset)
        await stream.write(verify_pb2.VerifyRequest(proposal=wire.encode_proposal(proposal)))
        response = await stream.read(verify_pb2.VerifyResponse)
        if not self._is_open:
            # Opened comes first, and only then the verdict on the proposal sent right after Open.
            if response.WhichOneof("message") != "opened":
                raise Unavailable("the session was not acknowledged", reason="PEER_FAILED")
            self._is_open = True
            self.max_draft_tokens = response.opened.max_draft_tokens
            response = await stream.read(verify_pb2.VerifyResponse)
        verdict = read_verdict(response, proposal)
        return dataclasses.replace(verdict, round=verdict.round + offset) if offset else verdict

    async def _open(self, first_round: int) -> Stream:
        replica = self._replicas.pick(
            lambda target: target.model.fingerprint == self._fingerprint,
            excluded=self._refused,
            avoided=(self.replica.address,) if self.replica else (),
            preferred=self._home,
        )
        if replica is None:
            raise Unavailable("no replica of the target is ready", reason="NO_TARGET")
        # A session that moves may repeat a round, with the same draws: that is no new evidence.
        is_fresh = self._spec.has_fresh_seed and self.replica is None
        self.replica, self._round_offset = replica, first_round - 1
        replica.count_session()
        self._stream = Stream(
            replica.channel,
            _METHOD,
            timeout_s=self._remaining_s(),
            request_id=self._spec.request_id,
            traceparent=self._bounds.traceparent,
        )
        await self._stream.write(
            verify_pb2.VerifyRequest(
                open=verify_pb2.VerifyOpen(
                    session=wire.encode_session(self._session(is_fresh)),
                    model_fingerprint=self._fingerprint,
                )
            )
        )
        return self._stream

    def _session(self, is_fresh: bool) -> SessionSpec:
        """The session from here on; what was told of the prompt is not asked for again."""
        session = dataclasses.replace(
            self._spec, token_ids=tuple(self._token_ids), has_fresh_seed=is_fresh
        )
        if len(session.token_ids) > len(self._spec.token_ids):
            sampling = dataclasses.replace(session.sampling, num_prompt_log_probs=None)
            session = dataclasses.replace(session, sampling=sampling)
        return session

    async def _reopen(self, proposal: Proposal, error: PacelineError) -> Verdict:
        """Opens the session again and again, as long as the errors are of the kind that passes."""
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + self._bounds.patience_s
        delay_s = _BACKOFF_S
        while True:
            try:
                self._judge(error)
            finally:
                self.close()
            pause_s = delay_s * random.uniform(0.5, 1.0)
            if isinstance(error, Exhausted):
                pause_s += error.retry_after_s
            if loop.time() + pause_s > give_up_s:
                raise for_caller(error)
            await asyncio.sleep(pause_s)
            delay_s = min(2 * delay_s, _MAX_BACKOFF_S)
            try:
                async with self._replicas.reopening:
                    verdict = await self._exchange(proposal)
            except PacelineError as next_error:
                error = next_error
            else:
                self.num_reopened += 1
                return verdict

    def _judge(self, error: PacelineError) -> None:
        """Raises unless another stream may do better."""
        if isinstance(error, FailedPrecondition) and self.replica is not None:
            self._refused.add(self.replica.address)
            if not self._has_another():
                raise error
        elif not isinstance(error, RetryableError | Aborted):
            raise for_caller(error)
        elif self._is_open and not _is_alive(error):
            self._num_lost += 1
            if self._num_lost >= _MAX_LOST:
                raise Unavailable(
                    f"{self._num_lost} replicas were lost under this generation, the last one "
                    f"with: {error.message}",
                    reason="TARGETS_LOST",
                )

    def _has_another(self) -> bool:
        pick = self._replicas.pick
        return (
            pick(lambda t: t.model.fingerprint == self._fingerprint, excluded=self._refused)
            is not None
        )

    def _remaining_s(self) -> float | None:
        if self._bounds.deadline_s is None:
            return None
        return max(0.0, self._bounds.deadline_s - asyncio.get_running_loop().time())


def read_verdict(response: verify_pb2.VerifyResponse, proposal: Proposal) -> Verdict:
    """The verdict on a proposal.

    Raises:
        Unavailable: the answer is none. That is the replica's fault, and another may do better.
    """
    try:
        verdict = wire.decode_verdict(response.verdict)
    except InvalidArgument as error:
        raise Unavailable(f"no verdict: {error.message}", reason="PEER_FAILED") from None
    num_draft_tokens = len(proposal.token_ids)
    committed_length = proposal.base_length + verdict.num_accepted + 1
    if (
        verdict.round != proposal.round
        or not 0 <= verdict.num_accepted <= num_draft_tokens
        or verdict.committed_length != committed_length
        or len(verdict.log_probs) not in (0, verdict.num_accepted + 1)
    ):
        raise Unavailable(
            f"round {proposal.round} with {num_draft_tokens} draft tokens on {proposal.base_length}"
            f" was answered for round {verdict.round} with {verdict.num_accepted} accepted, a"
            f" committed length of {verdict.committed_length} and {len(verdict.log_probs)}"
            " log-probabilities",
            reason="PEER_FAILED",
        )
    return verdict


def _is_alive(error: PacelineError) -> bool:
    """Whether the replica that ended the session did so in good health."""
    return isinstance(error, Exhausted) or error.reason == "SESSION_IDLE"
