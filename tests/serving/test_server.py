"""The life of a server process, seen from outside: stdout, health, signals and the exit status."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.wrappers_pb2 import StringValue
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from paceline.errors import Unavailable
from paceline.serving.channels import open_channel
from paceline.serving.server import LIVENESS
from paceline.serving.statuses import error_of

TINY_SERVICE = Path(__file__).with_name("tiny_service.py")
NAME = "paceline.v1.VerifyService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
HELLO = StringValue(value="hello").SerializeToString()


class Running:
    """A server process and a channel to it."""

    def __init__(self, process: Process, address: str, channel: grpc.aio.Channel) -> None:
        self.process = process
        self.address = address
        self.channel = channel
        self.health = health_pb2_grpc.HealthStub(channel)

    async def line(self) -> str:
        """The next line on stdout."""
        assert self.process.stdout is not None
        return (await self.process.stdout.readline()).decode().rstrip()

    async def checked(self, name: str = "") -> int:
        """The health that a probe sees."""
        response = await self.health.Check(health_pb2.HealthCheckRequest(service=name), timeout=10)
        return int(response.status)

    async def until_not_serving(self) -> None:
        """Waits for the moment that a watching balancer sees the drain."""
        async for response in self.health.Watch(health_pb2.HealthCheckRequest(), timeout=30):
            if response.status == NOT_SERVING:
                return

    def echo(self) -> grpc.aio.StreamStreamMultiCallable[bytes, bytes]:
        """The service's stream, as bytes."""
        return self.channel.stream_stream(f"/{NAME}/Echo")

    async def session(self) -> grpc.aio.StreamStreamCall[bytes, bytes]:
        """An open stream that has answered once."""
        stream = self.echo()()
        await stream.write(HELLO)
        assert HELLO == await stream.read()
        return stream

    async def refused(self) -> Unavailable:
        """The refusal of a new session, to which nothing was written: see `Stream._note_end`."""
        stream = self.echo()()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
        error = error_of(caught.value)
        assert isinstance(error, Unavailable)
        return error

    async def ended(self) -> tuple[int, str, str]:
        """Exit status, rest of stdout, and stderr, once the process has ended."""
        out, err = await asyncio.wait_for(self.process.communicate(), timeout=30)
        assert self.process.returncode is not None
        return self.process.returncode, out.decode(), err.decode()


@contextlib.asynccontextmanager
async def started(*argv: str) -> AsyncIterator[Running]:
    """A process of the tiny service that listens."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(TINY_SERVICE), *argv, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    assert process.stdout is not None
    try:
        line = (await process.stdout.readline()).decode()
        match = re.fullmatch(r"listening service=verify address=(127\.0\.0\.1:\d+)\n", line)
        assert match is not None, line
        async with open_channel(match[1]) as channel:
            yield Running(process, match[1], channel)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@contextlib.asynccontextmanager
async def ready(*argv: str) -> AsyncIterator[Running]:
    """A process of the tiny service that serves."""
    async with started(*argv) as running:
        assert f"ready service=verify address={running.address}" == await running.line()
        yield running


async def test_not_ready_until_started() -> None:
    """B117, B122: while loading, health answers NOT_SERVING and sessions are told to come later."""
    async with started("--start", "wait") as running:
        assert [NOT_SERVING, NOT_SERVING] == [await running.checked(n) for n in ("", NAME)]
        assert SERVING == await running.checked(LIVENESS)  # else it would be restarted meanwhile
        refusal = await running.refused()
        assert ("LOADING", True) == (refusal.reason, refusal.retry_after_s > 0)
        assert running.process.stdin is not None
        running.process.stdin.write(b"\n")
        assert f"ready service=verify address={running.address}" == await running.line()
        assert [SERVING, SERVING] == [await running.checked(n) for n in ("", NAME)]
        await running.session()


async def test_metrics_while_loading() -> None:
    """Metrics are served before the service is ready, at an address that is printed first."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(TINY_SERVICE), "--start", "wait", "--metrics-port", "0"),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        match = re.fullmatch(r"metrics service=verify address=(127\.0\.0\.1:\d+)\n", line)
        assert match is not None, line
        assert (await process.stdout.readline()).startswith(b"listening ")
        reader, writer = await asyncio.open_connection(*match[1].split(":"))
        writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
        text = (await reader.read()).decode()
        writer.close()
        assert "# TYPE paceline_refusals_total counter" in text
    finally:
        process.kill()
        await process.communicate()


async def test_health_of_an_unknown_service() -> None:
    """B117: a name that is not served is NOT_FOUND, not unhealthy."""
    async with ready() as running:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await running.checked("paceline.v1.Other")
        assert grpc.StatusCode.NOT_FOUND is caught.value.code()


async def test_health_follows_the_service() -> None:
    """B121: a service that can no longer serve is not ready, and ready again once it can."""
    async with ready() as running:
        stream = await running.session()
        await stream.write(StringValue(value="fall ill").SerializeToString())
        await running.until_not_serving()
        assert NOT_SERVING == await running.checked(NAME)
        assert NOT_SERVING == await running.checked(LIVENESS)
        await stream.write(HELLO)
        while SERVING != await running.checked(NAME):
            await asyncio.sleep(0.02)


