"""A loopback server around endpoints, for tests of what callers see."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest

from paceline.serving.channels import SERVER_OPTIONS, open_channel
from paceline.serving.endpoints import Endpoint, Gate, add_endpoints

Connect = Callable[..., Awaitable[grpc.aio.Channel]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Serves endpoints as `test.Service` and gives a channel to them."""
    open_things: list[tuple[grpc.aio.Server, grpc.aio.Channel]] = []

    async def _connect(
        *endpoints: Endpoint,
        gate: Gate | None = None,
        limit_bytes: int = 16 * 1024 * 1024,
        **options: Any,
    ) -> grpc.aio.Channel:
        if gate is None:
            gate = Gate()
            gate.open()
        server = grpc.aio.server(options=SERVER_OPTIONS)
        add_endpoints(server, "test.Service", endpoints, gate, limit_bytes, **options)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        channel = open_channel(f"127.0.0.1:{port}")
        open_things.append((server, channel))
        return channel

    yield _connect
    for server, channel in open_things:
        await channel.close()
        await server.stop(None)
