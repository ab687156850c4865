"""Envoy before two gateways, with the configuration that is shipped: streams, drain, health."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from paceline.cli.process import ServiceProcess
from paceline.v1 import gateway_pb2, gateway_pb2_grpc, speculation_pb2
from tests.deploy.rendering import CHART
from tests.deploy.tools import find

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(300)]
CONFIG = CHART.parent / "envoy.json"
# So many tokens that a stream still runs when its gateway is told to stop.
NUM_TOKENS = 600
SETTINGS = {"PACELINE_CONFIG": "", "OMP_NUM_THREADS": "1"}


def shipped(gateways: list[str]) -> dict[str, Any]:
    """The configuration with these gateways in place of a DNS name, and free ports."""
    config: dict[str, Any] = json.loads(CONFIG.read_text())
    (listener,) = config["static_resources"]["listeners"]
    listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": 0}
    (cluster,) = config["static_resources"]["clusters"]
    endpoints = []
    for address in gateways:
        host, _, port = address.rpartition(":")
        place = {"socket_address": {"address": host, "port_value": int(port)}}
        endpoints.append({"endpoint": {"address": place}})
    cluster["load_assignment"]["endpoints"][0]["lb_endpoints"] = endpoints
    admin = {"address": "127.0.0.1", "port_value": 0}
    return config | {"admin": {"address": {"socket_address": admin}}}


def request(num_tokens: int) -> gateway_pb2.GenerateRequest:
    """Some tokens at temperature 0."""
    return gateway_pb2.GenerateRequest(
        prompt=gateway_pb2.Prompt(text="a"),
        max_tokens=num_tokens,
        sampling=speculation_pb2.SamplingParams(temperature=0),
    )


async def admin(address: str, path: str) -> str:
    """What Envoy says of itself."""

    def ask() -> str:
        with urllib.request.urlopen(f"http://{address}/{path}", timeout=30) as response:
            return str(response.read().decode())

    return await asyncio.to_thread(ask)


@contextlib.asynccontextmanager
async def envoy(folder: Path, gateways: list[str]) -> AsyncIterator[tuple[str, str]]:
    """Envoy as a process; gives the address for clients and the one of its administration."""
    (folder / "envoy.json").write_text(json.dumps(shipped(gateways)))
    told = folder / "admin"
    flags = ("--admin-address-path", told, "--use-dynamic-base-id", "--log-level", "warn")
    command = (find("envoy"), "-c", folder / "envoy.json", *flags)
    process = await asyncio.create_subprocess_exec(*command)
    try:
        while not (told.exists() and told.read_text()):
            assert process.returncode is None, "envoy ended"
            await asyncio.sleep(0.05)
        address = told.read_text()
        listeners = json.loads(await admin(address, "listeners?format=json"))
        (one,) = listeners["listener_statuses"]
        place = one["local_address"]["socket_address"]
        yield f"{place['address']}:{place['port_value']}", address
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


@contextlib.asynccontextmanager
async def gateways(folder: Path) -> AsyncIterator[list[ServiceProcess]]:
    """Two gateways over one target."""
    (folder / "t.json").write_text(json.dumps({"alphabet": "ab", "default": [0.6, 0.4]}))
    target = f"table:{folder / 't.json'}"
    flags = ("--max-length", str(2 * NUM_TOKENS), "--memory-mib", "256", "--threads", "1")
    processes = [ServiceProcess("verify", ("verify_service", "--model", target, *flags), _unread)]
    try:
        await processes[0].start(SETTINGS)
        verify = await processes[0].ready()
        for name in ("one", "other"):
            processes.append(ServiceProcess(name, ("gateway", "--verify", verify), _unread))
            await processes[-1].start(SETTINGS)
        yield processes[1:]
    finally:
        for process in processes:
            process.send(signal.SIGKILL)
            await process.wait()


def _unread(name: str, line: str) -> None:
    """Logs are kept by the process for its failure."""


async def until_healthy(address: str, count: int) -> None:
    """Returns once Envoy counts so many healthy gateways."""
    name = "cluster.gateway.membership_healthy"
    while f"{name}: {count}" not in await admin(address, f"stats?filter={name}"):
        await asyncio.sleep(0.05)


async def test_streams_drain_and_health(tmp_path: Path) -> None:
    """A stream comes through as it is made; its gateway may drain meanwhile, and nobody notices."""
    async with gateways(tmp_path) as processes:
        addresses = [await process.ready() for process in processes]
        async with envoy(tmp_path, addresses) as (address, about):
            await until_healthy(about, 2)
            async with grpc.aio.insecure_channel(address) as channel:
                health = health_pb2_grpc.HealthStub(channel)
                answer = await health.Check(health_pb2.HealthCheckRequest())
                assert health_pb2.HealthCheckResponse.SERVING == answer.status
                stub = gateway_pb2_grpc.GatewayServiceStub(channel)
                streams = [aiter(stub.Generate(request(NUM_TOKENS))) for _ in range(4)]
                for stream in streams:
                    assert "started" == (await anext(stream)).WhichOneof("event")
                processes[0].send(signal.SIGTERM)
                await until_healthy(about, 1)
                # Streams that ran on the one go on there; new ones find the other.
                for _ in range(4):
                    complete = gateway_pb2.CompleteRequest(generation=request(8))
                    assert 8 == len((await stub.Complete(complete)).token_ids)
                for stream in streams:
                    events = [event async for event in stream]
                    assert NUM_TOKENS == events[-1].finished.usage.completion_token_count
                assert 0 == await processes[0].wait()
