"""`paceline up` over services of a few lines: order of start and end, and every way to fail."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.cli.process import MAX_LINE_BYTES, ServiceProcess
from paceline.cli.stack import StackOptions

# Found before the real ones, because `python -m` looks in the working directory first.
SERVICE = """
import pathlib, signal, sys, threading
name = pathlib.Path(sys.argv[0]).stem.removesuffix("_service")
address = name + ":1"
stop = threading.Event()

def end(*_):
    with open("ends", "a") as ends:
        ends.write(name + "\\n")
    stop.set()

signal.signal(signal.SIGTERM, end)
pathlib.Path(name + ".argv").write_text(" ".join(sys.argv[1:]))
pathlib.Path(name + ".environment").write_text(__import__("os").environ["OMP_WAIT_POLICY"])
print("log of " + name, file=sys.stderr, flush=True)
print(f"listening service={name} address={address}", flush=True)
"""
READY = 'print(f"ready service={name} address={address}", flush=True)\nstop.wait()\n'
GATEWAY = """
import grpc
from concurrent.futures import ThreadPoolExecutor
from paceline.v1 import gateway_pb2, gateway_pb2_grpc

class Gateway(gateway_pb2_grpc.GatewayServiceServicer):
    def ListModels(self, request, context):
        tiers = sum(sys.argv.count(flag) for flag in ("--verify", "--draft"))
        replicas = [gateway_pb2.Replica(is_ready=True)] * tiers
        return gateway_pb2.ListModelsResponse(replicas=replicas)

    Generate = Complete = Tokenize = Detokenize = ListModels

server = grpc.server(ThreadPoolExecutor())
gateway_pb2_grpc.add_GatewayServiceServicer_to_server(Gateway(), server)
address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
server.start()
print(f"listening service={name} address={address}", flush=True)
"""
GATEWAY_SERVICE = SERVICE.rpartition("print(f")[0] + GATEWAY + READY


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with three small services."""
    (tmp_path / "verify_service.py").write_text(SERVICE + READY)
    (tmp_path / "draft_service.py").write_text(SERVICE + READY)
    (tmp_path / "gateway.py").write_text(GATEWAY_SERVICE)
    return tmp_path


class Up:
    """A running `paceline up` and what it printed so far."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "paceline.cli.main", "up", *flags],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, start: str) -> str:
        """Reads on until a line starts like this."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if line.startswith(start):
                return self.lines[-1]
        raise AssertionError(f"ended without {start!r}: {self.lines}")

    def pid(self, name: str) -> int:
        """The pid that was printed for a service."""
        (line,) = [line for line in self.lines if line.startswith(f"pid {name}=")]
        return int(re.split("[= ]", line)[2])

    def end(self) -> tuple[int, str]:
        """The exit code and standard error, once it has ended."""
        output, errors = self.process.communicate(timeout=60)
        self.lines += output.splitlines()
        return self.process.returncode, errors


@pytest.fixture
def ups() -> Iterator[list[Up]]:
    """Holds what a test starts and ends what is left of it."""
    started: list[Up] = []
    yield started
    for up in started:
        for line in up.lines:
            if line.startswith("pid ") and _is_alive(pid := int(re.split("[= ]", line)[2])):
                os.kill(pid, signal.SIGKILL)
        up.process.kill()
        up.process.communicate()


def _start(ups: list[Up], folder: Path, *flags: str) -> Up:
    ups.append(Up(folder, "--gateway-port", "0", *flags))
    return ups[-1]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.e2e
def test_starts_all_and_drains_all(folder: Path, ups: list[Up]) -> None:
    """Prints every pid, then readiness; SIGTERM ends the gateway first, and exits with 0."""
    up = _start(ups, folder)
    ready = up.wait_for("ready gateway=")
    assert re.fullmatch(r"ready gateway=127\.0\.0\.1:\d+", ready)
    assert re.fullmatch(r"pid verify=\d+ address=verify:1", up.lines[0])
    pids = [up.pid(name) for name in ("verify", "draft", "gateway")]
    assert all(map(_is_alive, pids))

    up.process.send_signal(signal.SIGTERM)
    code, errors = up.end()
    assert code == 0
    assert {"log of verify", "log of draft", "log of gateway"} == set(errors.splitlines())
    first, *rest = (folder / "ends").read_text().split()
    assert (first, sorted(rest)) == ("gateway", ["draft", "verify"])
    assert not any(map(_is_alive, pids))


@pytest.mark.e2e
def test_metrics_addresses_are_printed(folder: Path, ups: list[Up]) -> None:
    """Every service is told to serve metrics on a free port, and where it does is printed."""
    metrics = "print(f\"metrics service={name} address=\" + __import__('os').environ["
    told = metrics + "f'PACELINE_{name.upper()}_METRICS_PORT'], flush=True)\n"
    for name in ("verify_service", "draft_service", "gateway"):
        path = folder / f"{name}.py"
        path.write_text(path.read_text().replace('print(f"listening', told + 'print(f"listening'))
    up = _start(ups, folder)
    up.wait_for("ready")
    lines = [line for line in up.lines if line.startswith("pid ")]
    assert ["0", "0", "0"] == [line.partition(" metrics=")[2] for line in lines]


