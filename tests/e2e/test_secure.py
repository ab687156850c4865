"""All hops encrypted, both ends of each known, and every caller with a token: as real processes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from paceline.bench.measure import ServedRow
from paceline.bench.prompts import Question
from paceline.bench.runs import Prompt
from paceline.cli.client import Access, Generation, GenerationOptions, connect, generate
from paceline.cli.client import text_prompt as text
from paceline.cli.process import ServiceProcess
from paceline.errors import PacelineError
from paceline.serving.credentials import TlsFiles, client_credentials
from paceline.serving.statuses import error_of
from paceline.v1 import gateway_pb2

if TYPE_CHECKING:
    from tests.conftest import Certificates

pytestmark = pytest.mark.e2e
CLIENTS = Path(__file__).parents[2] / "clients"
HOST = "127.0.0.1"
# A token of each tenant.
TOKENS = {"ann": "ann's own token", "bob": "bob's own token"}


def tls(prefix: str, pair: tuple[Path, Path], ca: Path) -> tuple[str, ...]:
    """The three flags of one end."""
    names = (f"--{prefix}-certificate", f"--{prefix}-key", f"--{prefix}-ca")
    return tuple(str(part) for one in zip(names, (*pair, ca), strict=True) for part in one)


@dataclass
class Secure:
    """A pair behind certificates and tokens."""

    folder: Path
    certificates: Certificates
    tables: dict[str, str]
    address: str = ""
    target_command: tuple[str, ...] = ()
    log: list[str] = field(default_factory=list)
    processes: list[ServiceProcess] = field(default_factory=list)

    async def start(self) -> None:
        """Starts the three services; returns when the gateway is ready."""
        ca, verify = self.certificates.ca, ("verify_service", "--model", self.tables["target"])
        draft = (
            "draft_service",
            "--source",
            self.tables["draft"],
            "--target",
            self.tables["target"],
        )
        small = ("--memory-mib", "64", "--threads", "1")
        inner = tls("tls", self.certificates.issue("tier", HOST), ca)
        self.target_command = (*verify, *small, *inner)
        addresses = [
            await self._spawn(*command)
            for command in (self.target_command, (*draft, *small, *inner, "--zone", "west"))
        ]
        self.write_tokens()
        shown = self.certificates.issue("gateway", HOST)
        outer = ("--tls-certificate", str(shown[0]), "--tls-key", str(shown[1]))
        tiers = ("--verify", addresses[0], "--draft", addresses[1], *tls("tier", shown, ca))
        files = ("--token-file", str(self.folder / "tokens"), "--tokenizer-cache-dir")
        self.address = await self._spawn("gateway", *outer, *tiers, *files, str(self.folder / "t"))
        await self.processes[-1].ready()

    async def stop(self) -> None:
        """Ends them."""
        for process in reversed(self.processes):
            process.send(signal.SIGKILL)
            await process.wait()

    def write_tokens(self, **tokens: str) -> None:
        """The file of tokens, with some of them changed, in one step."""
        lines = [
            f"{tenant}:{hashlib.sha256(token.encode()).hexdigest()}\n"
            for tenant, token in {**TOKENS, **tokens}.items()
        ]
        new = self.folder / "tokens.new"
        new.write_text("".join(lines))
        new.replace(self.folder / "tokens")

    def access(self, token: str = TOKENS["ann"]) -> Access:
        """What a client needs."""
        files = TlsFiles("", ca=self.certificates.ca)
        return Access(self.address, client_credentials(files).get(), token=token)

    async def generate(self, access: Access, **fields: Any) -> Generation:
        """One generation, over a channel of its own."""
        request = GenerationOptions(max_tokens=12, temperature=0.0).request(text("abc"))
        request.MergeFrom(gateway_pb2.GenerateRequest(**fields))
        async with connect(access) as gateway:
            return await generate(gateway, request)

    async def refusal(self, access: Access, **fields: Any) -> PacelineError:
        """Why a generation is refused."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.generate(access, **fields)
        return error_of(caught.value)

    async def _spawn(self, *command: str) -> str:
        process = ServiceProcess(
            command[0],
            (*command, "--port", "0", "--log-format", "json"),
            lambda name, line: self.log.append(line),
        )
        self.processes.append(process)
        await process.start({"OMP_NUM_THREADS": "1"})
        return await process.listening()


@pytest.fixture
async def secure(
    tmp_path: Path, certificates: Certificates, tables: dict[str, str]
) -> AsyncIterator[Secure]:
    """A pair that serves."""
    pair = Secure(tmp_path, certificates, tables)
    try:
        await pair.start()
        yield pair
    finally:
        await pair.stop()


