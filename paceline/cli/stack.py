"""The three services on this machine, as child processes: started, watched, drained.

Knows the flags of the services and the order in which they start and stop. It restarts nothing:
a tier that dies is the gateway's failover to handle, and is only reported.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from paceline.cli.client import Stub, connect
from paceline.cli.process import OnLine, ServiceProcess, StartError
from paceline.serving.placement import num_cores
from paceline.v1 import gateway_pb2

POLL_S = 0.05
# A gateway that has its replicas' addresses finds them in a second or two; past this something is
# wrong between them, and saying so beats waiting.
DISCOVERY_TIMEOUT_S = 60.0
# Every process serves /metrics, on a free port unless said otherwise.
_METRICS_PORTS = tuple(f"PACELINE_{name}_METRICS_PORT" for name in ("VERIFY", "DRAFT", "GATEWAY"))
_NOT_CHEAPER_AT_4_BITS = ("table:", "quantized:int4:")
"""How targets begin that no rounded copy of theirs can draft for."""


@dataclass(frozen=True, slots=True)
class StackOptions:
    """What to start. Fields are the options of `paceline up`."""

    target: str = "smollm2"
    draft: str = ""
    """First draft source; empty chooses one for the target, `none` starts no draft tier."""
    rule: str = "rejection-block"
    gateway_port: int = 50051
    verify_replicas: int = 1
    draft_replicas: int = 1
    verify_threads: int = field(default_factory=num_cores)
    draft_threads: int = field(default_factory=num_cores)
    omp_wait_policy: str = "passive"
    exact: bool = False
    """Whether the verify tier runs exact; the draft's arithmetic decides nothing."""
    log_format: str = "json"
    settings: Mapping[str, str] = field(default_factory=dict)
    """Variables with more settings of the services; the parent's own variables go before them."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Draft sources served, the default first; prompt lookup is cheap and always one."""
        has_none = self.target.startswith(_NOT_CHEAPER_AT_4_BITS)
        first = self.draft or ("ngram" if has_none else "quantized:int4")
        return ("ngram",) if first == "ngram" else (first, "ngram")

    @property
    def environment(self) -> dict[str, str]:
        """What the children's environment adds.

        Threads that wait must sleep: spinning, they take the cores that another tier works on.
        """
        wanted = dict.fromkeys(_METRICS_PORTS, "0") | dict(self.settings)
        settings = {name: os.environ.get(name, value) for name, value in wanted.items()}
        # The services do not read the command line's file: its tables for them are in `settings`.
        return settings | {"OMP_WAIT_POLICY": self.omp_wait_policy.upper(), "PACELINE_CONFIG": ""}

    @property
    def shared_flags(self) -> tuple[str, ...]:
        """Flags that every service takes."""
        return ("--log-format", self.log_format)

    @property
    def verify_command(self) -> tuple[str, ...]:
        """Module and flags of a verify replica."""
        threads = ("--threads", str(self.verify_threads))
        exact = ("--exact",) if self.exact else ()
        return ("verify_service", "--model", self.target, "--port", "0", *threads, *exact)

    @property
    def draft_command(self) -> tuple[str, ...]:
        """Module and flags of a draft replica."""
        sources = tuple(flag for source in self.sources for flag in ("--source", source))
        threads = ("--threads", str(self.draft_threads))
        return ("draft_service", "--target", self.target, *sources, "--port", "0", *threads)

    def gateway_command(self, verify: Sequence[str], draft: Sequence[str]) -> tuple[str, ...]:
        """Module and flags of the gateway for the addresses of the two tiers."""
        tiers = [("--verify", address) for address in verify]
        tiers += [("--draft", address) for address in draft]
        flags = tuple(part for pair in tiers for part in pair)
        port = ("--port", str(self.gateway_port))
        return ("gateway", *flags, *port, "--default-rule", self.rule)


Report = Callable[[str], None]
"""Called with each line that says what was started or has ended."""


