"""What callers see of a service: through real gRPC on loopback, bytes in and statuses out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random
from typing import Any

import grpc
import pytest
import structlog
from google.protobuf.wrappers_pb2 import StringValue
from structlog.testing import capture_logs

from paceline.errors import (
    Aborted,
    DeadlineExceeded,
    Exhausted,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PacelineError,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from paceline.serving.endpoints import Context, Endpoint, Gate, Handler, Shape
from paceline.serving.statuses import CODES, error_of

Connect = Callable[..., Awaitable[grpc.aio.Channel]]
BAD_UTF8 = b"\x0a\x02\xff\xfe"
TRUNCATED = b"\x0a\x05ab"


async def echo(request: StringValue, context: Context) -> StringValue:
    """Answers a message with itself."""
    return request


async def repeat(request: StringValue, context: Context) -> AsyncIterator[StringValue]:
    """Answers twice."""
    yield request
    yield request


async def echo_each(
    requests: AsyncIterator[StringValue], context: Context
) -> AsyncIterator[StringValue]:
    """Answers each message with itself."""
    async for request in requests:
        yield request


EVERY_SHAPE: list[tuple[Shape, Handler]] = [
    (Shape.UNARY, echo),
    (Shape.SERVER_STREAM, repeat),
    (Shape.BIDI, echo_each),
]
shapes = pytest.mark.parametrize(
    ("shape", "handler"), EVERY_SHAPE, ids=[shape.name for shape, _ in EVERY_SHAPE]
)


def raising(shape: Shape, error: BaseException) -> Handler:
    """A handler that raises at once."""

    async def unary(request: Any, context: Context) -> StringValue:
        raise error

    async def stream(request: Any, context: Context) -> AsyncIterator[StringValue]:
        raise error
        yield StringValue()  # makes it a generator

    return unary if shape is Shape.UNARY else stream


def open_unary(channel: grpc.aio.Channel) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
    """`Do` as bytes, a message each way."""
    return channel.unary_unary("/test.Service/Do")


def open_server_stream(
    channel: grpc.aio.Channel,
) -> grpc.aio.UnaryStreamMultiCallable[bytes, bytes]:
    """`Do` as bytes, many answers."""
    return channel.unary_stream("/test.Service/Do")


def open_bidi(channel: grpc.aio.Channel) -> grpc.aio.StreamStreamMultiCallable[bytes, bytes]:
    """`Do` as bytes, many messages each way."""
    return channel.stream_stream("/test.Service/Do")


async def call(channel: grpc.aio.Channel, shape: Shape, *sent: bytes, **options: Any) -> list[str]:
    """Calls `Do` with messages as bytes; the texts that came back."""
    received: list[bytes] = []
    match shape:
        case Shape.UNARY:
            received.append(await open_unary(channel)(*sent, **options))
        case Shape.SERVER_STREAM:
            async for data in open_server_stream(channel)(*sent, **options):
                received.append(data)
        case Shape.BIDI:
            async for data in open_bidi(channel)(iter(sent), **options):
                received.append(data)
    return [StringValue.FromString(data).value for data in received]


async def refusal(
    channel: grpc.aio.Channel, shape: Shape, *sent: bytes, **options: Any
) -> tuple[grpc.StatusCode, PacelineError]:
    """The status that a call ended with, as code and error.

    A stream without messages stays open: grpc puts an INTERNAL of its own in the place of a status
    that a write or a half-close meets.
    """
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        if shape is Shape.BIDI:
            stream = open_bidi(channel)(**options)
            for data in sent:
                await stream.write(data)
            await stream.read()
        else:
            await call(channel, shape, *(sent or (b"",)), **options)
    return caught.value.code(), error_of(caught.value)


def text(value: str) -> bytes:
    """A message."""
    return StringValue(value=value).SerializeToString()


@shapes
async def test_messages_pass(connect: Connect, shape: Shape, handler: Handler) -> None:
    """Each shape answers in order."""
    channel = await connect(Endpoint("Do", shape, StringValue, handler))
    sent = [text("a"), text("b")] if shape is Shape.BIDI else [text("a")]
    expected = {Shape.UNARY: ["a"], Shape.SERVER_STREAM: ["a", "a"], Shape.BIDI: ["a", "b"]}
    assert expected[shape] == await call(channel, shape, *sent)


@pytest.mark.parametrize("data", [BAD_UTF8, TRUNCATED], ids=["utf8", "truncated"])
@shapes
async def test_malformed_bytes_are_the_callers_fault(
    connect: Connect, shape: Shape, handler: Handler, data: bytes
) -> None:
    """Bytes that cannot be parsed are INVALID_ARGUMENT naming the message, not UNKNOWN."""
    channel = await connect(Endpoint("Do", shape, StringValue, handler))
    code, error = await refusal(channel, shape, data)
    assert (grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_MESSAGE") == (code, error.reason)
    assert isinstance(error, InvalidArgument)
    assert "google.protobuf.StringValue" == error.field


@shapes
async def test_a_large_message_is_refused_with_the_limit(
    connect: Connect, shape: Shape, handler: Handler
) -> None:
    """20 MB against 16 MiB: the refusal names both, and is not gRPC's empty one."""
    channel = await connect(Endpoint("Do", shape, StringValue, handler))
    data = text("x" * 20_000_000)
    code, error = await refusal(channel, shape, data)
    assert (grpc.StatusCode.INVALID_ARGUMENT, "MESSAGE_TOO_LARGE") == (code, error.reason)
    assert {"size_bytes": str(len(data)), "limit_bytes": "16777216"} == error.metadata


