"""Runs what the chart says: each pod with its command, variables, probes, policies and end.

Each has a network namespace. How its container starts is a `Launch`: `Processes` starts this
checkout's code, as the user of the tests, with a read-only root, empty volumes, no capabilities and
no variable but those of the spec; `pod_containers.py` starts images. Limits are not emulated.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.deploy import pod_firewall, pod_secrets
from tests.deploy.pod_network import PodNetwork
from tests.deploy.rendering import Object, container, of_kind, selects

ROOT = Path(__file__).parent.parent.parent
POLL_S = 0.1
CACHE = "/var/cache/paceline"
# Mounts are the process's own: `ip netns exec` gives it a mount namespace. The checkout is mounted
# anew, since it may lie in /tmp, which is another one now.
_MOUNT = f"""
mount -t tmpfs none /var/cache && mkdir {CACHE} && cp {{files}} {CACHE}/
{{secrets}}
mkdir /var/cache/code && mount --bind {ROOT} /var/cache/code
mount -t tmpfs none /tmp && mkdir -p {ROOT} && mount --bind /var/cache/code {ROOT}
mount -o remount,bind,ro {ROOT} && mount -o remount,bind,ro / && cd {ROOT}
exec setpriv --no-new-privs --inh-caps=-all --bounding-set=-all "$@"
"""


class Launch(Protocol):
    """How the container of a pod is started."""

    def __call__(self, spec: Object, space: str, log: IO[str]) -> subprocess.Popen[bytes]:
        """Starts it in a network namespace; the process hears its signals and ends with it."""


class Processes:
    """Starts this checkout's code; files go into the cache, Secrets where it mounts them."""

    def __init__(self, files: Sequence[Path], secrets: Path) -> None:
        self._files, self._secrets = " ".join(map(str, files)), secrets

    def __call__(self, spec: Object, space: str, log: IO[str]) -> subprocess.Popen[bytes]:
        """Starts a command without an image."""
        one = container(spec)
        command = [sys.executable if word == "python" else word for word in one["command"]]
        secrets = pod_secrets.mounts(spec, self._secrets)
        mount = _MOUNT.format(files=self._files, secrets=secrets)
        inside = ("ip", "netns", "exec", space, "sh", "-ec", mount, "sh")
        environment = variables(spec, self._secrets) | {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
        }
        return subprocess.Popen(
            (*inside, *command, *one.get("args", [])), env=environment, stdout=log, stderr=log
        )


class Pod:
    """One pod: its process, its address, whether it is ready."""

    def __init__(
        self, name: str, spec: Object, place: tuple[str, str], launch: Launch, log: IO[str]
    ) -> None:
        self.name = name
        self.spec = spec
        self.space, self.address = place
        self.is_ready = False
        self.is_leaving = False
        self.exit_code: int | None = None
        self.process = launch(spec, self.space, log)

    def probe(self, kind: str) -> bool:
        """Asks one of its probes, as a kubelet does."""
        asked = container(self.spec)[kind]["grpc"]
        request = health_pb2.HealthCheckRequest(service=asked["service"])
        with grpc.insecure_channel(f"{self.address}:{asked['port']}") as channel:
            try:
                answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=2)
            except grpc.RpcError:
                return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def end(self) -> None:
        """preStop, SIGTERM, and SIGKILL where the grace period was not enough."""
        grace_s = self.spec["spec"]["terminationGracePeriodSeconds"]
        begin_s = time.monotonic()
        time.sleep(container(self.spec)["lifecycle"]["preStop"]["sleep"]["seconds"])
        self.process.send_signal(signal.SIGTERM)
        try:
            self.exit_code = self.process.wait(grace_s - (time.monotonic() - begin_s))
        except subprocess.TimeoutExpired:
            self.kill()
            self.exit_code = self.process.wait()

    def kill(self) -> None:
        """Ends everything in it at once."""
        inside = subprocess.check_output(("ip", "netns", "pids", self.space), text=True)
        for process_id in map(int, inside.split()):
            os.kill(process_id, signal.SIGKILL)


