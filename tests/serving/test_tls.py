"""A server with certificates, as a process: who gets in, and what changes while it runs."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import StringValue
from grpc_health.v1 import health_pb2, health_pb2_grpc

from paceline.serving.channels import open_channel
from paceline.serving.credentials import TlsFiles, client_credentials

if TYPE_CHECKING:
    from tests.conftest import Certificates

TINY_SERVICE = Path(__file__).with_name("tiny_service.py")
NAME = "paceline.v1.VerifyService"
HELLO = StringValue(value="hello").SerializeToString()


@dataclass
class Running:
    """A server process with certificates."""

    process: Process
    address: str
    health_address: str

    def open(self, files: TlsFiles, server_name: str = "") -> grpc.aio.Channel:
        """A channel with what the files say."""
        return open_channel(self.address, client_credentials(files).get(), server_name)

    async def echo(self, files: TlsFiles, server_name: str = "") -> bytes:
        """What the service answers over a channel of its own."""
        async with self.open(files, server_name) as channel:
            return await echo(channel)

    async def refuses(self, files: TlsFiles, server_name: str = "") -> None:
        """The handshake fails."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.echo(files, server_name)
        assert grpc.StatusCode.UNAVAILABLE == caught.value.code()


async def echo(channel: grpc.aio.Channel) -> bytes:
    """One message there and back."""
    start: Any = channel.stream_stream(f"/{NAME}/Echo")
    stream = start(iter([HELLO]), timeout=20)
    answer: bytes = await stream.read()
    return answer


async def health(channel: grpc.aio.Channel) -> int:
    """What a probe is told."""
    request = health_pb2.HealthCheckRequest()
    return int((await health_pb2_grpc.HealthStub(channel).Check(request, timeout=20)).status)


@contextlib.asynccontextmanager
async def serving(*argv: str | Path) -> AsyncIterator[Running]:
    """The tiny service with a port for health."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(TINY_SERVICE), "--health-port", "0", *map(str, argv)),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
    )
    assert process.stdout is not None
    try:
        found = {}
        for _ in range(3):
            word, _, address = (await process.stdout.readline()).decode().strip().split(" ")
            found[word] = address.removeprefix("address=")
        assert {"health", "listening", "ready"} == found.keys()
        yield Running(process, found["listening"], found["health"])
    finally:
        process.kill()
        await process.communicate()


def shown(certificates: Certificates, *names: str) -> tuple[str | Path, ...]:
    """Flags of a server whose certificate is for these names."""
    certificate, key = certificates.issue("server", *names)
    return "--tls-certificate", certificate, "--tls-key", key


async def test_who_is_believed(certificates: Certificates, tmp_path: Path) -> None:
    """The server that is meant, by name or address, with a certificate of a known authority."""
    async with serving(*shown(certificates, "127.0.0.1", "verify.example")) as server:
        files = TlsFiles("", ca=certificates.ca)
        for name in ("", "127.0.0.1", "verify.example"):
            assert HELLO == await server.echo(files, name)
        await server.refuses(files, "draft.example")
        await server.refuses(TlsFiles(""))
        (tmp_path / "other").mkdir()
        await server.refuses(TlsFiles("", ca=type(certificates)(tmp_path / "other").ca))


async def test_callers_must_show_a_certificate(certificates: Certificates, tmp_path: Path) -> None:
    """With authorities for callers none and a stranger's are turned away; probes have a port."""
    flags = (*shown(certificates, "127.0.0.1"), "--tls-ca", certificates.ca)
    caller = certificates.issue("gateway", "gateway")
    async with serving(*flags) as server, open_channel(server.health_address) as plaintext:
        assert HELLO == await server.echo(TlsFiles("", *caller, certificates.ca))
        await server.refuses(TlsFiles("", ca=certificates.ca))
        (tmp_path / "other").mkdir()
        stranger = type(certificates)(tmp_path / "other").issue("gateway", "gateway")
        await server.refuses(TlsFiles("", *stranger, certificates.ca))
        assert health_pb2.HealthCheckResponse.SERVING == await health(plaintext)
        with pytest.raises(grpc.aio.AioRpcError) as caught:  # nothing but health is there
            call: Any = plaintext.unary_unary(f"/{NAME}/Echo")
            await call(HELLO, timeout=20)
        assert grpc.StatusCode.UNIMPLEMENTED == caught.value.code()


async def test_files_change_while_it_runs(certificates: Certificates) -> None:
    """A new authority: new callers need it, those of the old one are out, open streams go on.

    What a rotation spoils is not taken: the last good certificate serves on.
    """
    flags = (*shown(certificates, "127.0.0.1"), "--tls-ca", certificates.ca)
    files = TlsFiles("", *certificates.issue("gateway", "gateway"), certificates.ca)
    async with serving(*flags) as server, server.open(files) as before:
        start: Any = before.stream_stream(f"/{NAME}/Echo")
        stream = start()
        await stream.write(HELLO)
        assert HELLO == await stream.read()
        old = client_credentials(files).get()
        certificates.rotate()
        assert HELLO == await server.echo(files)
        async with open_channel(server.address, old) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await echo(channel)
        Path(flags[1]).write_text("spoilt")
        assert HELLO == await server.echo(files)
        await stream.write(HELLO)
        assert HELLO == await stream.read()
        stream.cancel()


async def test_wrong_files_end_the_start(certificates: Certificates, tmp_path: Path) -> None:
    """One line that names the setting, and no port."""
    certificate, _ = certificates.issue("server", "server")
    missing = tmp_path / "missing.key"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(TINY_SERVICE), "--log-format", "json"),
        *("--tls-certificate", str(certificate), "--tls-key", str(missing)),
        stdout=PIPE,
        stderr=PIPE,
    )
    out, err = await process.communicate()
    assert (1, b"") == (process.returncode, out)
    assert f"--tls-key ({missing}): No such file or directory" in err.decode()
