"""The processes of a system are found by the addresses that they listen on."""

from __future__ import annotations

import os
import socket

import pytest

from paceline.bench.processes import find_processes


def test_finds_who_listens() -> None:
    """This very process, with its command line and memory."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        (found,) = find_processes([("verify", address)])
    assert ("verify", address, os.getpid()) == (found.service, found.address, found.pid)
    assert "python" in found.command
    assert 0 < found.resident_mib <= found.peak_mib


def test_others_are_not_seen() -> None:
    """A port where nobody listens any more, and one of another machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert [] == find_processes([("draft", f"192.0.2.1:{port}")])
    assert [] == find_processes([("draft", f"127.0.0.1:{port}"), ("verify", "unix:x")])


def test_without_psutil_nothing_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes with an extra."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert [] == find_processes([("draft", "127.0.0.1:1")])
