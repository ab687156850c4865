"""A service without a model, run as a process by the tests of the server's life."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import ClassVar, Literal

from google.protobuf.wrappers_pb2 import StringValue

from paceline.errors import FailedPrecondition
from paceline.serving.config import ServerConfig, load
from paceline.serving.endpoints import Context, Endpoint, Shape
from paceline.serving.metrics import new_registry
from paceline.serving.server import run


class TinyConfig(ServerConfig):
    """How `start` ends: at once, when a line arrives on stdin, or not at all."""

    section: ClassVar[str] = "verify"
    start: Literal["ready", "wait", "mismatch", "missing"] = "ready"


class TinyService:
    """Echoes streams, and drains by waiting for them."""

    name = "paceline.v1.VerifyService"

    def __init__(self, config: TinyConfig) -> None:
        self._config = config
        self.registry = new_registry()
        self._num_open = 0
        self._is_healthy = True
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def is_healthy(self) -> bool:
        """Not any more once a client has said so."""
        return self._is_healthy

    def endpoints(self) -> list[Endpoint]:
        """One stream that answers each message with itself."""
        return [Endpoint("Echo", Shape.BIDI, StringValue, self._echo)]

    async def start(self) -> None:
        """Ends as the configuration says."""
        match self._config.start:
            case "wait":  # in a thread that nothing can interrupt, as a model that loads
                await asyncio.to_thread(sys.stdin.readline)
            case "mismatch":
                raise FailedPrecondition("the model does not fit")
            case "missing":
                raise FileNotFoundError("no such model")

    async def drain(self) -> None:
        """Waits for the open streams."""
        await self._idle.wait()

    async def stop(self) -> None:
        """Says so, for the tests to see."""
        sys.stderr.write("service stopped\n")

    async def _echo(
        self, requests: AsyncIterator[StringValue], context: Context
    ) -> AsyncIterator[StringValue]:
        self._num_open += 1
        self._idle.clear()
        try:
            async for request in requests:
                self._is_healthy = request.value != "fall ill"
                yield request
        finally:
            self._num_open -= 1
            if self._num_open == 0:
                self._idle.set()


if __name__ == "__main__":
    tiny_config = load(TinyConfig, sys.argv[1:])
    run(TinyService(tiny_config), tiny_config)
