"""A stand-in for the API server: enough of its HTTP for helm and kubectl to do their work against.

Discovery, reading, writing, watching and server-side apply over a `Store`. It is not a cluster, and
what passes here has not been tested on one.
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import yaml

from tests.deploy.stub_store import RESOURCES, Invalid, Object, Resource, Store, merged
from tests.deploy.stub_wire import object_from_protobuf

_AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
_WATCH_S = 0.2


@contextlib.contextmanager
def serve_api(version: str) -> Iterator[tuple[str, Store]]:
    """Serves an empty cluster of a version of Kubernetes; gives its address and its objects."""
    store = Store(version)
    default = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}
    store.put(RESOURCES[0], "", default, is_dry=False)
    handler = type("Handler", (_Handler,), {"store": store})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", store
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    store: Store
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        """Discovery, objects, lists and watches."""
        path, query = self._target()
        if (found := self._discovery(path)) is not None:
            return self._answer(200, found)
        resource, namespace, name, sub = self._place(path)
        if resource is None:
            return self._refuse(404, "NotFound", f"nothing at {self.path}")
        if sub == "log":
            return self._answer(200, "no log: this pod does not run\n")
        if query.get("watch") in ("1", "true"):
            return self._watch(resource, namespace, query)
        with self.store.lock:
            if name:
                one = self.store.get(resource, namespace, name)
                if one is None:
                    return self._refuse(404, "NotFound", f'{resource.plural} "{name}" not found')
                return self._answer(200, one)
            items = [one for one in self.store.list(resource, namespace) if _is_meant(one, query)]
            return self._answer(200, {**_list(resource, self.store.revision), "items": items})

    def do_POST(self) -> None:
        """Creates."""
        self._write("POST")

    def do_PUT(self) -> None:
        """Replaces."""
        self._write("PUT")

    def do_PATCH(self) -> None:
        """Applies, or merges."""
        self._write("PATCH")

    def do_DELETE(self) -> None:
        """Deletes."""
        self._body()
        path, _ = self._target()
        resource, namespace, name, _ = self._place(path)
        gone = resource and self.store.delete(resource, namespace, name)
        if not gone:
            return self._refuse(404, "NotFound", f"{name} not found")
        self._answer(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def _write(self, verb: str) -> None:
        body, (path, query) = self._body(), self._target()
        resource, namespace, name, _ = self._place(path)
        if resource is None:
            return self._refuse(404, "NotFound", f"nothing at {self.path}")
        sent = self._sent(body)
        old = self.store.get(resource, namespace, name or sent["metadata"]["name"])
        if verb == "POST" and old:
            return self._refuse(409, "AlreadyExists", f"{sent['metadata']['name']} already exists")
        is_apply = "apply-patch" in self.headers.get("Content-Type", "")
        if verb == "PATCH" and not old and not is_apply:
            return self._refuse(404, "NotFound", f"{name} not found")
        new = merged(old, sent) if verb == "PATCH" and old else sent
        new = {"apiVersion": resource.api_version, "kind": resource.kind} | new
        try:
            is_dry = query.get("dryRun") == "All"
            taken = self.store.put(resource, namespace, new, is_dry=is_dry)
        except Invalid as error:
            return self._refuse(422, "Invalid", str(error))
        self._answer(200 if old else 201, taken)

    def _watch(self, resource: Resource, namespace: str, query: dict[str, str]) -> None:
        with self.store.lock:
            events = self.store.watch(resource, namespace)
            if query.get("sendInitialEvents") == "true":
                for one in self.store.list(resource, namespace):
                    events.put({"type": "ADDED", "object": one})
                meta = {"resourceVersion": self.store.revision}
                meta |= {"annotations": {"k8s.io/initial-events-end": "true"}}  # type: ignore[dict-item]  # a tree
                mark = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta}
                events.put({"type": "BOOKMARK", "object": mark})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        with contextlib.suppress(OSError):  # the other side has seen enough
            while True:
                try:
                    event = events.get(timeout=_WATCH_S)
                except queue.Empty:
                    self.wfile.write(b"\n")  # finds out whether anybody still listens
                    continue
                if event["type"] == "BOOKMARK" or _is_meant(event["object"], query):
                    self.wfile.write(json.dumps(event).encode() + b"\n")

    def _discovery(self, path: list[str]) -> Object | None:
        """What there is, if that is the question."""
        if path == ["version"]:
            minor = self.store.version.split(".")[1]
            return {"major": "1", "minor": minor, "gitVersion": f"v{self.store.version}.0"}
        if path in (["api"], ["apis"]):
            return _aggregated(is_core=path == ["api"])
        if path[:2] == ["openapi", "v3"]:
            return _openapi(path[2:])
        group, version = (path[1], path[2:]) if path[0] == "apis" else ("", path[1:])
        if len(version) == 1:
            found = [one for one in RESOURCES if (one.group, one.version) == (group, version[0])]
            kinds = [{**_described(one), "name": one.plural, "kind": one.kind} for one in found]
            return {"kind": "APIResourceList", "apiVersion": "v1", "resources": kinds} | {
                "groupVersion": found[0].api_version
            }
        return None

    def _place(self, path: list[str]) -> tuple[Resource | None, str, str, str]:
        """Resource, namespace, name and what of it a path means."""
        group, rest = ("", path[1:]) if path[0] == "api" else (path[1], path[2:])
        version, *rest = rest
        namespace = ""
        if rest[0] == "namespaces" and len(rest) >= 3:
            namespace, rest = rest[1], rest[2:]
        wanted = (group, version, rest[0])
        found = [one for one in RESOURCES if (one.group, one.version, one.plural) == wanted]
        name, sub = (*rest[1:3], "", "")[:2]
        return (found[0] if found else None), namespace, name, sub

    def _target(self) -> tuple[list[str], dict[str, str]]:
        parts = urlsplit(self.path)
        return [part for part in parts.path.split("/") if part], dict(parse_qsl(parts.query))

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _sent(self, body: bytes) -> Object:
        if "protobuf" in self.headers.get("Content-Type", ""):
            return object_from_protobuf(body)
        return yaml.safe_load(body)  # type: ignore[no-any-return]  # an object; JSON is YAML

    def _answer(self, status: int, content: Object | str) -> None:
        is_text = isinstance(content, str)
        body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        wants = self.headers.get("Accept", "")
        is_groups = not is_text and content.get("kind") == "APIGroupDiscoveryList"  # type: ignore[union-attr]  # a tree
        kind = (
            "text/plain" if is_text else _AGGREGATED if is_groups and wants else "application/json"
        )
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, code: int, reason: str, message: str) -> None:
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        self._answer(code, status | {"message": message, "reason": reason, "code": code})


def _list(resource: Resource, revision: str) -> Object:
    meta = {"resourceVersion": revision}
    return {"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": meta}


def _described(one: Resource) -> Object:
    return {"singularName": one.kind.lower(), "namespaced": one.is_namespaced, "verbs": _VERBS}


def _aggregated(*, is_core: bool) -> Object:
    groups: dict[str, dict[str, list[Object]]] = {}
    for one in RESOURCES:
        if is_core == (one.group == ""):
            kind = {"group": one.group, "version": one.version, "kind": one.kind}
            scope = "Namespaced" if one.is_namespaced else "Cluster"
            entry = {"resource": one.plural, "responseKind": kind, "scope": scope}
            entry |= {"singularResource": one.kind.lower(), "verbs": _VERBS}
            groups.setdefault(one.group, {}).setdefault(one.version, []).append(entry)
    items = [
        {
            "metadata": {"name": group},
            "versions": [
                {"version": version, "freshness": "Current", "resources": resources}
                for version, resources in versions.items()
            ],
        }
        for group, versions in groups.items()
    ]
    kind = {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2"}
    return {**kind, "metadata": {}, "items": items}


def _openapi(path: list[str]) -> Object:
    """As much as tells a client that dry runs and field validation are understood."""
    places = {f"apis/{r.api_version}" if r.group else "api/v1": r for r in RESOURCES}
    if not path:
        return {"paths": {at: {"serverRelativeURL": f"/openapi/v3/{at}"} for at in places}}
    names = ("fieldValidation", "dryRun", "fieldManager", "force")
    parameters = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in names]
    at = "/".join(path)
    paths = {
        f"/{at}/namespaces/{{namespace}}/{one.plural}/{{name}}": {
            "patch": {
                "parameters": parameters,
                "responses": {},
                "x-kubernetes-group-version-kind": {
                    "group": one.group,
                    "version": one.version,
                    "kind": one.kind,
                },
            }
        }
        for one in RESOURCES
        if at == (f"apis/{one.api_version}" if one.group else "api/v1")
    }
    info = {"title": "stub", "version": "v1"}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": {}}}


def _is_meant(one: Object, query: dict[str, str]) -> bool:
    """Whether an object fits the selectors of a query: equality of labels, and the name."""
    labels = one["metadata"].get("labels", {})
    terms = [term for term in query.get("labelSelector", "").split(",") if "=" in term]
    wanted = [term.replace("==", "=").split("=") for term in terms if "!=" not in term]
    name = query.get("fieldSelector", "").removeprefix("metadata.name=")
    return all(labels.get(key) == value for key, value in wanted) and name in (
        "",
        one["metadata"]["name"],
    )
