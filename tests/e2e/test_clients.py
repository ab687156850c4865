"""The clients in clients/ do what they show, on a running system, as they are."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from paceline.v1 import gateway_pb2 as pb
from paceline.v1 import gateway_pb2_grpc

if TYPE_CHECKING:
    from tests.e2e.conftest import Running

pytestmark = pytest.mark.e2e

CLIENTS = Path(__file__).parents[2] / "clients"
PROMPT = "abc"
# What every client prints: text, figures, a refusal with its ErrorInfo, a deadline.
SHOWN = re.compile(
    r"[a-g]{32}\n32 tokens in \d+ rounds\n"
    r"INVALID_ARGUMENT: sampling.temperature: must be in [^\n]*\n"
    r"paceline INVALID_ARGUMENT \{\}\n"
    r"DEADLINE_EXCEEDED after \d+ tokens\n"
)


# With a gateway that has nothing to say: no text, figures of 0, statuses without details.
SILENT = (
    "\n0 tokens in 0 rounds\n"
    "DEADLINE_EXCEEDED: because the test says so\n"
    "DEADLINE_EXCEEDED after 0 tokens\n"
)


@dataclass
class Scripted(gateway_pb2_grpc.GatewayServiceServicer):
    """A gateway that ends calls as it is told: OK for a stream of nothing."""

    address: str = ""
    text: grpc.StatusCode = grpc.StatusCode.OK
    refusal: grpc.StatusCode = grpc.StatusCode.DEADLINE_EXCEEDED
    deadline: grpc.StatusCode = grpc.StatusCode.DEADLINE_EXCEEDED
    asked: str = ""
    """The last prompt."""

    def Generate(
        self, request: pb.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.GenerateResponse]:
        """No text, no tokens, no rounds."""
        self.asked = request.prompt.chat.messages[0].content
        yield pb.GenerateResponse(tokens=pb.Tokens())
        code = self.deadline if request.sampling.ignore_eos else self.text
        if code is not grpc.StatusCode.OK:
            context.abort(code, "because the test says so")
        finished = pb.Finished(usage=pb.Usage(), stats=pb.GenerationStats())
        yield pb.GenerateResponse(finished=finished)

    def Complete(
        self, request: pb.CompleteRequest, context: grpc.ServicerContext
    ) -> pb.CompleteResponse:
        """A status without details, or nothing."""
        if self.refusal is not grpc.StatusCode.OK:
            context.abort(self.refusal, "because the test says so")
        return pb.CompleteResponse()


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    """A scripted gateway on a free port."""
    gateway = Scripted()  # type: ignore[abstract]  # clients call nothing else
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    gateway_pb2_grpc.add_GatewayServiceServicer_to_server(gateway, server)
    gateway.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield gateway
    server.stop(None).wait()


def finish(
    *command: str, cwd: Path = CLIENTS, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def run(*command: str, cwd: Path = CLIENTS, **environment: str) -> str:
    """What a command prints, which must be all it has to say."""
    done = finish(*command, cwd=cwd, **environment)
    assert (0, "") == (done.returncode, done.stderr), done.stdout
    return done.stdout


def found(name: str) -> str:
    """The path of a program; beside the interpreter goes first."""
    here = str(Path(sys.executable).parent)
    path = shutil.which(name, path=f"{here}{os.pathsep}{os.environ.get('PATH', '')}")
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def test_python(pair: Running) -> None:
    """With the modules of this package."""
    root = str(CLIENTS.parent)
    printed = run(sys.executable, "python/client.py", pair.address, PROMPT, PYTHONPATH=root)
    assert SHOWN.fullmatch(printed), printed


def test_python_and_a_status_without_details(scripted: Scripted) -> None:
    """As a deadline or a proxy ends calls: printed, and the client goes on."""
    root = str(CLIENTS.parent)
    printed = run(sys.executable, "python/client.py", scripted.address, PYTHONPATH=root)
    assert SILENT == printed


@pytest.fixture(scope="module")
def node_client(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Node, and a copy of the client with the packages that its lock file names."""
    node, npm = found("node"), found("npm")
    root = tmp_path_factory.mktemp("node")
    shutil.copytree(CLIENTS, root / "clients", ignore=shutil.ignore_patterns("node_modules"))
    shutil.copytree(CLIENTS.parent / "protos", root / "protos")
    folder = root / "clients" / "node"
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=100, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip("npm waits for its registry")
    if re.search("network|ENOTCACHED|npm error code E[45]", done.stderr):
        pytest.skip("npm reaches no registry")
    assert 0 == done.returncode, done.stderr
    return node, folder


def test_node(pair: Running, node_client: tuple[str, Path]) -> None:
    """With grpc-js and the protos, nothing generated."""
    node, folder = node_client
    printed = run(node, "client.js", pair.address, PROMPT, cwd=folder)
    assert SHOWN.fullmatch(printed), printed


def test_node_and_what_is_not_sent(scripted: Scripted, node_client: tuple[str, Path]) -> None:
    """Empty text, counts of 0 and a status without details."""
    node, folder = node_client
    assert SILENT == run(node, "client.js", scripted.address, cwd=folder)


def test_grpcurl(pair: Running) -> None:
    """Answers are JSON; the ErrorInfo is printed by name, with the field that is wrong."""
    printed = run("bash", "grpcurl/client.sh", pair.address, PROMPT, GRPCURL=found("grpcurl"))
    whole, *_ = printed.split("ERROR:")
    assert 32 == len("".join(re.findall(r'^    "text": "([a-g]+)"', whole, re.M)))
    assert '"completionTokenCount": 32' in printed
    info = r'"@type":"type.googleapis.com/google.rpc.ErrorInfo","domain":"paceline"'
    assert info in printed
    assert '"field":"sampling.temperature"' in printed
    codes = re.findall(r"Code: (\w+)", printed)
    assert ["InvalidArgument", "DeadlineExceeded"] == codes


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        ({}, ""),
        ({"text": grpc.StatusCode.UNAVAILABLE}, ""),
        ({"refusal": grpc.StatusCode.UNAVAILABLE}, "Complete did not end with InvalidArgument\n"),
        ({"refusal": grpc.StatusCode.OK}, "Complete did not end with InvalidArgument\n"),
        ({"deadline": grpc.StatusCode.CANCELLED}, "Generate did not end with DeadlineExceeded\n"),
        ({"deadline": grpc.StatusCode.OK}, "Generate did not end with DeadlineExceeded\n"),
    ],
)
def test_grpcurl_fails_where_a_call_does(
    scripted: Scripted, codes: dict[str, grpc.StatusCode], message: str
) -> None:
    """A stream that fails is no success, nor is a call that ends otherwise than it is to."""
    scripted.refusal = grpc.StatusCode.INVALID_ARGUMENT
    for name, code in codes.items():
        setattr(scripted, name, code)
    done = finish("bash", "grpcurl/client.sh", scripted.address, GRPCURL=found("grpcurl"))
    assert (bool(codes), message) == (bool(done.returncode), done.stderr), done.stdout


def test_grpcurl_takes_any_text(scripted: Scripted) -> None:
    """What JSON writes otherwise arrives as it was given."""
    scripted.refusal = grpc.StatusCode.INVALID_ARGUMENT
    text = 'a "b" \\n & \\" $c\n\r\t/é'
    run("bash", "grpcurl/client.sh", scripted.address, text, GRPCURL=found("grpcurl"))
    assert text == scripted.asked
