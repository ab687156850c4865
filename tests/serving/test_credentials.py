"""TLS files: what is wrong with them, whom they let in, and what a change of them does."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import StringValue

from paceline.errors import FailedPrecondition
from paceline.serving.channels import SERVER_OPTIONS, open_channel
from paceline.serving.credentials import TlsFiles, client_credentials, server_credentials
from paceline.serving.endpoints import Context, Endpoint, Gate, Shape, add_endpoints

if TYPE_CHECKING:
    from tests.conftest import Certificates

HELLO = StringValue(value="hello").SerializeToString()


# What is in the files ----------------------------------------------------------------------------


def fault(files: TlsFiles) -> str:
    """What reading them says."""
    with pytest.raises(FailedPrecondition) as caught:
        files.read()
    assert "TLS_FILES" == caught.value.reason
    return str(caught.value)


def test_good_files_are_read(certificates: Certificates) -> None:
    """Contents as they are, empty where there is no file."""
    certificate, key = certificates.issue("verify", "verify")
    pems = TlsFiles("tls-", certificate, key, certificates.ca).read()
    assert (certificate.read_bytes(), key.read_bytes()) == (pems.certificate, pems.key)
    assert certificates.ca.read_bytes() == pems.ca
    assert b"" == TlsFiles("tls-", certificate, key).read().ca


def test_a_missing_file(certificates: Certificates, tmp_path: Path) -> None:
    """The setting, the path and the cause."""
    certificate, _ = certificates.issue("verify", "verify")
    none = tmp_path / "none.key"
    message = f"--tls-key ({none}): No such file or directory"
    assert message == fault(TlsFiles("tls-", certificate, none))
    assert fault(TlsFiles("tier-", ca=tmp_path)).startswith(f"--tier-ca ({tmp_path}): ")


def test_one_without_the_other(certificates: Certificates) -> None:
    """A certificate needs its key and a key its certificate."""
    certificate, key = certificates.issue("verify", "verify")
    expected = f"--tls-certificate ({certificate}) and --tls-key (not given): one is useless"
    assert fault(TlsFiles("tls-", certificate)).startswith(expected)
    assert fault(TlsFiles("tls-", key=key)).startswith("--tls-certificate (not given)")


def test_what_does_not_belong_together(certificates: Certificates, tmp_path: Path) -> None:
    """Another certificate's key, something that is no PEM, and a locked key."""
    certificate, key = certificates.issue("verify", "verify")
    _, other = certificates.issue("draft", "draft")
    text = tmp_path / "text"
    text.write_text("not a certificate")
    locked = tmp_path / "locked.key"
    locked.write_text(
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n"
        "DEK-Info: AES-256-CBC,00000000000000000000000000000000\n\nAAAA\n"
        "-----END RSA PRIVATE KEY-----\n"
    )
    for pair in ((certificate, other), (text, key), (certificate, text), (certificate, locked)):
        message = fault(TlsFiles("tls-", *pair))
        assert message.startswith(f"--tls-certificate ({pair[0]}) and --tls-key ({pair[1]}): not a")
    assert f"--tls-ca ({text}): no certificate in PEM" == fault(TlsFiles("tls-", ca=text))


def test_no_files_is_plaintext() -> None:
    """For both ends."""
    assert server_credentials(TlsFiles("tls-")) is None
    assert client_credentials(TlsFiles("tier-")).get() is None


def test_half_of_an_end(certificates: Certificates) -> None:
    """A server cannot check callers without a certificate, nor a client show one to anybody."""
    certificate, key = certificates.issue("gateway", "gateway")
    with pytest.raises(FailedPrecondition, match=r"--tls-certificate \(not given\)"):
        server_credentials(TlsFiles("tls-", ca=certificates.ca))
    with pytest.raises(FailedPrecondition, match=r"--tier-ca \(not given\)"):
        client_credentials(TlsFiles("tier-", certificate, key)).get()


def test_a_client_reads_anew(certificates: Certificates) -> None:
    """The same credentials until the files change."""
    credentials = client_credentials(TlsFiles("tier-", ca=certificates.ca))
    first = credentials.get()
    assert first is credentials.get()
    certificates.rotate()
    assert first is not credentials.get()


