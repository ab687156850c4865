"""The life of a server process: listen, load, serve, drain, stop. The same for all three services.

Standard output carries two lines, for the process that started this one: `listening service=...
address=...` when the port is bound and `ready service=... address=...` when calls are let in. Where
metrics are served, `metrics service=... address=...` comes before them, and `health ...` does where
health has a port of its own. What a service does is not known here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry

from paceline.errors import FailedPrecondition, PacelineError, Unavailable
from paceline.serving import logging, placement
from paceline.serving.channels import SERVER_OPTIONS
from paceline.serving.config import ServerConfig
from paceline.serving.credentials import server_credentials
from paceline.serving.endpoints import Endpoint, Gate, add_endpoints
from paceline.serving.metrics import CallMetrics, serve_metrics

# What calls that outlived the drain get to hear of their end.
STOP_GRACE_S = 0.5
HEALTH_PERIOD_S = 1.0
# The health check of who decides whether to restart the process: it serves while a model loads.
LIVENESS = "liveness"
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_log = structlog.get_logger(__name__)


class Service(Protocol):
    """What a service is to the process that runs it. Called in the order below, each once."""

    @property
    def name(self) -> str:
        """The full name on the wire, as "paceline.v1.VerifyService"."""

    @property
    def registry(self) -> CollectorRegistry:
        """Every metric of the process."""

    @property
    def is_healthy(self) -> bool:
        """Whether it can still serve; asked every second from `ready` on."""

    def endpoints(self) -> Sequence[Endpoint]:
        """Every RPC."""

    async def start(self) -> None:
        """Loads and warms up; may take minutes. What fails here has released what it took."""

    async def drain(self) -> None:
        """Refuses new sessions and returns when the running ones have ended; may be cancelled."""

    async def stop(self) -> None:
        """Releases everything."""


def run(service: Service, config: ServerConfig) -> None:
    """Runs a service until a signal ends it.

    Raises:
        SystemExit: 1 where it could not listen or start.
    """
    logging.configure(config.log_level, config.log_format)
    try:
        placement.keep_to(config.cores)
        with serve_metrics(service.registry, config.host, config.metrics_port) as address:
            if address:
                _announce("metrics", config, address)
            status = _run(serve(service, config))
    except (FailedPrecondition, OSError) as error:
        _log.error("start_failed", error=str(error))
        status = 1
    if status:
        raise SystemExit(status)


async def serve(service: Service, config: ServerConfig) -> int:
    """Serves until SIGTERM or SIGINT and drains; a second signal exits at once.

    Returns:
        The exit status of the process: 0, or 1 where it could not listen or start.
    """
    stopping = _watch_signals()
    gate, checks = Gate(), health.aio.HealthServicer()
    await _set_health(checks, service, _NOT_SERVING)
    server, probed = _server(service, config, gate, checks), _health_server(checks)
    try:
        address = _bind(server, config.host, config.port, server_credentials(config.tls()))
        if config.health_port is not None:
            _announce("health", config, _bind(probed, config.host, config.health_port))
        await probed.start()
        await server.start()
        await checks.set(LIVENESS, _SERVING)
        _announce("listening", config, address)
        await _start(service, stopping)
    except (PacelineError, OSError) as error:
        _log.error("start_failed", error=str(error))
        await server.stop(None)
        await probed.stop(None)
        return 1
    gate.open()
    await _set_health(checks, service, _SERVING)
    _announce("ready", config, address)
    await _report_health(checks, service, stopping)
    # Liveness serves on: a process that drains is not to be restarted.
    await _set_health(checks, service, _NOT_SERVING)
    await asyncio.sleep(config.lame_duck_s)
    gate.close()
    await _drain(service, config)
    await server.stop(STOP_GRACE_S)
    await probed.stop(None)
    await service.stop()
    _log.info("stopped")
    return 0


def _run(main: Coroutine[Any, Any, int]) -> int:
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with contextlib.suppress(ImportError):  # not on every platform
        import uvloop

        loop_factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(main)


def _watch_signals() -> asyncio.Event:
    """An event that the first SIGTERM or SIGINT sets; the second ends the process."""
    stopping = asyncio.Event()

    def handle(number: signal.Signals) -> None:
        if stopping.is_set():
            os._exit(128 + number)
        _log.info("signal", name=number.name)
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handle, number)
    return stopping


def _server(
    service: Service, config: ServerConfig, gate: Gate, checks: health.aio.HealthServicer
) -> grpc.aio.Server:
    server = grpc.aio.server(options=_options(config))
    limit_bytes = config.max_message_mib * 1024 * 1024
    calls = CallMetrics(service.registry)
    add_endpoints(server, service.name, service.endpoints(), gate, limit_bytes, calls.refuse)
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    if config.reflection:
        names = (service.name, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
    return server


def _health_server(checks: health.aio.HealthServicer) -> grpc.aio.Server:
    """For probes that speak no TLS: the same answers, and nothing else."""
    server = grpc.aio.server(options=SERVER_OPTIONS)
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    return server


def _options(config: ServerConfig) -> tuple[tuple[str, int], ...]:
    if not config.max_connection_age_s:
        return SERVER_OPTIONS
    age_ms = max(1, int(config.max_connection_age_s * 1000))
    return (*SERVER_OPTIONS, ("grpc.max_connection_age_ms", age_ms))


def _bind(
    server: grpc.aio.Server, host: str, port: int, credentials: grpc.ServerCredentials | None = None
) -> str:
    """Binds a port, 0 for a free one, and gives its address.

    Raises:
        Unavailable: the address is taken or is not this machine's.
    """
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise Unavailable(f"cannot listen on {address}: {error}") from error
    return f"{address.rpartition(':')[0]}:{port}"


async def _start(service: Service, stopping: asyncio.Event) -> None:
    """Starts the service; a signal meanwhile ends the process."""
    starting = asyncio.ensure_future(service.start())
    signalled = asyncio.ensure_future(stopping.wait())
    await asyncio.wait({starting, signalled}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        # Nothing is being served, and a model that loads in a thread cannot be interrupted: an
        # orderly exit would wait for it.
        os._exit(0)
    signalled.cancel()
    starting.result()


async def _set_health(checks: health.aio.HealthServicer, service: Service, status: int) -> None:
    # "" is the process as a whole; the library has it SERVING from the first moment.
    for name in ("", service.name):
        await checks.set(name, status)


async def _report_health(
    checks: health.aio.HealthServicer, service: Service, stopping: asyncio.Event
) -> None:
    """Keeps the health checks true until the server is to stop."""
    was_healthy = True
    while not stopping.is_set():
        if service.is_healthy is not was_healthy:
            was_healthy = not was_healthy
            _log.error("health", is_healthy=was_healthy)
            status = _SERVING if was_healthy else _NOT_SERVING
            await checks.set(LIVENESS, status)
            await _set_health(checks, service, status)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HEALTH_PERIOD_S):
                await stopping.wait()


async def _drain(service: Service, config: ServerConfig) -> None:
    try:
        async with asyncio.timeout(config.drain_timeout_s):
            await service.drain()
    except TimeoutError:
        _log.warning("drain_timed_out", after_s=config.drain_timeout_s)


def _announce(event: str, config: ServerConfig, address: str) -> None:
    sys.stdout.write(f"{event} service={config.section} address={address}\n")
    sys.stdout.flush()
    _log.info(event, address=address)