async def test_who_gets_in_and_as_whom(secure: Secure) -> None:
    """TLS to the gateway, tokens on every RPC, a tenant's own domain alone; drafts are used."""
    ann = await secure.generate(secure.access())
    assert (12, True) == (len(ann.token_ids), ann.stats.drafted_token_count > 0)
    assert ann.token_ids == (await secure.generate(secure.access(TOKENS["bob"]))).token_ids
    assert ann.token_ids == (await secure.generate(secure.access(), cache_domain="ann")).token_ids
    assert ann.token_ids == (await secure.generate(secure.access(), cache_domain="/part")).token_ids
    assert "TENANT_MISMATCH" == (await secure.refusal(secure.access(), cache_domain="bob")).reason
    assert "TOKEN_UNKNOWN" == (await secure.refusal(secure.access("guess"))).reason
    assert "TOKEN_MISSING" == (await secure.refusal(secure.access(""))).reason
    assert "PEER_FAILED" != (await secure.refusal(Access(secure.address))).reason
    async with connect(secure.access("")) as gateway:
        for call in (
            gateway.ListModels(gateway_pb2.ListModelsRequest()),
            gateway.Tokenize(gateway_pb2.TokenizeRequest(prompt=text("a"))),
            gateway.Detokenize(gateway_pb2.DetokenizeRequest(token_ids=[1])),
            gateway.Complete(gateway_pb2.CompleteRequest()),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert grpc.StatusCode.UNAUTHENTICATED == caught.value.code()


async def test_measurements_take_a_token(secure: Secure) -> None:
    """Their runs keep out of one another's caches within the token's tenant."""
    options = GenerationOptions(max_tokens=4, temperature=0.0)
    async with connect(secure.access()) as gateway:
        asked = await gateway.Tokenize(gateway_pb2.TokenizeRequest(prompt=text("abc")))
        prompt = Prompt(Question("1", "any", "abc"), tuple(asked.token_ids))
        (run,) = await ServedRow("plain", gateway, options).run([prompt])
    assert 4 == run.num_tokens


async def test_rotation_without_restart(secure: Secure) -> None:
    """Certificates of all ends and a token change while a generation runs, which notices nothing.

    Replicas that are met after the change are met with what is valid then.
    """
    old, options = secure.access(), GenerationOptions(temperature=0.0, ignore_eos=True)
    async with connect(old) as gateway:
        running = gateway.Generate(options.request(text("abc")))
        await running.read()
        secure.certificates.rotate()
        secure.write_tokens(ann="another token")
        assert "TOKEN_UNKNOWN" == (await secure.refusal(secure.access())).reason
        assert 12 == len((await secure.generate(secure.access("another token"))).token_ids)
        with pytest.raises(grpc.aio.AioRpcError):
            await secure.generate(old)  # believes the authority that was
        event = await running.read()
        assert isinstance(event, gateway_pb2.GenerateResponse) and event.tokens.token_ids
        running.cancel()
    # A target that restarts shows a certificate of the new authority, and wants one of it.
    target = secure.processes[0]
    address = await target.listening()
    target.send(signal.SIGKILL)
    await target.wait()
    again = ServiceProcess(
        "verify_service",
        (*secure.target_command, "--port", address.rpartition(":")[2]),
        lambda name, line: secure.log.append(line),
    )
    secure.processes.append(again)
    await again.start({"OMP_NUM_THREADS": "1"})
    await again.ready()
    while (await _num_ready(secure)) < 2:
        await asyncio.sleep(0.05)  # the gateway looks for lost replicas by itself
    assert 12 == len((await secure.generate(secure.access("another token"))).token_ids)


async def _num_ready(secure: Secure) -> int:
    async with connect(secure.access("another token")) as gateway:
        listed = await gateway.ListModels(gateway_pb2.ListModelsRequest())
    return sum(replica.is_ready for replica in listed.replicas)


async def test_commands_and_clients(secure: Secure) -> None:
    """`paceline` and the examples take authorities and a token from variables."""
    environment = {
        **os.environ,
        "PACELINE_CA": str(secure.certificates.ca),
        "PACELINE_TOKEN": TOKENS["bob"],
        "PACELINE_ADDRESS": secure.address,
        "PYTHONPATH": str(CLIENTS.parent),
    }

    async def run(
        *command: str, program: str = sys.executable, **changes: str
    ) -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            *(program, *command),
            env=environment | changes,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = await process.communicate()
        return process.returncode or 0, out.decode(), err.decode()

    code, out, err = await run("-m", "paceline.cli.main", "status", "--json")
    assert 0 == code, err
    zones = {replica["tier"]: replica["zone"] for replica in json.loads(out)["replicas"]}
    assert {"verify": "", "draft": "west"} == zones
    code, _, err = await run("-m", "paceline.cli.main", "status", PACELINE_TOKEN="guess")
    assert (1, True) == (code, "UNAUTHENTICATED" in err and "TOKEN_UNKNOWN" in err)
    code, _, err = await run("-m", "paceline.cli.main", "status", PACELINE_CA="none.crt")
    assert (2, True) == (code, "--ca (none.crt): No such file" in err)
    code, out, err = await run(str(CLIENTS / "python" / "client.py"), secure.address, "abc")
    assert (0, "") == (code, err)
    assert "32 tokens in" in out and "INVALID_ARGUMENT" in out and "DEADLINE_EXCEEDED" in out
    if grpcurl := shutil.which("grpcurl", path=str(Path(sys.executable).parent)):
        script = str(CLIENTS / "grpcurl" / "client.sh")
        code, out, err = await run(script, secure.address, "abc", program="bash", GRPCURL=grpcurl)
        assert (0, True) == (code, '"completionTokenCount": 32' in out), out + err
