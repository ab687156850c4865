"""The replicas of a tier: found by address or DNS name, described once connected, watched for load.

Which replica suits a generation is the caller's question; the answer to it, least loaded first, is
given here. It does not know what a tier does.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import grpc
import structlog

from paceline.errors import PacelineError
from paceline.records import ReplicaLoad
from paceline.serving.channels import open_channel
from paceline.serving.credentials import ClientTls
from paceline.serving.statuses import error_of


class Description(Protocol):
    """What every replica says of itself, whatever its tier."""

    @property
    def zone(self) -> str:
        """Where it runs; empty where it was not told."""


DescriptionT = TypeVar("DescriptionT", bound=Description)

_FIRST_RETRY_S, _LAST_RETRY_S = 0.1, 1.0
_POLL_S = 0.05
_MAX_REOPENINGS = 8
_FAR_FACTOR, _FAR_SESSIONS = 2, 4
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TierClient(Generic[DescriptionT]):
    """How one asks a replica of a tier about itself."""

    name: str
    describe: Callable[[grpc.aio.Channel], Awaitable[DescriptionT]]
    watch: Callable[[grpc.aio.Channel], AsyncIterator[ReplicaLoad]]


class Replica(Generic[DescriptionT]):
    """One replica: its connection, what it said of itself, and how busy it is."""

    def __init__(
        self, address: str, server_name: str, client: TierClient[DescriptionT], tls: ClientTls
    ) -> None:
        self.address = address
        self._server_name = server_name
        self._tls = tls
        self._shown = tls.get()
        self.channel = open_channel(address, self._shown, server_name)
        self.description: DescriptionT | None = None
        self.load: ReplicaLoad | None = None
        self.num_drafted = 0
        self.num_accepted = 0
        self._client = client
        self._is_connected = False
        self._num_opened = 0
        self.tried = asyncio.Event()
        """Set once the first attempt to connect has ended, well or not."""
        self._task = asyncio.create_task(self._run())

    @property
    def is_ready(self) -> bool:
        """Whether it takes new sessions."""
        return self._is_connected and not (self.load is not None and self.load.is_draining)

    @property
    def zone(self) -> str:
        """Where it runs, as it says; empty before it was asked."""
        return "" if self.description is None else self.description.zone

    @property
    def num_sessions(self) -> int:
        """Sessions open at the last report and opened from here since."""
        return (self.load.num_open_sessions if self.load else 0) + self._num_opened

    def count_session(self) -> None:
        """Notes that a session was opened, until a report includes it."""
        self._num_opened += 1

    def stop(self) -> None:
        """Watches no longer and takes no new sessions; streams that run are left alone."""
        self._is_connected = False
        self.tried.set()
        self._task.cancel()

    async def _run(self) -> None:
        delay_s = _FIRST_RETRY_S
        while True:
            try:
                self.description = await self._client.describe(self.channel)
                self._set_connected(True)
                async for load in self._client.watch(self.channel):
                    self.load, self._num_opened = load, 0
                    delay_s = _FIRST_RETRY_S
            except (grpc.aio.AioRpcError, PacelineError, OSError) as error:
                known = error_of(error) if isinstance(error, grpc.aio.AioRpcError) else error
                # Told once of a new replica, as where its certificate is not believed.
                log = _log.debug if self.tried.is_set() else _log.warning
                log("replica_away", address=self.address, error=str(known))
            self._set_connected(False)
            self._show_anew()
            # Jitter, so that gateways do not come back to a restarted replica in step.
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))
            delay_s = min(2 * delay_s, _LAST_RETRY_S)

    def _show_anew(self) -> None:
        """A new channel where its credentials' files have changed; streams keep the old one."""
        shown = self._tls.get()
        if shown is not self._shown:
            self._shown = shown
            self.channel = open_channel(self.address, shown, self._server_name)

    def _set_connected(self, is_connected: bool) -> None:
        if is_connected != self._is_connected:
            event = "replica_up" if is_connected else "replica_down"
            _log.info(event, tier=self._client.name, address=self.address)
        self._is_connected = is_connected
        self.tried.set()


