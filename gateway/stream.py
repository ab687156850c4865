"""One bidirectional call as messages: counts its bytes and turns failures into our errors.

It does not know what the messages mean.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from paceline.errors import PacelineError, Unavailable
from paceline.serving.statuses import error_of

MessageT = TypeVar("MessageT", bound=Message)


class Stream:
    """A stream to a replica. Its end is the end of the session behind it."""

    def __init__(
        self, channel: grpc.aio.Channel, method: str, *, timeout_s: float | None, request_id: str
    ) -> None:
        # Bytes in and out: messages are (de)serialized here, where they can be counted.
        start: Any = channel.stream_stream(method)
        self._call = start(timeout=timeout_s, metadata=(("x-request-id", request_id),))
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
        except asyncio.InvalidStateError:
            raise await self._ending() from None
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from None
        except asyncio.CancelledError:
            raise self._unless_own_task() from None

    async def read(self, message_type: type[MessageT]) -> MessageT:
        """Receives the next message.

        Raises:
            PacelineError: the stream has ended, with the reason of its end.
        """
        data = await self._receive()
        self.num_bytes += len(data)
        try:
            return message_type.FromString(data)
        except DecodeError as error:
            raise Unavailable(f"a malformed answer: {error}", reason="PEER_FAILED") from None

    def cancel(self) -> None:
        """Ends the call now; whoever reads or writes it is told so."""
        self._call.cancel()

    async def _receive(self) -> bytes:
        try:
            data = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from None
        except asyncio.CancelledError:
            raise self._unless_own_task() from None
        if data is grpc.aio.EOF:
            raise Unavailable("the replica ended the stream", reason="STREAM_ENDED")
        return bytes(data)

    async def _ending(self) -> PacelineError:
        """Why the call ended, after it has."""
        try:
            await self._receive()  # raises the status of a call that has ended
        except PacelineError as error:
            return error
        return Unavailable("the stream cannot be written", reason="PEER_FAILED")

    @staticmethod
    def _unless_own_task() -> BaseException:
        """A cancelled call raises as if the task had been cancelled; tells the two apart."""
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            return asyncio.CancelledError()
        return Unavailable("the stream was closed", reason="CLOSED")
