"""What the chart says, runs: its pods, scaled under load without a failed answer.

No cluster: `mini_kubelet.py` says what is emulated. Pods find one another by name, over the name
service of a network of their own, so this is also where discovery is tested as a whole. They are
processes of this checkout, and once containers of the images that were built of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from paceline.v1 import gateway_pb2, gateway_pb2_grpc, speculation_pb2
from tests.deploy import pod_firewall, tools
from tests.deploy.mini_kubelet import CACHE, Launch, MiniKubelet, Pod, Processes
from tests.deploy.pod_containers import Containers, mounted
from tests.deploy.rendering import Object, render
from tests.deploy.test_monitoring import METRIC, queries

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]
LETTERS = "abcdefg"
NUM_TOKENS = 60
NUM_CLIENTS = 4
GATEWAY, DRAFT, VERIFY = (f"shop-paceline-{tier}" for tier in ("gateway", "draft", "verify"))


def table(*, step: int) -> dict[str, Any]:
    """A law whose likeliest text walks through the letters; another step now and then."""
    suffixes = {}
    for index, letter in enumerate(LETTERS):
        row = dict.fromkeys(LETTERS, 0.05)
        row[LETTERS[(index + (step if letter == "c" else 1)) % len(LETTERS)]] = 0.7
        suffixes[letter] = [*row.values(), 0.0]
    return {"alphabet": LETTERS + "z", "eos": "z", "default": suffixes["a"], "suffixes": suffixes}


def walk(prompt: str) -> str:
    """The text that the target's table gives at temperature 0."""
    start = LETTERS.index(prompt[-1]) + 1
    return "".join(LETTERS[(start + i) % len(LETTERS)] for i in range(NUM_TOKENS))


