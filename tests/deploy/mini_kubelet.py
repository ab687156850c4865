"""Runs what the chart says, as processes: one per pod, with its command, variables, probes and end.

Each pod has a network namespace, a read-only root, empty volumes, the Secrets that it mounts, no
capabilities, and gets no variable but those of its spec. Images, users and limits are not emulated:
the code is this checkout's, run as the user of the tests.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.deploy.pod_network import PodNetwork
from tests.deploy.rendering import Object, container, of_kind, selects

ROOT = Path(__file__).parent.parent.parent
POLL_S = 0.1
CACHE = "/var/cache/paceline"
# Mounts are the process's own: `ip netns exec` gives it a mount namespace.
_MOUNT = f"""
mount -t tmpfs none /var/cache && mkdir {CACHE} && cp {{files}} {CACHE}/
mount -t tmpfs none /run
{{secrets}}
mount -t tmpfs none /tmp && mount -o remount,bind,ro / && cd {ROOT}
exec setpriv --no-new-privs --inh-caps=-all --bounding-set=-all "$@"
"""


@dataclass(frozen=True)
class Store:
    """What pods find on their volumes."""

    files: Sequence[Path]
    """In every cache."""
    secrets: Path
    """A folder per Secret, a file per key."""

    def mounts(self, spec: Object) -> Iterator[str]:
        """The commands that put a pod's Secrets where its container mounts them."""
        places = {m["name"]: m["mountPath"] for m in container(spec).get("volumeMounts", [])}
        for volume in spec["spec"].get("volumes", []):
            if secret := volume.get("secret"):
                folder, place = self.secrets / secret["secretName"], places[volume["name"]]
                keys = [{"key": path.name, "path": path.name} for path in folder.iterdir()]
                yield f"mkdir -p {place}"
                for item in secret.get("items", keys):
                    yield f"cp {folder / item['key']} {place}/{item['path']}"


class Pod:
    """One pod: its process, its address, whether it is ready."""

    def __init__(
        self, name: str, spec: Object, place: tuple[str, str], store: Store, log: IO[str]
    ) -> None:
        self.name = name
        self.spec = spec
        self.space, self.address = place
        self.is_ready = False
        self.is_leaving = False
        self.exit_code: int | None = None
        one = container(spec)
        command = [sys.executable if word == "python" else word for word in one["command"]]
        mount = _MOUNT.format(
            files=" ".join(map(str, store.files)), secrets="\n".join(store.mounts(spec))
        )
        inside = ("ip", "netns", "exec", self.space, "sh", "-ec", mount, "sh")
        self.process = subprocess.Popen(
            (*inside, *command, *one.get("args", [])),
            env=variables(spec, store) | {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
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


def variables(spec: Object, store: Store) -> dict[str, str]:
    """The environment of a pod's container."""
    return {
        one["name"]: one["value"] if "value" in one else _look_up(one["valueFrom"], spec, store)
        for one in container(spec).get("env", [])
    }


def _look_up(source: Object, spec: Object, store: Store) -> str:
    """A limit, a label of the pod, or a key of a Secret."""
    match source:
        case {"resourceFieldRef": {"resource": resource}}:
            return str(container(spec)["resources"]["limits"][resource.removeprefix("limits.")])
        case {"fieldRef": {"fieldPath": path}}:
            label = path.removeprefix("metadata.labels['").removesuffix("']")
            return str(spec["metadata"]["labels"].get(label, ""))
        case {"secretKeyRef": {"name": name, "key": key}}:
            return Path(store.secrets, name, key).read_text()
    raise AssertionError(source)


class MiniKubelet:
    """Keeps as many pods of each Deployment as it says, and the name service true."""

    def __init__(self, store: Store, log: IO[str]) -> None:
        self.store, self._log = store, log
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
        return Pod(name, spec, self._network.add(), self.store, self._log)

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
