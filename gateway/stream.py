"""One bidirectional call as messages: counts its bytes and turns failures into our errors.

It does not know what the messages mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from paceline.errors import PacelineError, Unavailable
from paceline.serving.statuses import error_of
from paceline.serving.tracing import TRACEPARENT_KEY

MessageT = TypeVar("MessageT", bound=Message)
ValueT = TypeVar("ValueT")


class Stream:
    """A stream to a replica. Its end is the end of the session behind it."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        method: str,
        *,
        timeout_s: float | None,
        request_id: str,
        traceparent: str = "",
    ) -> None:
        # Bytes in and out: messages are (de)serialized here, where they can be counted.
        start: Any = channel.stream_stream(method)
        metadata = [("x-request-id", request_id)]
        if traceparent:
            metadata.append((TRACEPARENT_KEY, traceparent))
        self._call = start(timeout=timeout_s, metadata=tuple(metadata))
        self._call.add_done_callback(self._note_end)
        self._end: grpc.aio.AioRpcError | None = None
        self.num_bytes = 0
        """Bytes of all messages, both ways."""

    async def write(self, message: Message) -> None:
        """Sends one message.

        Raises:
            PacelineError: the stream has ended, with the reason of its end.
        """
        data = message.SerializeToString()
        self.num_bytes += len(data)
        try:
            await self._call.write(data)
        except (asyncio.InvalidStateError, grpc.aio.AioRpcError) as error:
            raise self._reason(error) from None
        except asyncio.CancelledError:
            raise self._unless_own_task() from None

    async def read(self, message_type: type[MessageT]) -> MessageT:
        """Receives the next message.

        Raises:
            PacelineError: the stream has ended, with the reason of its end.
        """
        try:
            data = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise self._reason(error) from None
        except asyncio.CancelledError:
            raise self._unless_own_task() from None
        if data is grpc.aio.EOF:
            raise Unavailable("the replica ended the stream", reason="STREAM_ENDED")
        self.num_bytes += len(data)
        try:
            return message_type.FromString(data)
        except DecodeError as error:
            raise Unavailable(f"a malformed answer: {error}", reason="PEER_FAILED") from None

    def cancel(self) -> None:
        """Ends the call now; whoever reads or writes it is told so."""
        self._call.cancel()

    def _note_end(self, call: Any) -> None:
        # A write that meets the end of its call puts an INTERNAL of the library's own over the
        # status that the replica sent. This is called first, while the true one is still there.
        if self._end is None:
            trailers = _value_of(call.trailing_metadata())
            code, details = _value_of(call.code()), _value_of(call.details())
            known = code or grpc.StatusCode.UNKNOWN
            self._end = grpc.aio.AioRpcError(known, grpc.aio.Metadata(), trailers, details)

    def _reason(self, error: Exception) -> PacelineError:
        """Why the call ended, from its true status where that is known."""
        end = self._end or error
        if not isinstance(end, grpc.aio.AioRpcError) or end.code() is grpc.StatusCode.OK:
            return Unavailable("the replica ended the stream", reason="STREAM_ENDED")
        return error_of(end)

    @staticmethod
    def _unless_own_task() -> BaseException:
        """A cancelled call raises as if the task had been cancelled; tells the two apart."""
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            return asyncio.CancelledError()
        return Unavailable("the stream was closed", reason="CLOSED")


def _value_of(ready: Coroutine[Any, Any, ValueT]) -> ValueT | None:
    """The result of a coroutine that has nothing to wait for; None if it has after all."""
    try:
        ready.send(None)
    except StopIteration as done:
        value: ValueT = done.value
        return value
    ready.close()
    return None
