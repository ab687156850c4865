"""The processes of a system, as far as they run on this machine: command lines and peak memory.

Found by the addresses that they listen on. A process elsewhere or of another user is not seen.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ServiceMemory:
    """One process."""

    service: str
    address: str
    pid: int
    command: str
    """With all flags: numbers of threads among them."""
    resident_mib: float
    peak_mib: float
    """Largest resident memory since the process started, loading included."""


def find_processes(services: Sequence[tuple[str, str]]) -> list[ServiceMemory]:
    """Those of (service, HOST:PORT) that listen on this machine; empty where psutil is missing."""
    if importlib.util.find_spec("psutil") is None:
        return []
    import psutil

    try:
        listening = {
            socket.laddr.port: socket.pid
            for socket in psutil.net_connections("tcp")
            if socket.status == psutil.CONN_LISTEN and socket.pid is not None
        }
    except psutil.AccessDenied:
        return []
    own = {"localhost", *(one.address for all_ in psutil.net_if_addrs().values() for one in all_)}
    found = []
    for service, address in services:
        host, _, port = address.rpartition(":")
        if host in own and int(port) in listening:
            found += _read(service, address, listening[int(port)])
    return found


def _read(service: str, address: str, pid: int) -> list[ServiceMemory]:
    """The process, or nothing when it has ended or the system does not tell."""
    folder = Path("/proc") / str(pid)
    try:
        command = folder.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        status = folder.joinpath("status").read_text()
    except OSError:
        return []
    sizes = dict(re.findall(r"(VmRSS|VmHWM):\s+(\d+) kB", status))
    resident, peak = (int(sizes.get(name, 0)) / 1024 for name in ("VmRSS", "VmHWM"))
    return [ServiceMemory(service, address, pid, command, resident, peak)]
