"""The one wrapper between gRPC and a service's handlers: parsing, refusing, naming failures.

Handlers take messages and raise `PacelineError`; bytes, statuses and trailers end here. What a
message means, and whether the server is loading or draining, is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, cast

import grpc
import structlog
from google.protobuf.message import DecodeError, Message
from google.rpc import status_pb2
from grpc_status import rpc_status

from paceline.errors import InvalidArgument, PacelineError, Unavailable
from paceline.serving.logging import bind_call
from paceline.serving.statuses import internal_status, status_of

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = Callable[[Any, Context], Any]

OnRefusal: TypeAlias = Callable[[str, str], None]
"""Called with the RPC's name and the error's reason where a call ends with an error."""

DEFAULT_LIMIT_BYTES = 16 * 1024 * 1024
_log = structlog.get_logger(__name__)


class Shape(enum.Enum):
    """Which side of a call is a stream."""

    UNARY = "unary"
    SERVER_STREAM = "server stream"
    BIDI = "bidi"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One RPC of a service, by its shape.

    The handler is called with grpc's context, which knows the caller's deadline:
    `context.time_remaining()` is None where none was set.

    - UNARY: `async (request, context) -> response`.
    - SERVER_STREAM: an async generator function `(request, context) -> AsyncIterator[response]`.
    - BIDI: the same with `requests: AsyncIterator[Message]`, which raises `InvalidArgument` at a
      message that cannot be parsed; a handler that reads in a task of its own hands that on.

    A call that ends early, for any cause, cancels the handler where it waits.
    """

    name: str
    shape: Shape
    request_type: type[Message]
    handler: Handler


class Gate:
    """Whether new calls are let in. Calls that are in are not its business."""

    def __init__(self) -> None:
        self._refusal: tuple[str, str] | None = ("LOADING", "the model is still loading")

    def open(self) -> None:
        """Lets calls in."""
        self._refusal = None

    def close(self) -> None:
        """Refuses calls from now on: the server drains."""
        self._refusal = ("DRAINING", "the server is draining; another replica will serve this")

    def check(self) -> None:
        """Lets a call pass.

        Raises:
            Unavailable: the server is loading or draining.
        """
        if self._refusal is not None:
            reason, message = self._refusal
            raise Unavailable(message, reason=reason)


def add_endpoints(
    server: grpc.aio.Server,
    service_name: str,
    endpoints: Iterable[Endpoint],
    gate: Gate,
    limit_bytes: int = DEFAULT_LIMIT_BYTES,
    on_refusal: OnRefusal = lambda rpc, reason: None,
) -> None:
    """Registers a service's endpoints; every message above `limit_bytes` is refused."""
    # No (de)serializers: gRPC answers bytes that it cannot parse with a bare status of its own.
    methods = {
        e.name: _method_handler(e, gate, limit_bytes, partial(on_refusal, e.name))
        for e in endpoints
    }
    handler = grpc.method_handlers_generic_handler(service_name, methods)
    server.add_generic_rpc_handlers((handler,))


def _method_handler(
    endpoint: Endpoint, gate: Gate, limit_bytes: int, refuse: Callable[[str], None]
) -> grpc.RpcMethodHandler[Any, Any]:
    parse = _parser(endpoint.request_type, limit_bytes)

    async def unary(data: bytes, context: Context) -> bytes:
        response: Message = await endpoint.handler(parse(data), context)
        return response.SerializeToString()

    async def server_stream(data: bytes, context: Context) -> None:
        await _write_all(endpoint.handler(parse(data), context), context)

    async def bidi(_: object, context: Context) -> None:
        await _write_all(endpoint.handler(_Requests(context, parse), context), context)

    def guarded(behavior: Callable[[Any, Context], Awaitable[Any]]) -> Any:
        async def call(request: Any, context: Context) -> Any:
            request_id = bind_call(endpoint.name, context.invocation_metadata())
            try:
                gate.check()
                return await behavior(request, context)
            except (Exception, asyncio.CancelledError) as error:
                await _end(error, context, request_id, refuse)

        return call

    match endpoint.shape:
        case Shape.UNARY:
            return grpc.unary_unary_rpc_method_handler(guarded(unary))
        case Shape.SERVER_STREAM:
            return grpc.unary_stream_rpc_method_handler(guarded(server_stream))
        case Shape.BIDI:
            return grpc.stream_stream_rpc_method_handler(guarded(bidi))


def _parser(message_type: type[Message], limit_bytes: int) -> Callable[[bytes], Message]:
    name = message_type.DESCRIPTOR.full_name
    from_string = message_type.FromString

    def parse(data: bytes) -> Message:
        if len(data) > limit_bytes:
            raise InvalidArgument(
                name,
                f"message of {len(data)} bytes is over the limit of {limit_bytes} bytes",
                reason="MESSAGE_TOO_LARGE",
                metadata={"size_bytes": str(len(data)), "limit_bytes": str(limit_bytes)},
            )
        try:
            return from_string(data)
        except DecodeError as error:  # also text that is not UTF-8
            raise InvalidArgument(name, str(error), reason="MALFORMED_MESSAGE") from None

    return parse


class _Requests:
    """The messages of a stream as they arrive. A class, since a generator costs a frame each."""

    __slots__ = ("_parse", "_read")

    def __init__(self, context: Context, parse: Callable[[bytes], Message]) -> None:
        self._read = context.read
        self._parse = parse

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        data = await self._read()
        if data is grpc.aio.EOF:
            raise StopAsyncIteration
        return self._parse(data)


async def _write_all(responses: object, context: Context) -> None:
    """Writes what a handler yields; the handler has finished when this has, however it ends."""
    write = context.write
    async with contextlib.aclosing(cast(AsyncGenerator[Message, None], responses)) as stream:
        async for response in stream:
            await write(response.SerializeToString())


async def _end(
    error: BaseException, context: Context, request_id: str, refuse: Callable[[str], None]
) -> None:
    """Ends a call with the status of what its handler raised."""
    if isinstance(error, asyncio.CancelledError):
        if _is_current_task_cancelled():  # by the caller, a deadline or the server's stop
            raise error
        # A task inside the handler was cancelled. gRPC would send nothing: the caller would hang.
        error = Unavailable("the call was interrupted inside the server", reason="INTERRUPTED")
    if isinstance(error, grpc.aio.InternalError):
        # A message could not be sent or received: the caller left just before grpc noticed.
        error = Unavailable("the call was lost", reason="CALL_LOST")
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, PacelineError):
        refuse(error.reason)
        await _abort(context, status_of(error))
    refuse("INTERNAL")
    _log.error("call_failed", exc_info=error)
    await _abort(context, internal_status(request_id))


def _is_current_task_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _abort(context: Context, status: status_pb2.Status) -> None:
    await context.abort_with_status(rpc_status.to_status(status))