class Replicas(Generic[DescriptionT]):
    """Owns the replicas of one tier."""

    def __init__(
        self,
        targets: Sequence[str],
        client: TierClient[DescriptionT],
        *,
        resolve_period_s: float,
        tls: ClientTls,
        zone: str = "",
    ) -> None:
        self._zone = zone
        self._targets = targets
        self._client = client
        self._tls = tls
        self._resolve_period_s = resolve_period_s
        self._found: dict[str, list[str]] = {}
        """The addresses behind each target, as the name service last said."""
        self._replicas: dict[str, Replica[DescriptionT]] = {}
        self._task: asyncio.Task[None] | None = None
        self.reopening = asyncio.Semaphore(_MAX_REOPENINGS)
        """Held while a lost session is opened again: a replica's death must not storm the rest."""

    @property
    def targets(self) -> Sequence[str]:
        """The addresses and names that were configured."""
        return self._targets

    def all(self) -> list[Replica[DescriptionT]]:
        """Every replica known, ready or not."""
        return list(self._replicas.values())

    def ready(self) -> list[tuple[Replica[DescriptionT], DescriptionT]]:
        """The replicas that take new sessions, in the order they were found."""
        return [
            (replica, replica.description)
            for replica in self._replicas.values()
            if replica.is_ready and replica.description is not None
        ]

    def pick(
        self,
        fits: Callable[[DescriptionT], bool],
        *,
        excluded: Collection[str] = (),
        avoided: Collection[str] = (),
        preferred: str = "",
    ) -> Replica[DescriptionT] | None:
        """The preferred one of the ready replicas that fit, else the least loaded.

        A replica outside of the own zone counts as if it had twice its sessions and four more. An
        avoided one is picked only if there is no other.
        """
        fitting = [
            replica
            for replica, description in self.ready()
            if replica.address not in excluded and fits(description)
        ]
        fitting = [r for r in fitting if r.address not in avoided] or fitting
        fitting = [r for r in fitting if r.address == preferred] or fitting
        if not fitting:
            return None
        return min(fitting, key=lambda replica: (self._burden(replica), random.random()))

    def _burden(self, replica: Replica[DescriptionT]) -> int:
        """Sessions, more for a way that is longer: rounds should not cross zones without need."""
        if self._zone in ("", replica.zone):
            return replica.num_sessions
        return _FAR_FACTOR * replica.num_sessions + _FAR_SESSIONS

    async def start(self) -> None:
        """Finds the replicas and keeps looking for new ones."""
        await self._resolve()
        self._task = asyncio.create_task(self._keep_resolving())

    async def wait_ready(self) -> None:
        """Returns once a replica is ready."""
        while not self.ready():
            await asyncio.sleep(_POLL_S)

    async def wait_tried(self) -> None:
        """Returns once each replica known now was asked once, whether or not it answered."""
        for replica in self.all():
            await replica.tried.wait()

    async def stop(self) -> None:
        """Lets go of every replica."""
        if self._task is not None:
            self._task.cancel()
        for replica in self._replicas.values():
            replica.stop()
            await replica.channel.close()

    async def _keep_resolving(self) -> None:
        while True:
            await asyncio.sleep(self._resolve_period_s * random.uniform(0.8, 1.2))
            await self._resolve()

    async def _resolve(self) -> None:
        for target in self._targets:
            try:
                self._found[target] = await _addresses(target)
            except OSError as error:
                # A name service that is away must not empty a tier: what the name meant stays.
                _log.warning("resolve_failed", target=target, error=str(error))
        # An address says nothing of who is there: with TLS it must show a certificate for the name.
        found = {address: _host(target) for target, some in self._found.items() for address in some}
        for address in [a for a in self._replicas if a not in found]:
            self._replicas.pop(address).stop()
        for address, host in found.items():
            if address not in self._replicas:
                self._replicas[address] = Replica(address, host, self._client, self._tls)


def _host(target: str) -> str:
    return target.rpartition(":")[0].strip("[]")


async def _addresses(target: str) -> list[str]:
    """Every address behind host:port, IPv4 where there is any; none for a name that has none.

    Raises:
        OSError: the name service did not answer.
    """
    port = target.rpartition(":")[2]
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(_host(target), int(port), type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        # How a name service says that a tier was scaled to nothing.
        if error.errno in (socket.EAI_NONAME, socket.EAI_NODATA):
            return []
        raise
    family = socket.AF_INET if any(f[0] == socket.AF_INET for f in found) else socket.AF_INET6
    hosts = {str(f[4][0]) for f in found if f[0] == family}
    form = "{}:{}" if family == socket.AF_INET else "[{}]:{}"
    return [form.format(address, port) for address in sorted(hosts)]
