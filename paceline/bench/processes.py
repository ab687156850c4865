"""The processes of a system, as far as they run on this machine: command lines and peak memory.

Found by the addresses that they listen on. A process elsewhere or of another user is not seen.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class ServiceMemory:
    """One process."""

    address: str
    pid: int
    command: str
    """With all flags: numbers of threads among them."""
    resident_mib: float
    peak_mib: float
    """Largest resident memory since the process started, loading included."""

    def as_json(self) -> dict[str, Any]:
        """The process as written."""
        return asdict(self)


def find_processes(addresses: Sequence[str]) -> list[ServiceMemory]:
    """The processes that listen on these HOST:PORT here; empty where psutil is missing."""
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
    for address in addresses:
        host, _, port = address.rpartition(":")
        if host in own and int(port) in listening:
            found += _read(address, listening[int(port)])
    return found


def _read(address: str, pid: int) -> list[ServiceMemory]:
    """The process, or nothing when it has ended or the system does not tell."""
    folder = Path("/proc") / str(pid)
    try:
        command = folder.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        status = folder.joinpath("status").read_text()
    except OSError:
        return []
    sizes = dict(re.findall(r"(VmRSS|VmHWM):\s+(\d+) kB", status))
    resident, peak = (int(sizes.get(name, 0)) / 1024 for name in ("VmRSS", "VmHWM"))
    return [ServiceMemory(address, pid, command, resident, peak)]