def variables(spec: Object, secrets: Path) -> dict[str, str]:
    """The environment of a pod's container."""
    return {
        one["name"]: one["value"]
        if "value" in one
        else pod_secrets.look_up(one["valueFrom"], spec, secrets)
        for one in container(spec).get("env", [])
    }


class MiniKubelet:
    """Keeps as many pods of each Deployment as it says, and names and policies true."""

    def __init__(self, launch: Launch, log: IO[str]) -> None:
        self._launch, self._log = launch, log
        self._objects: list[Object] = []
        self.pods: list[Pod] = []
        self._endings: list[threading.Thread] = []
        self._network = PodNetwork(self.addresses_of)
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch)
        self._watcher.start()

    def apply(self, objects: list[Object]) -> None:
        """Starts and ends pods until there are as many as the Deployments say."""
        self._objects = objects
        for name, deployment in of_kind(objects, "Deployment").items():
            running = [pod for pod in self.pods if pod.name == name and not pod.is_leaving]
            count = deployment["spec"]["replicas"]
            for pod in running[count:]:
                self._remove(pod)
            for _ in range(count - len(running)):
                self.pods.append(self._start(name, deployment["spec"]["template"]))
        self._enforce()

    def addresses_of(self, service: str) -> list[str]:
        """The ready pods behind a Service; an ordinary one has the first of them as its address."""
        one = of_kind(self._objects, "Service").get(service)
        if one is None:
            return []
        selector = one["spec"]["selector"]
        ready = [pod for pod in self.pods if pod.is_ready and not pod.is_leaving]
        found = [pod.address for pod in ready if selects(selector, pod.spec)]
        return found if one["spec"].get("clusterIP") == "None" else found[:1]

    def ready(self, name: str) -> list[Pod]:
        """The pods of a Deployment that are ready."""
        return [pod for pod in self.pods if pod.name == name and pod.is_ready]

    def wait_ready(self, counts: Mapping[str, int]) -> None:
        """Returns when each Deployment has that many ready pods and no others.

        Raises:
            AssertionError: a pod ended by itself.
        """
        while any(len(self.ready(name)) != count for name, count in counts.items()):
            for pod in self.pods:
                code = pod.process.poll()
                assert code is None or pod.is_leaving, f"{pod.name} ended with {code}"
            time.sleep(POLL_S)

    def wait_gone(self) -> list[Pod]:
        """Returns the pods that left, once all of them have ended."""
        for ending in self._endings:
            ending.join()
        return [pod for pod in self.pods if pod.is_leaving]

    def run(self, name: str) -> int:
        """Runs a pod to its end, as a hook; gives its exit status."""
        pod = self._start(name, of_kind(self._objects, "Pod")[name])
        self._enforce(pod)
        return pod.process.wait()

    def stranger(self) -> str:
        """A network namespace that no policy holds or names."""
        space, _ = self._network.add()
        return space

    def close(self) -> None:
        """Ends everything."""
        for pod in self.pods:
            if not pod.is_leaving:
                pod.kill()
            pod.process.wait()
        self._closing.set()
        self._watcher.join()
        self._network.close()

    def _start(self, name: str, spec: Object) -> Pod:
        return Pod(name, spec, self._network.add(), self._launch, self._log)

    def _enforce(self, *more: Pod) -> None:
        """Policies need to know who is where, so they are set again with every change."""
        if pod_firewall.IS_THERE:
            members = [
                pod_firewall.Member(pod.spec, pod.space, pod.address)
                for pod in (*self.pods, *more)
                if pod.process.poll() is None
            ]
            pod_firewall.enforce(self._objects, members, self._network.gateway)

    def _remove(self, pod: Pod) -> None:
        pod.is_leaving, pod.is_ready = True, False
        self._endings.append(threading.Thread(target=pod.end))
        self._endings[-1].start()

    def _watch(self) -> None:
        """Startup first, readiness from then on; a pod that leaves is not asked."""
        while not self._closing.wait(POLL_S):
            for pod in list(self.pods):
                if not pod.is_leaving and pod.process.poll() is None:
                    pod.is_ready = pod.probe("readinessProbe") and not pod.is_leaving
