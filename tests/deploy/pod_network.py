"""A network for pods on one machine: a namespace each, on a bridge, and a name service.

Needs root and `ip`. The name service answers as a cluster's does: every ready address of a headless
Service, and "no such name" where there is none.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

_QUERY_A = 1
_ANSWERS, _NO_SUCH_NAME = 0x8580, 0x8583
# The lifetime of an answer, in seconds, as CoreDNS gives it to Services.
_TTL_S = 5


class PodNetwork:
    """Owns a bridge, the namespaces on it, and the name service at its address."""

    def __init__(self, addresses_of: Callable[[str], Sequence[str]]) -> None:
        links = Path("/sys/class/net")
        number = next(n for n in itertools.count(os.getpid()) if not (links / f"pl{n}").exists())
        self._name = f"pl{number}"
        self._prefix = f"10.213.{number % 254 + 1}"
        self._hosts = itertools.count(2)
        self._spaces: list[str] = []
        _ip("link", "add", self._name, "type", "bridge")
        _ip("addr", "add", f"{self.gateway}/24", "dev", self._name)
        _ip("link", "set", self._name, "up")
        self._names = NameService(self.gateway, addresses_of)

    @property
    def gateway(self) -> str:
        """The machine's own address on the bridge."""
        return f"{self._prefix}.1"

    def add(self) -> tuple[str, str]:
        """A new namespace; gives its name and its address."""
        host = next(self._hosts)
        space, outer, inner = (f"{self._name}{kind}{host}" for kind in ("n", "a", "b"))
        address = f"{self._prefix}.{host}"
        self._spaces.append(space)
        _ip("netns", "add", space)
        _ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", space)
        _ip("link", "set", outer, "master", self._name, "up")
        _ip("-n", space, "addr", "add", f"{address}/24", "dev", inner)
        _ip("-n", space, "link", "set", inner, "up")
        _ip("-n", space, "link", "set", "lo", "up")
        # `ip netns exec` puts these over /etc for the process that it starts.
        files = Path("/etc/netns", space)
        files.mkdir(parents=True)
        (files / "resolv.conf").write_text(f"nameserver {self.gateway}\noptions timeout:1\n")
        return space, address

    def close(self) -> None:
        """Takes everything away."""
        self._names.close()
        for space in self._spaces:
            _ip("netns", "del", space)
            (Path("/etc/netns", space) / "resolv.conf").unlink()
            Path("/etc/netns", space).rmdir()
        _ip("link", "del", self._name)


class NameService:
    """Answers queries for IPv4 addresses over UDP."""

    def __init__(self, address: str, addresses_of: Callable[[str], Sequence[str]]) -> None:
        self._addresses_of = addresses_of
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((address, 53))
        self._address = address
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread, by an empty message."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"", (self._address, 53))
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        while True:
            query, sender = self._socket.recvfrom(1024)
            if not query:
                return
            self._socket.sendto(self._answer(query), sender)

    def _answer(self, query: bytes) -> bytes:
        labels, position = [], 12
        while length := query[position]:
            labels.append(query[position + 1 : position + 1 + length].decode())
            position += 1 + length
        question = query[12 : position + 5]
        (kind,) = struct.unpack("!H", query[position + 1 : position + 3])
        found = self._addresses_of(".".join(labels))
        sent = found if kind == _QUERY_A else ()
        flags = _ANSWERS if found else _NO_SUCH_NAME
        header = query[:2] + struct.pack("!HHHHH", flags, 1, len(sent), 0, 0)
        record = struct.pack("!HHHIH", 0xC00C, _QUERY_A, 1, _TTL_S, 4)
        return header + question + b"".join(record + socket.inet_aton(one) for one in sent)


def _ip(*arguments: str) -> None:
    subprocess.run(("ip", *arguments), check=True)
