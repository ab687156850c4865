"""A server process with certificates: where probes ask, and what ends its start."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
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
ECHO = "/paceline.v1.VerifyService/Echo"
HELLO = StringValue(value="hello").SerializeToString()


async def health(channel: grpc.aio.Channel) -> int:
    """What a probe is told."""
    request = health_pb2.HealthCheckRequest()
    return int((await health_pb2_grpc.HealthStub(channel).Check(request, timeout=20)).status)


async def test_probes_need_no_certificate(certificates: Certificates) -> None:
    """Health has a port without TLS, and nothing else is there; the main port is encrypted."""
    certificate, key = certificates.issue("server", "127.0.0.1")
    ca = TlsFiles("", ca=certificates.ca)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(TINY_SERVICE), "--health-port", "0"),
        *("--tls-certificate", str(certificate), "--tls-key", str(key)),
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        assert process.stdout is not None
        addresses = {}
        for _ in range(3):
            word, _, address = (await process.stdout.readline()).decode().strip().split(" ")
            addresses[word] = address.removeprefix("address=")
        assert ["health", "listening", "ready"] == list(addresses)
        async with open_channel(addresses["health"]) as plaintext:
            assert health_pb2.HealthCheckResponse.SERVING == await health(plaintext)
            call: Any = plaintext.unary_unary(ECHO)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(HELLO, timeout=20)
            assert grpc.StatusCode.UNIMPLEMENTED == caught.value.code()
        credentials = client_credentials(ca).get()
        async with open_channel(addresses["listening"], credentials) as channel:
            start: Any = channel.stream_stream(ECHO)
            assert HELLO == await start(iter([HELLO]), timeout=20).read()
        async with open_channel(addresses["listening"]) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await health(channel)
    finally:
        process.kill()
        await process.communicate()


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