async def test_the_limit_itself_is_allowed(connect: Connect) -> None:
    """The limit is the largest message that passes."""
    endpoint = Endpoint("Do", Shape.UNARY, StringValue, echo)
    channel = await connect(endpoint, limit_bytes=len(text("abc")))
    assert ["abc"] == await call(channel, Shape.UNARY, text("abc"))
    assert "MESSAGE_TOO_LARGE" == (await refusal(channel, Shape.UNARY, text("abcd")))[1].reason


async def test_a_stream_keeps_what_came_before_a_bad_message(connect: Connect) -> None:
    """Answers to the good messages arrive, then the refusal."""
    channel = await connect(Endpoint("Do", Shape.BIDI, StringValue, echo_each))
    stream = open_bidi(channel)()
    await stream.write(text("good"))
    assert text("good") == await stream.read()
    await stream.write(BAD_UTF8)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.read()
    assert grpc.StatusCode.INVALID_ARGUMENT is caught.value.code()


@pytest.mark.parametrize(
    "error",
    [
        InvalidArgument("top_p", "must be in (0, 1]"),
        Unauthenticated("who?"),
        PermissionDenied("no"),
        FailedPrecondition("another tokenizer"),
        NotFound("no such model"),
        Exhausted("full", retry_after_s=0.5),
        Unavailable("lost"),
        Aborted("round out of order"),
        Unimplemented("lookahead"),
        DeadlineExceeded("too late"),
    ],
    ids=lambda error: type(error).__name__,
)
@shapes
async def test_expected_failures_have_their_status(
    connect: Connect, shape: Shape, handler: Handler, error: PacelineError
) -> None:
    """B120: each error of ours arrives with its code and details, and is no line of the log."""
    channel = await connect(Endpoint("Do", shape, StringValue, raising(shape, error)))
    with capture_logs() as lines:
        code, seen = await refusal(channel, shape)
    assert CODES[type(error)] is code
    assert (type(error), vars(error)) == (type(seen), vars(seen))
    assert lines == []


@shapes
async def test_a_bug_is_internal_and_shows_no_insides(
    connect: Connect, shape: Shape, handler: Handler
) -> None:
    """B120: the caller gets the request id under which the log has the trace, nothing else."""
    bug = KeyError("secret detail")
    channel = await connect(Endpoint("Do", shape, StringValue, raising(shape, bug)))
    with capture_logs() as lines:
        code, seen = await refusal(channel, shape, metadata=[("x-request-id", "r-7")])
    assert grpc.StatusCode.INTERNAL is code
    assert "INTERNAL: internal error, logged under request id r-7" == seen.message
    assert {"request_id": "r-7"} == seen.metadata
    assert [("call_failed", "error", bug)] == [
        (line["event"], line["log_level"], line["exc_info"]) for line in lines
    ]


async def test_a_bug_while_ending_is_logged(connect: Connect) -> None:
    """B120: what a `finally` raises is not swallowed by the refusal before it."""

    async def fails_twice(request: StringValue, context: Context) -> StringValue:
        try:
            raise NotFound("first")
        finally:
            raise RuntimeError("second")

    channel = await connect(Endpoint("Do", Shape.UNARY, StringValue, fails_twice))
    with capture_logs() as lines:
        code, _ = await refusal(channel, Shape.UNARY)
    assert grpc.StatusCode.INTERNAL is code
    assert ["second"] == [str(line["exc_info"]) for line in lines]


async def test_a_wrong_answer_is_a_bug(connect: Connect) -> None:
    """A response that is no message is ours to log, not gRPC's UNKNOWN."""

    async def wrong(request: StringValue, context: Context) -> str:
        return "text"

    channel = await connect(Endpoint("Do", Shape.UNARY, StringValue, wrong))
    with capture_logs() as lines:
        code, _ = await refusal(channel, Shape.UNARY)
    assert grpc.StatusCode.INTERNAL is code
    assert ["call_failed"] == [line["event"] for line in lines]


