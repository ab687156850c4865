"""Runs what the chart says, as processes: one per pod, with its command, variables, probes and end.

Each pod has a network namespace, a read-only root, empty volumes, no capabilities, and gets no
variable but those of its spec. Images, users and limits are not emulated: the code is this
checkout's, run as the user of the tests.
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
from typing import IO

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.deploy import pod_secrets
from tests.deploy.pod_network import PodNetwork
from tests.deploy.rendering import Object, container, of_kind, selects

ROOT = Path(__file__).parent.parent.parent
POLL_S = 0.1
CACHE = "/var/cache/paceline"
# Mounts are the process's own: `ip netns exec` gives it a mount namespace.
_MOUNT = f"""
mount -t tmpfs none /var/cache && mkdir {CACHE} && cp {{files}} {CACHE}/
{{secrets}}
mount -t tmpfs none /tmp && mount -o remount,bind,ro / && cd {ROOT}
exec setpriv --no-new-privs --inh-caps=-all --bounding-set=-all "$@"
"""


Volumes = tuple[Sequence[Path], Path]
"""What pods find: files in every cache, and a folder with the Secrets that they mount."""


class Pod:
    """One pod: its process, its address, whether it is ready."""

    def __init__(
        self, name: str, spec: Object, place: tuple[str, str], volumes: Volumes, log: IO[str]
    ) -> None:
        self.name = name
        self.spec = spec
        self.space, self.address = place
        self.is_ready = False
        self.is_leaving = False
        self.exit_code: int | None = None
        one = container(spec)
        command = [sys.executable if word == "python" else word for word in one["command"]]
        files, secrets = volumes
        mount = _MOUNT.format(
            files=" ".join(map(str, files)), secrets=pod_secrets.mounts(spec, secrets)
        )
        inside = ("ip", "netns", "exec", self.space, "sh", "-ec", mount, "sh")
        self.process = subprocess.Popen(
            (*inside, *command, *one.get("args", [])),
            env=variables(spec, secrets) | {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
            stdout=log,
            stderr=log,
        )

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
            self.process.kill()
            self.exit_code = self.process.wait()


def variables(spec: Object, secrets: Path) -> dict[str, str]:
    """The environment of a pod's container."""
    return {
        one["name"]: one["value"]
        if "value" in one
        else pod_secrets.look_up(one["valueFrom"], spec, secrets)
        for one in container(spec).get("env", [])
    }


class MiniKubelet:
    """Keeps as many pods of each Deployment as it says, and the name service true."""

    def __init__(self, volumes: Volumes, log: IO[str]) -> None:
        self._volumes, self._log = volumes, log
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
        return pod.process.wait()

    def close(self) -> None:
        """Ends everything."""
        for pod in self.pods:
            if not pod.is_leaving:
                pod.process.kill()
            pod.process.wait()
        self._closing.set()
        self._watcher.join()
        self._network.close()

    def _start(self, name: str, spec: Object) -> Pod:
        return Pod(name, spec, self._network.add(), self._volumes, self._log)

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