# Who gets in -------------------------------------------------------------------------------------


class Server:
    """An echo behind certificates, and clients of it."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def echo(self, files: TlsFiles, server_name: str = "") -> bytes:
        """What comes back over a channel of its own."""
        credentials = client_credentials(files).get()
        async with open_channel(self.address, credentials, server_name) as channel:
            return await echo(channel)

    async def refuses(self, files: TlsFiles, server_name: str = "") -> None:
        """The handshake fails."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.echo(files, server_name)
        assert grpc.StatusCode.UNAVAILABLE == caught.value.code()


async def echo(channel: grpc.aio.Channel) -> bytes:
    """One message there and back."""
    start: Any = channel.stream_stream("/Echo/Do")
    answer: bytes = await start(iter([HELLO]), timeout=20).read()
    return answer


async def _each(
    requests: AsyncIterator[StringValue], context: Context
) -> AsyncIterator[StringValue]:
    async for request in requests:
        yield request


@contextlib.asynccontextmanager
async def serving(files: TlsFiles) -> AsyncIterator[Server]:
    """A server with these files."""
    server, gate = grpc.aio.server(options=SERVER_OPTIONS), Gate()
    gate.open()
    add_endpoints(server, "Echo", [Endpoint("Do", Shape.BIDI, StringValue, _each)], gate)
    credentials = server_credentials(files)
    assert credentials is not None
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield Server(f"127.0.0.1:{port}")
    finally:
        await server.stop(None)


@pytest.fixture
def strangers(certificates: Certificates, tmp_path: Path) -> Certificates:
    """Another authority."""
    (tmp_path / "strangers").mkdir()
    return type(certificates)(tmp_path / "strangers")


async def test_who_is_believed(certificates: Certificates, strangers: Certificates) -> None:
    """The server that is meant, by name or address, with a certificate of a known authority."""
    shown = certificates.issue("server", "127.0.0.1", "verify.example")
    async with serving(TlsFiles("tls-", *shown)) as server:
        files = TlsFiles("", ca=certificates.ca)
        for name in ("", "127.0.0.1", "verify.example"):
            assert HELLO == await server.echo(files, name)
        await server.refuses(files, "draft.example")
        await server.refuses(TlsFiles(""))
        await server.refuses(TlsFiles("", ca=strangers.ca))


async def test_callers_must_show_a_certificate(
    certificates: Certificates, strangers: Certificates
) -> None:
    """With authorities for callers, none and a stranger's are turned away."""
    shown = certificates.issue("server", "127.0.0.1")
    async with serving(TlsFiles("tls-", *shown, certificates.ca)) as server:
        caller = certificates.issue("gateway", "gateway")
        assert HELLO == await server.echo(TlsFiles("", *caller, certificates.ca))
        await server.refuses(TlsFiles("", ca=certificates.ca))
        await server.refuses(TlsFiles("", *strangers.issue("gateway", "gateway"), certificates.ca))


async def test_files_change_while_it_runs(certificates: Certificates) -> None:
    """A new authority: new callers need it, those of the old one are out, open streams go on.

    What a rotation spoils is not taken: the last good certificate serves on.
    """
    shown = certificates.issue("server", "127.0.0.1")
    files = TlsFiles("", *certificates.issue("gateway", "gateway"), certificates.ca)
    old: Any = client_credentials(files).get()
    async with (
        serving(TlsFiles("tls-", *shown, certificates.ca)) as server,
        open_channel(server.address, old) as before,
    ):
        start: Any = before.stream_stream("/Echo/Do")
        stream = start()
        await stream.write(HELLO)
        assert HELLO == await stream.read()
        certificates.rotate()
        assert HELLO == await server.echo(files)
        late: Any = ("grpc.use_local_subchannel_pool", 1)  # not over the connection that is there
        async with grpc.aio.secure_channel(server.address, old, options=[late]) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await echo(channel)
        shown[0].write_text("spoilt")
        assert HELLO == await server.echo(files)
        await stream.write(HELLO)
        assert HELLO == await stream.read()
        stream.cancel()