async def test_grpcs_own_abort_passes(connect: Connect) -> None:
    """A handler that chose a status through grpc keeps it."""

    async def aborts(request: StringValue, context: Context) -> StringValue:
        await context.abort(grpc.StatusCode.DATA_LOSS, "chosen")

    channel = await connect(Endpoint("Do", Shape.UNARY, StringValue, aborts))
    with capture_logs() as lines:
        code, _ = await refusal(channel, Shape.UNARY)
    assert grpc.StatusCode.DATA_LOSS is code
    assert lines == []


@shapes
async def test_a_callers_cancel_reaches_the_handler(
    connect: Connect, shape: Shape, handler: Handler
) -> None:
    """B111, B112: the handler is cancelled where it waits; `finally` runs, no line is logged."""
    started, ended = asyncio.Event(), asyncio.Event()

    async def wait(request: Any, context: Context) -> StringValue:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return StringValue()

    async def wait_stream(request: Any, context: Context) -> AsyncIterator[StringValue]:
        yield await wait(request, context)

    waiting = wait if shape is Shape.UNARY else wait_stream
    channel = await connect(Endpoint("Do", shape, StringValue, waiting))
    with capture_logs() as lines:
        calling = asyncio.ensure_future(call(channel, shape, b""))
        await started.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await ended.wait()
    assert lines == []


async def test_a_cancel_ends_a_handler_that_writes(connect: Connect) -> None:
    """B111: a handler that yields for ever to a caller that stopped reading ends with the call."""
    ended = asyncio.Event()
    num_yielded = 0

    async def flood(request: StringValue, context: Context) -> AsyncIterator[StringValue]:
        nonlocal num_yielded
        try:
            while True:
                num_yielded += 1
                yield StringValue(value="x" * 65_536)
        finally:
            ended.set()

    channel = await connect(Endpoint("Do", Shape.SERVER_STREAM, StringValue, flood))
    with capture_logs() as lines:
        stream = open_server_stream(channel)(b"")
        await stream.read()
        stream.cancel()
        await ended.wait()
    assert num_yielded < 1000  # flow control: the caller read one
    assert lines == []


async def test_no_handler_outlives_its_call(connect: Connect) -> None:
    """B111: after 200 streams cancelled at random moments no handler and no log line is left."""
    random = Random(11)
    num_open = 0
    changed = asyncio.Condition()

    async def counted(
        requests: AsyncIterator[StringValue], context: Context
    ) -> AsyncIterator[StringValue]:
        nonlocal num_open
        num_open += 1
        try:
            async for request in requests:
                yield request
        finally:
            async with changed:
                num_open -= 1
                changed.notify_all()

    async def talk(stream: grpc.aio.StreamStreamCall[bytes, bytes]) -> None:
        while True:
            await stream.write(text("a"))
            await stream.read()

    async def cut_short(channel: grpc.aio.Channel) -> None:
        stream = open_bidi(channel)()
        talking = asyncio.ensure_future(talk(stream))
        for _ in range(random.randrange(60)):
            await asyncio.sleep(0)
        stream.cancel()
        talking.cancel()
        with contextlib.suppress(asyncio.CancelledError, grpc.aio.UsageError):
            await talking

    channel = await connect(Endpoint("Do", Shape.BIDI, StringValue, counted))
    with capture_logs() as lines:
        for _ in range(20):
            await asyncio.gather(*(cut_short(channel) for _ in range(10)))
        async with changed:
            await changed.wait_for(lambda: num_open == 0)
    assert lines == []


async def test_a_lost_call_is_no_bug(connect: Connect) -> None:
    """B112: where a cancel races with a write, grpc reports the write; that is no failure of ours.

    The race itself cannot be arranged, so its exception is raised as grpc raises it.
    """
    lost = grpc.aio.InternalError('Failed "execute_batch"')
    channel = await connect(Endpoint("Do", Shape.UNARY, StringValue, raising(Shape.UNARY, lost)))
    with capture_logs() as lines:
        code, error = await refusal(channel, Shape.UNARY)
    assert (grpc.StatusCode.UNAVAILABLE, "CALL_LOST") == (code, error.reason)
    assert lines == []


async def test_a_cancel_inside_the_server_is_a_status(connect: Connect) -> None:
    """B110: a task of the handler that is cancelled does not leave the caller hanging."""

    async def interrupted(request: StringValue, context: Context) -> StringValue:
        inner = asyncio.ensure_future(asyncio.Event().wait())
        inner.cancel()
        await inner
        return request

    channel = await connect(Endpoint("Do", Shape.UNARY, StringValue, interrupted))
    code, error = await refusal(channel, Shape.UNARY)
    assert (grpc.StatusCode.UNAVAILABLE, "INTERRUPTED") == (code, error.reason)