class Stack:
    """Owns the child processes."""

    def __init__(self, options: StackOptions, report: Report, on_line: OnLine) -> None:
        self._options = options
        self._report = report
        self._on_line = on_line
        self._verify: list[ServiceProcess] = []
        self._draft: list[ServiceProcess] = []
        self._gateway: list[ServiceProcess] = []
        """Empty before it is started, then one."""
        self.is_killed = False
        """Whether `kill` was called, so that running generations were cut short."""

    async def start(self) -> str:
        """Starts everything; returns the gateway's address once it reaches every replica.

        Raises:
            StartError: a service ended before it was ready, or the gateway cannot reach one.
        """
        options = self._options
        num_draft = 0 if options.draft == "none" else options.draft_replicas
        for _ in range(options.verify_replicas):
            await self._spawn(self._verify, "verify", options.verify_command)
        for _ in range(num_draft):
            await self._spawn(self._draft, "draft", options.draft_command)
        verify, draft = await self._addresses(self._verify), await self._addresses(self._draft)
        await self._spawn(self._gateway, "gateway", options.gateway_command(verify, draft))
        (address,) = await self._addresses(self._gateway)
        await asyncio.gather(*(process.ready() for process in self._processes))
        await self._reached(address, len(verify) + len(draft))
        return address

    async def watch(self) -> int:
        """Waits for the gateway's end, reporting every other end; returns the gateway's code."""
        ends = {asyncio.create_task(self._ended(process)) for process in self._processes}
        gateway = asyncio.create_task(self._gateway[0].wait())
        try:
            return await gateway
        finally:
            for task in ends:
                task.cancel()

    async def drain(self) -> None:
        """Ends the gateway first, so that running generations keep their tiers, then the tiers."""
        for processes in (self._gateway, self._verify + self._draft):
            for process in processes:
                process.send(signal.SIGTERM)
            await asyncio.gather(*(process.wait() for process in processes))

    def kill(self) -> None:
        """Ends everything at once."""
        self.is_killed = True
        for process in self._processes:
            process.send(signal.SIGKILL)

    async def kill_replica(self, address: str) -> None:
        """Ends one replica of a tier, as if its machine were lost."""
        for process in self._verify + self._draft:
            if await process.listening() == address:
                process.send(signal.SIGKILL)

    @property
    def _processes(self) -> list[ServiceProcess]:
        return self._verify + self._draft + self._gateway

    async def _spawn(self, into: list[ServiceProcess], name: str, command: Sequence[str]) -> None:
        process = ServiceProcess(name, (*command, *self._options.shared_flags), self._on_line)
        await process.start(self._options.environment)
        into.append(process)

    async def _addresses(self, processes: Sequence[ServiceProcess]) -> list[str]:
        """Waits until all listen, and reports each with its pid."""
        addresses = await asyncio.gather(*(process.listening() for process in processes))
        for process, address in zip(processes, addresses, strict=True):
            metrics = f" metrics={process.metrics_address}" if process.metrics_address else ""
            self._report(f"pid {process.name}={process.pid} address={address}{metrics}")
        return addresses

    async def _reached(self, address: str, num_replicas: int) -> None:
        """Waits until the gateway counts every replica as ready."""
        try:
            async with asyncio.timeout(DISCOVERY_TIMEOUT_S), connect(address) as gateway:
                while await _num_ready(gateway) < num_replicas:
                    for process in self._processes:
                        if process.exit_code is not None:
                            raise StartError(process.failure())
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            message = "the gateway does not reach every replica that was started"
            raise StartError(message) from None

    async def _ended(self, process: ServiceProcess) -> None:
        code = await process.wait()
        self._report(f"exited {process.name}={process.pid} code={code}")


async def _num_ready(gateway: Stub) -> int:
    models = await gateway.ListModels(gateway_pb2.ListModelsRequest())
    return sum(replica.is_ready for replica in models.replicas)
