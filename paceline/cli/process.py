"""One service as a child process: its address, its readiness, its last log lines, its end.

Knows the lines that every service prints on its standard output (`metrics ...`, `listening ...`,
`ready ...`) and nothing about what the service does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence

NUM_LAST_LINES = 20
# A log line can carry a long prompt; a longer line than this is cut into pieces.
MAX_LINE_BYTES = 1 << 20

OnLine = Callable[[str, str], None]
"""Called with the service's name and each line of its log."""


class StartError(Exception):
    """A service ended, or could not be started, before it was ready."""


class ServiceProcess:
    """A child in its own process group, so that a terminal's Ctrl-C reaches the parent alone."""

    def __init__(self, name: str, arguments: Sequence[str], on_line: OnLine) -> None:
        self.name = name
        self._arguments = arguments
        self._on_line = on_line
        self._last_lines: deque[str] = deque(maxlen=NUM_LAST_LINES)
        self._process: asyncio.subprocess.Process | None = None
        self._facts: dict[str, asyncio.Future[str]] = {}
        self._readers: list[asyncio.Task[None]] = []
        self.metrics_address = ""
        """Where it serves /metrics, known once it listens; empty where it does not."""

    async def start(self, environment: Mapping[str, str]) -> None:
        """Starts `python -m NAME ARGUMENTS` with `environment` over the parent's own."""
        loop = asyncio.get_running_loop()
        self._facts = {"listening": loop.create_future(), "ready": loop.create_future()}
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            *self._arguments,
            env={**os.environ, **environment},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None and self._process.stderr is not None
        self._readers = [
            asyncio.create_task(self._read(self._process.stdout, self._take_fact)),
            asyncio.create_task(self._read(self._process.stderr, self._take_log)),
        ]

    @property
    def pid(self) -> int:
        """The child's process id; it is also the id of its process group."""
        assert self._process is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return None if self._process is None else self._process.returncode

    async def listening(self) -> str:
        """Waits for the address, HOST:PORT.

        Raises:
            StartError: the process ended first.
        """
        return await self._fact("listening")

    async def ready(self) -> str:
        """Waits until the service serves; returns its address.

        Raises:
            StartError: the process ended first.
        """
        return await self._fact("ready")

    async def wait(self) -> int:
        """Waits for the end of the process and of its output; returns the exit code."""
        assert self._process is not None
        code = await self._process.wait()
        await asyncio.wait(self._readers)  # not gather: it would cancel them with its caller
        return code

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the child's process group, if it still runs."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it ended, and asyncio has yet to see it
                os.killpg(self._process.pid, number)

    def failure(self) -> str:
        """What to print about a process that ended too early."""
        log = "\n".join(f"  {line}" for line in self._last_lines) or "  (it logged nothing)"
        return f"{self.name} ended with exit code {self.exit_code}; its last log lines:\n{log}"

    async def _fact(self, name: str) -> str:
        """Waits for one of the two lines, or for the process to end without it."""
        fact, end = self._facts[name], asyncio.create_task(self.wait())
        try:
            await asyncio.wait((fact, end), return_when=asyncio.FIRST_COMPLETED)
            if fact.done():
                return fact.result()
            raise StartError(self.failure())
        finally:
            end.cancel()

    @staticmethod
    async def _read(stream: asyncio.StreamReader, take: Callable[[str], None]) -> None:
        rest = b""
        while chunk := await stream.read(MAX_LINE_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                lines, rest = [*lines, rest], b""
            for line in lines:
                take(line.decode(errors="replace"))
        if rest:
            take(rest.decode(errors="replace"))

    def _take_fact(self, line: str) -> None:
        """Reads `listening service=NAME address=HOST:PORT` and the same with `ready`."""
        word, _, rest = line.partition(" ")
        fields = dict(item.partition("=")[::2] for item in rest.split())
        if word == "metrics":
            self.metrics_address = fields["address"]
        fact = self._facts.get(word)
        if fact is not None and not fact.done():
            fact.set_result(fields["address"])

    def _take_log(self, line: str) -> None:
        self._last_lines.append(line)
        self._on_line(self.name, line)
