"""The transport's settings, at both ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import grpc
import pytest
from google.protobuf.wrappers_pb2 import BytesValue

from paceline.serving.channels import (
    CHANNEL_OPTIONS,
    SERVER_OPTIONS,
    TRANSPORT_LIMIT_BYTES,
    open_channel,
)
from paceline.serving.config import ServerConfig
from paceline.serving.endpoints import Context, Endpoint, Shape

Connect = Callable[..., Awaitable[grpc.aio.Channel]]


def open_unary(channel: grpc.aio.Channel) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
    """`Do` as bytes."""
    return channel.unary_unary("/test.Service/Do")


def test_the_server_allows_the_clients_pings() -> None:
    """B101, B104: a server that allows fewer pings than clients send closes their connections."""
    client, server = dict(CHANNEL_OPTIONS), dict(SERVER_OPTIONS)
    allowed_ms = server["grpc.http2.min_recv_ping_interval_without_data_ms"]
    assert allowed_ms < client["grpc.keepalive_time_ms"]
    assert 20_000 == client["grpc.keepalive_time_ms"] == server["grpc.keepalive_time_ms"]
    assert 10_000 == client["grpc.keepalive_timeout_ms"] == server["grpc.keepalive_timeout_ms"]


def test_streams_are_never_replayed() -> None:
    """B107: the transport must not send a session's messages a second time."""
    assert 0 == dict(CHANNEL_OPTIONS)["grpc.enable_retries"]


def test_no_product_limit_reaches_the_transports() -> None:
    """The largest limit that can be configured is below the transport's, so ours answers."""
    metadata = ServerConfig.model_fields["max_message_mib"].metadata
    (largest_mib,) = (rule.le for rule in metadata if hasattr(rule, "le"))
    assert largest_mib * 1024 * 1024 < TRANSPORT_LIMIT_BYTES


@pytest.mark.parametrize("num_bytes", [5_000_000, 30_000_000])
async def test_messages_above_grpcs_default_pass_both_ways(
    connect: Connect, num_bytes: int
) -> None:
    """B99: gRPC's own limit is 4 MiB at each end; dense laws and tokenizers are larger."""

    async def echo(request: BytesValue, context: Context) -> BytesValue:
        return request

    endpoint = Endpoint("Do", Shape.UNARY, BytesValue, echo)
    channel = await connect(endpoint, limit_bytes=TRANSPORT_LIMIT_BYTES)
    data = BytesValue(value=bytes(num_bytes)).SerializeToString()
    assert len(data) == len(await open_unary(channel)(data))


async def test_an_absent_peer_is_unavailable() -> None:
    """A call to a port that nobody listens on fails at once instead of waiting."""
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")  # bound, then given back
    await server.start()
    await server.stop(None)
    async with open_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await open_unary(channel)(b"")
    assert grpc.StatusCode.UNAVAILABLE is caught.value.code()


async def test_environment_proxies_are_not_for_the_tiers(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy for the world outside must not get the calls between the tiers."""
    touched = asyncio.Event()

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        touched.set()
        writer.close()

    listener = await asyncio.start_server(proxy, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("no_grpc_proxy", raising=False)

    async def echo(request: BytesValue, context: Context) -> BytesValue:
        return request

    channel = await connect(Endpoint("Do", Shape.UNARY, BytesValue, echo))
    assert b"" == await open_unary(channel)(b"")
    listener.close()
    await listener.wait_closed()
    assert not touched.is_set()