async def test_connections_are_renewed() -> None:
    """B103: an old connection takes no new calls, and its running stream goes on."""
    async with ready("--max-connection-age-s", "0.05") as running:
        stream = await running.session()
        await running.channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        await stream.write(HELLO)
        assert HELLO == await stream.read()
        await running.session()  # over another connection


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_drain(number: signal.Signals) -> None:
    """B115: not ready at once, no new session, five open ones run to their end, exit status 0."""
    async with ready() as running:
        streams = [await running.session() for _ in range(5)]
        running.process.send_signal(number)
        await running.until_not_serving()
        assert NOT_SERVING == await running.checked(NAME)
        assert SERVING == await running.checked(LIVENESS)  # else it would be restarted meanwhile
        refusal = await running.refused()
        assert ("DRAINING", True) == (refusal.reason, refusal.retry_after_s > 0)
        for stream in streams:
            await stream.write(HELLO)
            assert HELLO == await stream.read()
            await stream.done_writing()
            assert grpc.StatusCode.OK is await stream.code()
        status, out, err = await running.ended()
        assert (0, "") == (status, out)
        assert "service stopped" in err


async def test_a_lame_duck_still_takes_sessions() -> None:
    """Not ready comes first: who has not heard of it yet is served meanwhile."""
    async with ready("--lame-duck-s", "600") as running:
        running.process.terminate()
        await running.until_not_serving()
        await running.session()
        running.process.terminate()
        status, _, _ = await running.ended()
        assert 128 + signal.SIGTERM == status


async def test_drain_has_an_end() -> None:
    """B115: what still runs at the drain timeout ends UNAVAILABLE; that is no failure of ours."""
    async with ready("--drain-timeout-s", "0.1") as running:
        stream = await running.session()
        running.process.terminate()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
        assert isinstance(error_of(caught.value), Unavailable)
        status, _, err = await running.ended()
        assert 0 == status
        assert "drain_timed_out" in err
        assert "service stopped" in err


async def test_a_second_signal_ends_at_once() -> None:
    """B115: who insists does not wait for the sessions."""
    async with ready() as running:
        await running.session()
        running.process.terminate()
        await running.until_not_serving()
        running.process.terminate()
        status, _, err = await running.ended()
        assert 128 + signal.SIGTERM == status
        assert "service stopped" not in err


async def test_a_signal_while_loading_ends_the_process() -> None:
    """A load in a thread, which nothing can interrupt, does not hold the process."""
    async with started("--start", "wait") as running:
        running.process.terminate()
        status, out, _ = await running.ended()
        assert (0, "") == (status, out)


@pytest.mark.parametrize(
    ("start", "message"),
    [("mismatch", "the model does not fit"), ("missing", "no such model")],
)
async def test_a_start_that_fails_is_one_line(start: str, message: str) -> None:
    """An expected failure to load is logged without a trace, and the exit status is 1."""
    async with started("--start", start) as running:
        status, out, err = await running.ended()
        assert (1, "") == (status, out)
        assert message in err
        assert "Traceback" not in err


async def test_two_processes_on_one_port_fail() -> None:
    """A taken port is refused, not shared."""
    async with ready() as first:
        port = first.address.rpartition(":")[2]
        second = await asyncio.create_subprocess_exec(
            sys.executable, str(TINY_SERVICE), "--port", port, stdout=PIPE, stderr=PIPE
        )
        out, err = await asyncio.wait_for(second.communicate(), timeout=30)
        assert (1, b"") == (second.returncode, out)
        assert f"cannot listen on 127.0.0.1:{port}".encode() in err
        assert b"Traceback" not in err


async def test_wrong_settings_end_the_start() -> None:
    """A wrong setting is one line and exit status 2, before anything is bound."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(TINY_SERVICE), "--port", "x", stdout=PIPE, stderr=PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), timeout=30)
    assert (2, b"") == (process.returncode, out)
    assert err.startswith(b"verify: --port (PACELINE_VERIFY_PORT): ")
    assert 1 == len(err.splitlines())


async def test_the_message_limit_is_the_configured_one() -> None:
    """`--max-message-mib` reaches the endpoints."""
    async with ready("--max-message-mib", "1") as running:
        large = StringValue(value="x" * 1_100_000).SerializeToString()
        stream = running.echo()()
        await stream.write(large)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
        assert "1048576" == error_of(caught.value).metadata["limit_bytes"]


async def test_the_process_keeps_to_the_cores() -> None:
    """`--cores` holds for all that serving starts."""
    core = str(max(os.sched_getaffinity(0)))
    async with ready("--cores", core) as running:
        await running.session()
        found = []
        for task in Path(f"/proc/{running.process.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                found += re.findall(r"Cpus_allowed_list:\t(\S+)", (task / "status").read_text())
        assert ({core}, True) == (set(found), len(found) > 1)


async def test_cores_that_are_not_there_end_the_start() -> None:
    """One line that names the setting and what there is."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(TINY_SERVICE), "--cores", "9999"), stdout=PIPE, stderr=PIPE
    )
    out, err = await process.communicate()
    assert (1, b"") == (process.returncode, out)
    assert b"--cores 9999: this process may use the cores " in err


@pytest.mark.parametrize(("flags", "is_served"), [(["--reflection"], True), ([], False)])
async def test_reflection_by_flag(flags: list[str], is_served: bool) -> None:
    """What is served can be listed where that was asked for, and not elsewhere."""
    async with ready(*flags) as running:
        stub = reflection_pb2_grpc.ServerReflectionStub(running.channel)
        call = stub.ServerReflectionInfo()
        if not is_served:  # nor is a message read; a write that met the refusal would hide it
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert grpc.StatusCode.UNIMPLEMENTED is caught.value.code()
            return
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        response = await call.read()
        names = {service.name for service in response.list_services_response.service}
        assert {NAME, "grpc.health.v1.Health"} <= names
