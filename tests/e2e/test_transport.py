"""Connections: how many a gateway holds, and what a client has of a stream that was cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from paceline.cli.client import GenerationOptions, connect, generate, text_prompt
from paceline.v1 import gateway_pb2

if TYPE_CHECKING:
    from tests.e2e.conftest import Running

pytestmark = pytest.mark.e2e
ESTABLISHED = "01"


def connections_to(address: str) -> int:
    """How many connections of this machine lead to a port of its own."""
    port = int(address.rpartition(":")[2])
    tables = (Path("/proc/net", kind).read_text().splitlines()[1:] for kind in ("tcp", "tcp6"))
    rows = [line.split() for table in tables for line in table]
    return sum(row[2].endswith(f":{port:04X}") and row[3] == ESTABLISHED for row in rows)


@asynccontextmanager
async def cut(address: str, after: int) -> AsyncIterator[str]:
    """A proxy that resets each connection once so many bytes have come back through it."""
    host, _, port = address.rpartition(":")

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, left: int) -> None:
        while left > 0 and (data := await source.read(1024)):
            left -= len(data)
            sink.write(data)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        there = asyncio.create_task(pump(reader, far_writer, 1 << 30))
        await pump(far_reader, writer, after)
        there.cancel()
        for one in (writer, far_writer):
            await one.drain()
            one.transport.abort()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


async def test_generations_share_connections(pair: Running) -> None:
    """B108: 200 generations, 20 at a time, over one connection to each replica."""
    request = GenerationOptions(max_tokens=4).request(text_prompt("abc"))
    async with connect(pair.address) as gateway:
        for _ in range(10):
            await asyncio.gather(*(generate(gateway, request) for _ in range(20)))
    for tier in ("verify", "draft"):
        (address,) = pair.addresses[tier]
        assert 1 == connections_to(address), tier


async def test_a_cut_stream_can_be_resumed(pair: Running) -> None:
    """B105: its end is UNAVAILABLE, what came is a prefix, and the rest is got with it, once."""
    prompt = gateway_pb2.Prompt(token_ids=gateway_pb2.TokenIds(token_ids=[0, 1, 2]))
    request = GenerationOptions(max_tokens=400, temperature=0).request(prompt)
    async with connect(pair.address) as gateway:
        whole = list((await generate(gateway, request)).token_ids)
        came: list[int] = []
        async with cut(pair.address, after=4000) as address, connect(address) as through:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for event in through.Generate(request):
                    came += event.tokens.token_ids
        assert grpc.StatusCode.UNAVAILABLE is caught.value.code()
        assert 0 < len(came) < len(whole)
        rest = gateway_pb2.GenerateRequest()
        rest.CopyFrom(request)
        rest.committed_token_ids.extend(came)
        assert whole == came + list((await generate(gateway, rest)).token_ids)