@shapes
async def test_the_deadline_is_visible(connect: Connect, shape: Shape, handler: Handler) -> None:
    """B109: a handler sees the time that is left, and None where there is no deadline."""
    seen: list[float | None] = []

    async def look(request: Any, context: Context) -> StringValue:
        seen.append(context.time_remaining())
        return StringValue()

    async def look_stream(request: Any, context: Context) -> AsyncIterator[StringValue]:
        if shape is Shape.BIDI:  # else the call might end before its caller has written all
            async for _ in request:
                pass
        yield await look(request, context)

    looking = look if shape is Shape.UNARY else look_stream
    channel = await connect(Endpoint("Do", shape, StringValue, looking))
    await call(channel, shape, b"", timeout=100)
    await call(channel, shape, b"")
    assert seen[0] is not None
    assert 0 < seen[0] <= 101  # gRPC rounds the time that it sends up
    assert seen[1] is None


async def test_a_deadline_cancels_the_handler(connect: Connect) -> None:
    """The work of a call whose time is up ends on the server too."""
    ended = asyncio.Event()

    async def wait(request: StringValue, context: Context) -> StringValue:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return request

    channel = await connect(Endpoint("Do", Shape.UNARY, StringValue, wait))
    await channel.channel_ready()
    with capture_logs() as lines:
        code, error = await refusal(channel, Shape.UNARY, timeout=1)
        await ended.wait()
    assert grpc.StatusCode.DEADLINE_EXCEEDED is code
    assert isinstance(error, DeadlineExceeded)
    assert lines == []


@shapes
async def test_the_gate(connect: Connect, shape: Shape, handler: Handler) -> None:
    """Refused while loading, served, refused while draining: each refusal says when to retry."""
    gate = Gate()
    channel = await connect(Endpoint("Do", shape, StringValue, handler), gate=gate)
    seen = [(await refusal(channel, shape))[1]]
    gate.open()
    assert "a" in await call(channel, shape, text("a"))
    gate.close()
    seen.append((await refusal(channel, shape))[1])
    assert ["LOADING", "DRAINING"] == [error.reason for error in seen]
    for error in seen:
        assert isinstance(error, Unavailable)
        assert error.retry_after_s > 0


async def test_an_open_stream_outlives_the_gate(connect: Connect) -> None:
    """Draining refuses new calls only."""
    gate = Gate()
    gate.open()
    channel = await connect(Endpoint("Do", Shape.BIDI, StringValue, echo_each), gate=gate)
    stream = open_bidi(channel)()
    await stream.write(text("a"))
    assert text("a") == await stream.read()
    gate.close()
    await stream.write(text("b"))
    assert text("b") == await stream.read()
    await stream.done_writing()
    assert grpc.StatusCode.OK is await stream.code()


async def test_a_reader_of_its_own_sees_the_messages_and_the_end(connect: Connect) -> None:
    """A handler may read in one task and answer in another; half-close ends the reading."""

    async def two_tasks(
        requests: AsyncIterator[StringValue], context: Context
    ) -> AsyncIterator[StringValue]:
        queue: asyncio.Queue[StringValue | None] = asyncio.Queue()

        async def read() -> None:
            async for request in requests:
                queue.put_nowait(request)
            queue.put_nowait(None)

        reader = asyncio.ensure_future(read())
        while (request := await queue.get()) is not None:
            yield request
        await reader

    channel = await connect(Endpoint("Do", Shape.BIDI, StringValue, two_tasks))
    assert ["a", "b", "c"] == await call(channel, Shape.BIDI, text("a"), text("b"), text("c"))


async def test_the_calls_name_is_on_its_lines(connect: Connect) -> None:
    """What a handler logs carries the RPC and the caller's request id, cut; or one made here."""
    seen: list[dict[str, Any]] = []

    async def look(request: StringValue, context: Context) -> StringValue:
        seen.append(structlog.contextvars.get_contextvars())
        return request

    channel = await connect(Endpoint("Do", Shape.UNARY, StringValue, look))
    await call(channel, Shape.UNARY, b"", metadata=[("x-request-id", "r" * 1000)])
    await call(channel, Shape.UNARY, b"")
    await call(channel, Shape.UNARY, b"")
    assert {"rpc": "Do", "request_id": "r" * 128} == seen[0]
    assert "Do" == seen[1]["rpc"]
    assert seen[1]["request_id"] != seen[2]["request_id"]


async def test_an_unknown_method_is_unimplemented(connect: Connect) -> None:
    """A method of a later protocol is told apart from a failure."""
    channel = await connect(Endpoint("Other", Shape.UNARY, StringValue, echo))
    code, error = await refusal(channel, Shape.UNARY)
    assert grpc.StatusCode.UNIMPLEMENTED is code
    assert isinstance(error, Unimplemented)