@pytest.mark.e2e
def test_flags_reach_the_services(folder: Path, ups: list[Up]) -> None:
    """Target, sources, threads, replicas and rule arrive where they belong."""
    flags = "--target T --draft D --verify-replicas 2 --verify-threads 3 --draft-threads 1"
    up = _start(ups, folder, *flags.split(), "--rule", "rejection-token")
    up.wait_for("ready")
    written = {
        name: (folder / f"{name}.argv").read_text() for name in ("verify", "draft", "gateway")
    }
    assert written["verify"].startswith("--model T --port 0 --threads 3")
    assert written["draft"].startswith("--target T --source D --source ngram --port 0 --threads 1")
    tiers = "--verify verify:1 --verify verify:1 --draft draft:1 --port 0"
    assert written["gateway"].startswith(f"{tiers} --default-rule rejection-token")
    assert (folder / "verify.environment").read_text() == "PASSIVE"


def test_exact_is_the_verify_tiers_alone() -> None:
    """--exact reaches the target; what a draft computes decides nothing."""
    assert ("--exact",) == StackOptions(exact=True).verify_command[-1:]
    assert "--exact" not in StackOptions().verify_command
    assert "--exact" not in StackOptions(exact=True).draft_command


@pytest.mark.parametrize(
    ("target", "sources"),
    [
        ("smollm2", ("quantized:int4", "ngram")),
        ("quantized:int8:smollm2", ("quantized:int4", "ngram")),
        ("quantized:int4:smollm2", ("ngram",)),
        ("table:T.json", ("ngram",)),
    ],
)
def test_the_draft_that_a_target_gets(target: str, sources: tuple[str, ...]) -> None:
    """Its own weights at 4 bits, unless it has no more bits itself."""
    assert sources == StackOptions(target=target).sources


@pytest.mark.e2e
def test_no_draft_tier(folder: Path, ups: list[Up]) -> None:
    """--draft none starts two processes."""
    up = _start(ups, folder, "--draft", "none")
    up.wait_for("ready")
    assert ["verify", "gateway"] == [re.split("[ =]", line)[1] for line in up.lines[:-1]]


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["verify_service", "draft_service", "gateway"])
def test_death_at_start(folder: Path, ups: list[Up], name: str) -> None:
    """A service that ends before it is ready ends all with 1 and its last log lines."""
    text = (folder / f"{name}.py").read_text()
    (folder / f"{name}.py").write_text(text.replace(READY, "sys.exit('no such model')"))
    code, errors = _start(ups, folder).end()
    assert code == 1
    short = name.removesuffix("_service")
    assert f"error: {short} ended with exit code 1; its last log lines:" in errors
    assert "  no such model" in errors


@pytest.mark.e2e
def test_death_before_the_gateway_found_it(folder: Path, ups: list[Up]) -> None:
    """A tier that was ready and died before the first request is a failed start as well."""
    text = (folder / "draft_service.py").read_text()
    (folder / "draft_service.py").write_text(text.replace("stop.wait()", "sys.exit('too hot')"))
    text = (folder / "gateway.py").read_text()
    (folder / "gateway.py").write_text(
        text.replace("replicas = [", "tiers = 1\n        replicas = [")
    )
    code, errors = _start(ups, folder).end()
    assert code == 1
    assert "error: draft ended with exit code 1" in errors


@pytest.mark.e2e
def test_death_of_a_tier_is_reported_and_survived(folder: Path, ups: list[Up]) -> None:
    """A draft that dies is left to the gateway: it is reported, the rest goes on."""
    up = _start(ups, folder)
    up.wait_for("ready")
    os.kill(up.pid("draft"), signal.SIGKILL)
    assert f"exited draft={up.pid('draft')} code=-9" == up.wait_for("exited")
    assert _is_alive(up.pid("gateway"))
    assert up.process.poll() is None


@pytest.mark.e2e
def test_death_of_the_gateway_ends_all(folder: Path, ups: list[Up]) -> None:
    """Without its gateway the rest is drained, and the exit code is 1."""
    up = _start(ups, folder)
    up.wait_for("ready")
    os.kill(up.pid("gateway"), signal.SIGKILL)
    code, errors = up.end()
    assert code == 1
    assert "error: the gateway ended" in errors
    assert sorted((folder / "ends").read_text().split()) == ["draft", "verify"]


@pytest.mark.e2e
def test_second_signal_kills(folder: Path, ups: list[Up]) -> None:
    """A service that does not drain is killed by the second signal."""
    text = (folder / "gateway.py").read_text()
    (folder / "gateway.py").write_text(text.replace("    stop.set()\n", ""))
    up = _start(ups, folder)
    up.wait_for("ready")
    up.process.send_signal(signal.SIGTERM)
    while not (folder / "ends").exists():
        assert up.process.poll() is None
    up.process.send_signal(signal.SIGTERM)
    code, _ = up.end()
    assert code == 1
    assert not _is_alive(up.pid("gateway"))


@pytest.mark.e2e
def test_signal_while_starting(folder: Path, ups: list[Up]) -> None:
    """SIGTERM before readiness ends what was started, with 0."""
    text = (folder / "verify_service.py").read_text()
    (folder / "verify_service.py").write_text(text.replace(READY, "stop.wait()"))
    up = _start(ups, folder)
    up.wait_for("pid gateway=")
    up.process.send_signal(signal.SIGTERM)
    assert up.end()[0] == 0
    assert not any(_is_alive(up.pid(name)) for name in ("verify", "draft", "gateway"))


async def test_a_long_line_comes_in_pieces() -> None:
    """A child whose log nobody reads on would stop at its next line."""
    reader, lines = asyncio.StreamReader(), list[str]()
    long = "x" * (3 * MAX_LINE_BYTES)
    reader.feed_data(f"one\n{long}\ntwo\nend".encode())
    reader.feed_eof()
    await ServiceProcess._read(reader, lines.append)
    assert ["one", "two", "end"] == [lines[0], *lines[-2:]]
    assert long == "".join(lines[1:-2])
    assert max(map(len, lines)) <= 2 * MAX_LINE_BYTES
