"""The objects of a stand-in for the API server: kept in memory, validated, ready at once.

No admission, no defaults, no controllers, no scheduling: an object is what was sent, with a status
that says that all is well. What HTTP is, is not known here.
"""

from __future__ import annotations

import copy
import datetime
import queue
import threading
import uuid
from dataclasses import dataclass
from typing import Any

import kubernetes_validate

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind and where it is found."""

    group: str
    version: str
    plural: str
    kind: str
    is_namespaced: bool = True

    @property
    def api_version(self) -> str:
        """As in an object's apiVersion."""
        return f"{self.group}/{self.version}" if self.group else self.version


RESOURCES = (
    Resource("", "v1", "namespaces", "Namespace", False),
    *(
        Resource("", "v1", f"{kind.lower()}s", kind)
        for kind in ("Pod", "Service", "ServiceAccount", "Secret", "ConfigMap")
    ),
    Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim"),
    Resource("apps", "v1", "deployments", "Deployment"),
    Resource("apps", "v1", "replicasets", "ReplicaSet"),
    Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler"),
    Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget"),
    Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy"),
    Resource("keda.sh", "v1alpha1", "scaledobjects", "ScaledObject"),
    Resource("monitoring.coreos.com", "v1", "podmonitors", "PodMonitor"),
    Resource("monitoring.coreos.com", "v1", "prometheusrules", "PrometheusRule"),
)


class Invalid(Exception):
    """An object that its schema refuses."""


class Store:
    """Owns every object; threads take turns."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.lock = threading.RLock()
        self._objects: dict[tuple[Resource, str, str], Object] = {}
        self._watches: list[tuple[Resource, str, queue.Queue[Object]]] = []
        self._revision = 100

    @property
    def revision(self) -> str:
        """The resourceVersion of the newest change."""
        return str(self._revision)

    def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """One object."""
        return self._objects.get((resource, namespace, name))

    def list(self, resource: Resource, namespace: str) -> list[Object]:
        """Every object of a kind, of all namespaces where none is named."""
        return [
            one
            for (kind, space, _), one in self._objects.items()
            if kind == resource and namespace in ("", space)
        ]

    def put(self, resource: Resource, namespace: str, sent: Object, *, is_dry: bool) -> Object:
        """Takes an object in.

        Raises:
            Invalid: its schema refuses it.
        """
        self._check(sent)
        one = copy.deepcopy(sent)
        meta = one["metadata"]
        with self.lock:
            old = self.get(resource, namespace, meta["name"])
            kept: Object = (
                old["metadata"] if old else {"uid": str(uuid.uuid4()), "creationTimestamp": now()}
            )
            meta.update({key: kept[key] for key in ("uid", "creationTimestamp")})
            meta["generation"] = kept.get("generation", 0) + 1
            if resource.is_namespaced:
                meta["namespace"] = namespace
            if is_dry:
                return one
            self._revision += 1
            meta["resourceVersion"] = self.revision
            settle(one)
            self._objects[resource, namespace, meta["name"]] = one
            self._tell(resource, namespace, "MODIFIED" if old else "ADDED", one)
            if resource.kind == "Deployment":
                self._own_replica_set(namespace, one)
        return one

    def delete(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """Forgets an object, if it is there."""
        with self.lock:
            one = self._objects.pop((resource, namespace, name), None)
            if one is not None:
                self._tell(resource, namespace, "DELETED", one)
        return one

    def watch(self, resource: Resource, namespace: str) -> queue.Queue[Object]:
        """Every change from now on."""
        events: queue.Queue[Object] = queue.Queue()
        self._watches.append((resource, namespace, events))
        return events

    def _tell(self, resource: Resource, namespace: str, kind: str, one: Object) -> None:
        for watched, space, events in self._watches:
            if watched == resource and space in ("", namespace):
                events.put({"type": kind, "object": copy.deepcopy(one)})

    def _check(self, one: Object) -> None:
        sent = {key: value for key, value in one.items() if key != "status"}
        try:
            kubernetes_validate.validate(sent, self.version, strict=True)
        except kubernetes_validate.ValidationError as error:
            name = one["metadata"].get("name")
            raise Invalid(f"{one['kind']} {name}: {error.message} at {list(error.path)}") from None
        except (
            kubernetes_validate.SchemaNotFoundError,
            kubernetes_validate.InvalidSchemaError,
        ):
            return  # a resource of somebody else's API

    def _own_replica_set(self, namespace: str, deployment: Object) -> None:
        """Helm 3 looks for it while it waits."""
        meta, spec = deployment["metadata"], deployment["spec"]
        owner = {"apiVersion": "apps/v1", "kind": "Deployment", "controller": True}
        owner |= {key: meta[key] for key in ("name", "uid")}
        template = copy.deepcopy(spec["template"])
        replica_set = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {
                "name": f"{meta['name']}-stub",
                "labels": template["metadata"]["labels"],
                "ownerReferences": [owner],
            },
            "spec": {"selector": spec["selector"], "template": template}
            | {"replicas": spec.get("replicas", 1)},
        }
        resource = next(one for one in RESOURCES if one.kind == "ReplicaSet")
        self.put(resource, namespace, replica_set, is_dry=False)


def now() -> str:
    """The time as Kubernetes writes it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def settle(one: Object) -> None:
    """Gives an object the status that it would have once all is well."""
    generation = one["metadata"]["generation"]
    match one["kind"]:
        case "Deployment" | "ReplicaSet":
            count = one["spec"].get("replicas", 1)
            names = ("replicas", "readyReplicas", "availableReplicas", "updatedReplicas")
            reasons = {
                "Available": "MinimumReplicasAvailable",
                "Progressing": "NewReplicaSetAvailable",
            }
            one["status"] = dict.fromkeys(names, count) | {
                "observedGeneration": generation,
                "conditions": [
                    {"type": kind, "status": "True", "reason": reason}
                    for kind, reason in reasons.items()
                ],
            }
        case "Pod":
            is_job = one["spec"].get("restartPolicy") == "Never"
            ready = [{"type": "Ready", "status": "True"}]
            one["status"] = {"phase": "Succeeded" if is_job else "Running", "conditions": ready}
        case "Service":
            one["spec"].setdefault("clusterIP", "10.96.0.10")
        case "PersistentVolumeClaim":
            one["status"] = {"phase": "Bound"}


def merged(base: Any, patch: Any) -> Any:
    """A strategic merge: maps by key, lists of named things by their names, null removes."""
    if isinstance(base, dict) and isinstance(patch, dict):
        result = {key: value for key, value in base.items() if patch.get(key, value) is not None}
        for key, value in patch.items():
            if value is not None and not key.startswith("$"):
                result[key] = merged(base.get(key), value)
        return result
    key = next((k for k in ("name", "containerPort", "port") if _is_keyed(k, base, patch)), None)
    if key is None:
        return copy.deepcopy(patch)
    known = {one[key]: one for one in base}
    for one in patch:
        if one.get("$patch") == "delete":
            known.pop(one[key], None)
        else:
            known[one[key]] = merged(known.get(one[key], {}), one)
    return list(known.values())


def _is_keyed(key: str, *lists: Any) -> bool:
    return all(
        isinstance(one, list) and one and all(isinstance(x, dict) and key in x for x in one)
        for one in lists
    )
