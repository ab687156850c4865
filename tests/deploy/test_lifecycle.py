"""Install, upgrade, test, roll back, uninstall: Helm and kubectl against a stand-in API server.

The server is a stub without admission, defaults, controllers or scheduling. What is shown is that
the clients go through with it, that every object is valid, and what is left behind; not a cluster.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.deploy.rendering import CHART, HELMS, RELEASE, profile_flags
from tests.deploy.stub_api import serve_api
from tests.deploy.stub_store import RESOURCES, Store
from tests.deploy.tools import find

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(300)]
Run = Callable[..., str]
DEPLOYMENT = next(one for one in RESOURCES if one.kind == "Deployment")
KUBECTLS = {"helm": "kubectl", "helm3": "kubectl3"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[Run, Store]]:
    """A stand-in cluster, and how to run a client against it."""
    with serve_api("1.33") as (address, store):
        config = tmp_path / "kubeconfig"
        config.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "stub", "cluster": {"server": address}}],
                    "contexts": [{"name": "stub", "context": {"cluster": "stub", "user": ""}}],
                    "current-context": "stub",
                }
            )
        )

        def run(tool: str, *arguments: str, stdin: str | None = None) -> str:
            done = subprocess.run(
                (find(tool), *arguments),
                input=stdin,
                capture_output=True,
                text=True,
                env={**os.environ, "KUBECONFIG": str(config), "HOME": str(tmp_path)},
            )
            assert 0 == done.returncode, f"{tool} {arguments}: {done.stdout}{done.stderr}"
            return done.stdout

        yield run, store


def replicas(store: Store, tier: str) -> int:
    """The pods that a tier should have."""
    one = store.get(DEPLOYMENT, "default", f"{RELEASE}-paceline-{tier}")
    assert one is not None
    return int(one["spec"]["replicas"])


@pytest.mark.parametrize("helm", HELMS)
def test_life_of_a_release(helm: str, cluster: tuple[Run, Store]) -> None:
    """All of it, under both Helms: revisions count, values return, and nothing is left behind."""
    run, store = cluster
    wait = ("--wait", "--timeout", "60s")
    run(helm, "install", RELEASE, str(CHART), *profile_flags("cpu-demo"), *wait)
    assert (1, 1) == (replicas(store, "verify"), replicas(store, "draft"))
    more = ("--set", "verify.replicas=3,draft.replicas=0,verify.weights.cache.claim.enabled=true")
    run(helm, "upgrade", RELEASE, str(CHART), *profile_flags("cpu-demo"), *more, *wait)
    assert (3, 0) == (replicas(store, "verify"), replicas(store, "draft"))
    run(helm, "test", RELEASE, "--timeout", "60s")
    run(helm, "rollback", RELEASE, "1", *wait)
    assert (1, 1) == (replicas(store, "verify"), replicas(store, "draft"))
    history = json.loads(run(helm, "history", RELEASE, "-o", "json"))
    assert [1, 2, 3] == [revision["revision"] for revision in history]
    run(helm, "uninstall", RELEASE)
    left = {
        (resource.kind, one["metadata"]["name"])
        for resource in RESOURCES
        for one in store.list(resource, "")
        if resource.kind != "ReplicaSet"  # nobody collects what its owner leaves
    }
    # The claim of the second revision keeps its weights, as its annotation says.
    assert {
        ("Namespace", "default"),
        ("PersistentVolumeClaim", f"{RELEASE}-paceline-verify-cache"),
    } == left


@pytest.mark.parametrize("helm", HELMS)
def test_server_side_apply(helm: str, cluster: tuple[Run, Store]) -> None:
    """What is rendered can be applied by kubectl as well, first dry and then for good."""
    run, store = cluster
    rendered = run(helm, "template", RELEASE, str(CHART), *profile_flags("ha"))
    for flags in (("--dry-run=server",), ()):
        run(KUBECTLS[helm], "apply", "--server-side", *flags, "-f", "-", stdin=rendered)
        assert (not flags) == bool(store.list(DEPLOYMENT, "default"))


def test_the_stub_refuses_what_a_server_would(cluster: tuple[Run, Store]) -> None:
    """An object with a wrong type does not get in, so the tests above show something."""
    run, _ = cluster
    with pytest.raises(AssertionError, match=r"Invalid|invalid"):
        run(
            "kubectl", "apply", "--validate=false", "--server-side", "-f", "-",
            stdin='{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, '
            '"spec": {"ports": "many"}}',
        )  # fmt: skip