def objects(*, verify: int, draft: int, **values: Any) -> list[Object]:
    """The chart with table models, which need no weights, and so many pods."""
    small = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}}
    ends = {"preStopSeconds": 4, "drainTimeoutSeconds": 60, "resources": small}
    settings = {"memory_mib": 256}
    return render(
        "cpu-demo",
        defaults=ends,
        verify={"replicas": verify, "model": f"table:{CACHE}/target.json", "settings": settings},
        draft={
            "replicas": draft,
            "sources": [f"table:{CACHE}/draft.json", "ngram"],
            "settings": settings,
        },
        **{"test": {"prompt": "abc"}, **values},
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    """Two tables, which pods find in their cache."""
    folder = tmp_path_factory.mktemp("tables")
    contents = {"target": table(step=1), "draft": table(step=2)}
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return [folder / f"{name}.json" for name in contents]


@contextmanager
def running(launch: Launch, folder: Path) -> Iterator[MiniKubelet]:
    """An empty cluster; what its pods logged is shown where a test fails."""
    with (folder / "log").open("w") as log:
        kubelet = MiniKubelet(launch, log)
        try:
            yield kubelet
        finally:
            kubelet.close()
            print((folder / "log").read_text()[-6000:])


@pytest.fixture
def cluster(files: Sequence[Path], tmp_path: Path) -> Iterator[MiniKubelet]:
    """An empty cluster whose pods are processes."""
    with running(Processes(files, tmp_path / "secrets"), tmp_path) as kubelet:
        yield kubelet


@pytest.fixture(scope="module")
def settled(
    files: Sequence[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MiniKubelet]:
    """One pod of each tier, for all tests that leave them as they found them."""
    folder = tmp_path_factory.mktemp("settled")
    with running(Processes(files, folder / "secrets"), folder) as kubelet:
        kubelet.apply(objects(verify=1, draft=1))
        kubelet.wait_ready({GATEWAY: 1, VERIFY: 1, DRAFT: 1})
        yield kubelet


@pytest.fixture
def containers(files: Sequence[Path], tmp_path: Path) -> Iterator[MiniKubelet]:
    """An empty cluster whose pods are containers."""
    with ExitStack() as stack:
        images = {
            f"paceline/{target}": stack.enter_context(mounted(target)) for target in tools.TARGETS
        }
        launch = Containers(images, files, tmp_path)
        yield stack.enter_context(running(launch, tmp_path))


class Load:
    """Clients that ask the gateway's Service, over and over, until they are told to stop."""

    def __init__(self, address: str) -> None:
        self.answers: list[str] = []
        self.errors: list[str] = []
        self._stopping = threading.Event()
        self._channel = grpc.insecure_channel(address)
        self._threads = [threading.Thread(target=self._ask) for _ in range(NUM_CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        stub = gateway_pb2_grpc.GatewayServiceStub(self._channel)
        greedy = speculation_pb2.SamplingParams(temperature=0)
        request = gateway_pb2.GenerateRequest(
            prompt=gateway_pb2.Prompt(text="abc"), max_tokens=NUM_TOKENS, sampling=greedy
        )
        while not self._stopping.is_set():
            try:
                events = list(stub.Generate(request, timeout=120))
                self.answers.append("".join(event.tokens.text for event in events))
            except grpc.RpcError as error:
                self.errors.append(str(error))

    def wait_more(self, count: int) -> None:
        """Returns once so many more answers have come, or one failed."""
        goal = len(self.answers) + count
        while len(self.answers) < goal and not self.errors:
            self._stopping.wait(0.05)

    def stop(self) -> None:
        """Lets running answers end."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._channel.close()


def scrape(address: str) -> list[str]:
    """What a pod's metrics say, at the port that the chart gives them."""
    with urllib.request.urlopen(f"http://{address}:9464/metrics", timeout=30) as response:
        return response.read().decode().splitlines()  # type: ignore[no-any-return]  # lines


def sessions_opened(address: str) -> float:
    """How many sessions a pod of a model tier has had."""
    return float(
        next(
            line for line in scrape(address) if line.startswith("paceline_sessions_total")
        ).split()[1]
    )


def wait_used(cluster: MiniKubelet, load: Load, deployment: str) -> None:
    """Returns once every pod of a Deployment has had a session."""
    while any(sessions_opened(pod.address) == 0 for pod in cluster.ready(deployment)):
        load.wait_more(1)
        assert [] == load.errors


def test_tiers_scale_under_load(cluster: MiniKubelet) -> None:
    """B103, B127: drafts 1 to 3 to 0, targets 1 to 2 to 1; new pods are used, no answer fails."""
    cluster.apply(objects(verify=1, draft=1))
    cluster.wait_ready({GATEWAY: 1, VERIFY: 1, DRAFT: 1})
    assert 0 == cluster.run("shop-paceline-test")
    (address,) = cluster.addresses_of("shop-paceline-gateway")
    load = Load(f"{address}:50051")
    try:
        load.wait_more(2 * NUM_CLIENTS)
        for verify, draft in [(1, 3), (2, 3), (2, 0), (1, 0), (1, 1)]:
            cluster.apply(objects(verify=verify, draft=draft))
            cluster.wait_ready({GATEWAY: 1, VERIFY: verify, DRAFT: draft})
            wait_used(cluster, load, VERIFY)
            wait_used(cluster, load, DRAFT)
            load.wait_more(2 * NUM_CLIENTS)
        left = cluster.wait_gone()
    finally:
        load.stop()
    assert [] == load.errors
    assert {walk("abc")} == set(load.answers)
    # Three drafts and a target were sent away; each drained and ended by itself.
    assert [0, 0, 0, 0] == [pod.exit_code for pod in left]


def test_a_pod_that_loads_is_alive_and_not_ready(cluster: MiniKubelet) -> None:
    """B122: a gateway that waits for a target is not restarted, and gets nobody yet."""
    cluster.apply(objects(verify=0, draft=0))
    (gateway,) = cluster.pods
    while not gateway.probe("startupProbe"):
        assert gateway.process.poll() is None
    assert (True, False) == (gateway.probe("livenessProbe"), gateway.probe("readinessProbe"))
    assert [] == cluster.addresses_of("shop-paceline-gateway")
    cluster.apply(objects(verify=1, draft=0))
    cluster.wait_ready({GATEWAY: 1, VERIFY: 1})
    assert [gateway.address] == cluster.addresses_of("shop-paceline-gateway")


def reaches(space: str, address: str, port: int) -> bool:
    """Whether a connection from a network namespace is taken."""
    script = f"import socket; socket.create_connection(({address!r}, {port}), 30)"
    command = ("ip", "netns", "exec", space, sys.executable, "-c", script)
    done = subprocess.run(command, capture_output=True, text=True)
    assert 0 == done.returncode or "ConnectionRefusedError" in done.stderr, done.stderr
    return 0 == done.returncode


@pytest.mark.skipif(not pod_firewall.IS_THERE, reason="policies are set with iptables-restore")
def test_policies_hold_on_the_network(settled: MiniKubelet) -> None:
    """The inner tiers hear the gateway alone, and ask nobody; a stranger gets to the gateway."""
    stranger = settled.stranger()
    spaces = {pod.name: pod.space for pod in settled.pods} | {"stranger": stranger}
    ways = {
        (source, pod.name)
        for source, space in spaces.items()
        for pod in settled.pods
        if source != pod.name and reaches(space, pod.address, 50051)
    }
    assert {(GATEWAY, VERIFY), (GATEWAY, DRAFT), ("stranger", GATEWAY)} == ways
    assert all(reaches(stranger, pod.address, 9464) for pod in settled.pods)


def test_every_query_finds_its_metrics(settled: MiniKubelet) -> None:
    """What dashboard and alerts ask for is what three pods serve, before anybody asked them."""
    lines = [line for pod in settled.pods for line in scrape(pod.address)]
    served = {line.split("{")[0].split()[0] for line in lines if not line.startswith("#")}
    for name, kind in (line.split()[2:] for line in lines if line.startswith("# TYPE")):
        parts = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        served |= {name + part for part in parts}
    assert set() == {name for query in queries() for name in METRIC.findall(query)} - served


def rights(pod: Pod) -> tuple[str, str, str, bool]:
    """User, capabilities, whether it may gain more, and whether it may write to its root."""
    inside = subprocess.check_output(("ip", "netns", "pids", pod.space), text=True).split()
    process = Path("/proc", inside[0])
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
    mounts = [line.split() for line in (process / "mountinfo").read_text().splitlines()]
    (root,) = [options.split(",") for _, _, _, _, place, options, *_ in mounts if place == "/"]
    return status["Uid"].split()[0], status["CapEff"], status["NoNewPrivs"], "rw" in root


@pytest.mark.skipif(not tools.has_image_programs(), reason=f"takes {tools.IMAGE_PROGRAMS}")
def test_the_images_run(containers: MiniKubelet) -> None:
    """All tiers as containers without rights: they answer, and drain when they are sent away."""
    containers.apply(objects(verify=1, draft=1))
    containers.wait_ready({GATEWAY: 1, VERIFY: 1, DRAFT: 1})
    assert {("10001", "0" * 16, "1", False)} == {rights(pod) for pod in containers.pods}
    assert 0 == containers.run("shop-paceline-test")
    (address,) = containers.addresses_of("shop-paceline-gateway")
    load = Load(f"{address}:50051")
    try:
        wait_used(containers, load, DRAFT)
        for verify, draft in [(2, 0), (1, 0)]:
            containers.apply(objects(verify=verify, draft=draft))
            containers.wait_ready({GATEWAY: 1, VERIFY: verify, DRAFT: draft})
            wait_used(containers, load, VERIFY)
            load.wait_more(2 * NUM_CLIENTS)
        left = containers.wait_gone()
    finally:
        load.stop()
    assert [] == load.errors
    assert {walk("abc")} == set(load.answers)
    assert [0, 0] == [pod.exit_code for pod in left]
