"""A stream to a replica: what its end says, however it is met."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest

from gateway.stream import Stream
from paceline.errors import FailedPrecondition, PacelineError, Unavailable
from paceline.serving.channels import open_channel
from paceline.serving.endpoints import Endpoint, Gate, Shape, add_endpoints
from paceline.v1 import verify_pb2

Handler = Callable[[AsyncIterator[Any], Any], AsyncIterator[Any]]
REQUEST = verify_pb2.VerifyRequest(proposal=verify_pb2.VerifyRequest().proposal)
RESPONSE = verify_pb2.VerifyResponse(opened=verify_pb2.VerifyOpened(max_length=5))


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[Handler], Awaitable[Stream]]]:
    """Opens streams to handlers on real servers."""
    running: list[tuple[grpc.aio.Server, grpc.aio.Channel]] = []

    async def _connect(handler: Handler) -> Stream:
        server = grpc.aio.server()
        gate = Gate()
        gate.open()
        endpoint = Endpoint("Method", Shape.BIDI, verify_pb2.VerifyRequest, handler)
        add_endpoints(server, "test.Service", [endpoint], gate)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        channel = open_channel(f"127.0.0.1:{port}")
        running.append((server, channel))
        return Stream(channel, "/test.Service/Method", timeout_s=20, request_id="id")

    yield _connect
    for server, channel in running:
        await channel.close()
        await server.stop(None)


async def echo(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
    """Answers every message."""
    async for _ in requests:
        yield RESPONSE


async def refuse(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
    """Refuses the first message."""
    await anext(requests)
    raise FailedPrecondition("another model", reason="SPECIAL")
    yield


async def end(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
    """Ends well after the first answer."""
    await anext(requests)
    yield RESPONSE


async def hang(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
    """Never answers."""
    await asyncio.Event().wait()
    yield


Connect = Callable[[Handler], Awaitable[Stream]]


async def test_messages_both_ways(connect: Connect) -> None:
    """What is written arrives, what is answered is read, and the bytes of both are counted."""
    stream = await connect(echo)
    for _ in range(3):
        await stream.write(REQUEST)
        assert RESPONSE == await stream.read(verify_pb2.VerifyResponse)
    assert 3 * (REQUEST.ByteSize() + RESPONSE.ByteSize()) == stream.num_bytes
    stream.cancel()


async def test_the_true_status_survives_a_write_that_meets_it(connect: Connect) -> None:
    """The replica's refusal is told, not the library's INTERNAL, at whichever write it is met."""
    stream = await connect(refuse)
    reading = asyncio.create_task(stream.read(verify_pb2.VerifyResponse))

    async def write_on() -> None:
        while True:
            await stream.write(REQUEST)

    for ending in (write_on(), reading, stream.write(REQUEST)):
        with pytest.raises(FailedPrecondition, match="another model") as refused:
            await ending
        assert "SPECIAL" == refused.value.reason


async def test_an_end_without_an_error_is_one(connect: Connect) -> None:
    """A replica that ends a session by itself is lost, like one that broke."""
    stream = await connect(end)
    await stream.write(REQUEST)
    await stream.read(verify_pb2.VerifyResponse)
    with pytest.raises(Unavailable) as ended:
        await stream.read(verify_pb2.VerifyResponse)
    assert "STREAM_ENDED" == ended.value.reason
    with pytest.raises(Unavailable) as ended:
        await stream.write(REQUEST)
    assert "STREAM_ENDED" == ended.value.reason


async def test_closing_tells_the_reader(connect: Connect) -> None:
    """A reader in another task hears of the close as an error; it is not cancelled."""
    stream = await connect(hang)
    reading = asyncio.create_task(stream.read(verify_pb2.VerifyResponse))
    await stream.write(REQUEST)
    stream.cancel()
    with pytest.raises(Unavailable) as closed:
        await reading
    assert "CLOSED" == closed.value.reason


async def test_cancelling_the_reader_is_cancelling(connect: Connect) -> None:
    """A task that is cancelled ends as one."""
    stream = await connect(hang)
    reading = asyncio.create_task(stream.read(verify_pb2.VerifyResponse))
    await stream.write(REQUEST)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_a_timeout_around_a_read_is_a_timeout(connect: Connect) -> None:
    """The stall bound of a session is met as a timeout."""
    stream = await connect(hang)
    await stream.write(REQUEST)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await stream.read(verify_pb2.VerifyResponse)
    stream.cancel()


async def test_nobody_is_there() -> None:
    """A dead address is UNAVAILABLE."""
    async with open_channel("127.0.0.1:1") as channel:
        stream = Stream(channel, "/test.Service/Method", timeout_s=20, request_id="id")
        with pytest.raises(PacelineError) as refused:
            await stream.write(REQUEST)
            await stream.read(verify_pb2.VerifyResponse)
    assert isinstance(refused.value, Unavailable)
