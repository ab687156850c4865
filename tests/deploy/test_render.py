"""The chart renders under both Helms with every profile, to objects that Kubernetes would take."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from draft_service.config import DraftConfig
from gateway.config import GatewayConfig
from paceline.serving.config import load
from tests.deploy.rendering import (
    CHART,
    HELMS,
    PROFILES,
    Object,
    container,
    environment,
    of_kind,
    pods,
    profile_flags,
    render,
)
from tests.deploy.tools import find
from verify_service.config import VerifyConfig

pytestmark = pytest.mark.deploy
VERSIONS = ("1.30", "1.33", "1.37")
CRDS = Path(__file__).parent / "crds"
# Everything that can be switched on, at once.
ALL: dict[str, Any] = {
    "defaults": {
        "env": {"A": "b"},
        "podLabels": {"team": "a"},
        "podAnnotations": {"team": "a"},
        "nodeSelector": {"disk": "fast"},
        "priorityClassName": "high",
        "affinity": {"podAntiAffinity": {}},
        "image": {"digest": "sha256:" + "a" * 64, "registry": "images.example"},
    },
    "gateway": {"autoscaling": {"mode": "hpa"}},
    "draft": {
        "gpu": {"count": 1},
        "autoscaling": {"mode": "keda", "prometheus": "http://p:9090", "minReplicas": 0},
        "weights": {"tokenSecret": {"name": "hub"}, "existingClaim": "weights"},
    },
    "verify": {
        "gpu": {"count": 2, "resource": "example.com/gpu"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "runtimeClassName": "nvidia",
        "weights": {"image": "images.example/w:1", "cache": {"claim": {"enabled": True}}},
        "pools": {"next": {"model": "org/next", "replicas": 3}},
    },
    "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
    "networkPolicy": {
        "clients": [{"podSelector": {}}],
        "monitoring": [{"namespaceSelector": {}}],
        "extraEgress": [{"ports": [{"port": 4317}]}],
    },
    "tls": {"mode": "certManager", "issuer": {"name": "ca"}, "clientCertificates": True},
    "auth": {"tokenSecret": {"name": "access"}},
    "test": {"tokenSecret": {"name": "ours"}},
    "metrics": {"podMonitor": True, "rules": True, "dashboard": True, "labels": {"release": "p"}},
    "imagePullSecrets": [{"name": "pull"}],
    "serviceAccountAnnotations": {"a": "b"},
}


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("helm", HELMS)
def test_lint(helm: str, profile: str) -> None:
    """Both Helms find nothing to complain about."""
    command = (find(helm), "lint", "--strict", str(CHART), *profile_flags(profile))
    done = subprocess.run(command, capture_output=True, text=True)
    assert 0 == done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("profile", PROFILES)
def test_both_helms_agree(profile: str) -> None:
    """What is deployed does not depend on who deploys it; only the order of objects may."""
    one, other = (sorted(map(json.dumps, render(profile, helm=helm))) for helm in HELMS)
    assert one == other


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", [*PROFILES, "all"])
def test_kubernetes_takes_it(version: str, values: str) -> None:
    """Every object is valid, with no unknown field, in three versions of Kubernetes."""
    changes = {**ALL, "verify": {**ALL["verify"]}}
    if version == "1.30":  # volumes from images came later
        changes["verify"]["weights"] = {"cache": {"claim": {"enabled": True}}}
    objects = render(**changes) if values == "all" else render(values)
    assert len(objects) > 15
    for one in objects:
        validate(one, version)


def validate(one: Object, version: str) -> None:
    """Checks an object against its schema.

    Raises:
        ValidationError: it does not fit.
    """
    crd = CRDS / f"{one['kind'].lower()}.json"
    if crd.exists():
        jsonschema.validate(one, json.loads(crd.read_text()))
    else:
        kubernetes_validate.validate(one, version, strict=True)


def test_validation_sees_mistakes() -> None:
    """The schemas refuse what they should: a wrong type, an unknown field, also in other APIs."""
    for kind, path, value in [
        ("Deployment", ("spec", "replicas"), "two"),
        ("Deployment", ("spec", "template", "spec", "serviceAcount"), "x"),
        ("ScaledObject", ("spec", "minReplicas"), 1),
        ("PodMonitor", ("spec", "podMetricsEndpoints"), {}),
        ("PrometheusRule", ("spec", "rules"), []),
    ]:
        one = next(iter(of_kind(render("ha"), kind).values()))
        *parents, last = path
        place = one
        for key in parents:
            place = place[key]
        place[last] = value
        with pytest.raises((kubernetes_validate.ValidationError, jsonschema.ValidationError)):
            validate(one, "1.33")


def test_pools_stand_beside_one_another() -> None:
    """A pool is a Deployment of its own behind its tier's Service; the main one is unchanged."""
    plain = pods(render())
    both = pods(render(verify={"pools": {"next": {"model": "org/next", "replicas": 3}}}))
    assert plain == {name: pod for name, pod in both.items() if "next" not in name}
    following = both["shop-paceline-verify-next"]
    assert "org/next" == environment(following)["PACELINE_VERIFY_MODEL"]
    service = of_kind(render(), "Service")["shop-paceline-verify"]["spec"]["selector"]
    assert service.items() <= following["metadata"]["labels"].items()
    selectors = [
        one["spec"]["selector"]["matchLabels"]
        for one in of_kind(render(verify={"pools": {"next": {}}}), "Deployment").values()
    ]
    assert len(selectors) == len({tuple(sorted(one.items())) for one in selectors})


def test_nothing_is_also_a_value() -> None:
    """A 0 and a false count over a default; Helm's own merging would ignore them."""
    objects = render(
        draft={"replicas": 0, "drainTimeoutSeconds": 0, "settings": {"exact": False}},
        defaults={"replicas": 5, "weights": {"offline": True}},
        verify={"weights": {"offline": False}},
    )
    found = of_kind(objects, "Deployment")
    assert 0 == found["shop-paceline-draft"]["spec"]["replicas"]
    assert 5 == found["shop-paceline-verify"]["spec"]["replicas"]
    draft, verify = (pods(objects)[f"shop-paceline-{name}"] for name in ("draft", "verify"))
    assert ("false", "0") == (
        environment(draft)["PACELINE_DRAFT_EXACT"],
        environment(draft)["PACELINE_DRAFT_DRAIN_TIMEOUT_S"],
    )
    assert "HF_HUB_OFFLINE" in environment(draft)
    assert "HF_HUB_OFFLINE" not in environment(verify)


def test_settings_reach_the_service() -> None:
    """Numbers without an exponent, lists by commas, tables as JSON: as the services read them."""
    arms = {"short": {"share": 0.1, "draft_length": "fixed:2"}}
    changes: dict[str, Any] = {"gateway": {"settings": {"arms": arms, "reflection": True}}}
    more = {"NUMBA_CACHE_DIR": "/var/cache/paceline/numba"}
    changes["verify"] = {"settings": {"max_sessions": 12345678}, "env": more}
    found = pods(render(**changes))
    gateway = environment(found["shop-paceline-gateway"])
    assert arms == json.loads(gateway["PACELINE_GATEWAY_ARMS"])
    assert "true" == gateway["PACELINE_GATEWAY_REFLECTION"]
    verify = environment(found["shop-paceline-verify"])
    assert "12345678" == verify["PACELINE_VERIFY_MAX_SESSIONS"]
    assert more.items() <= verify.items()
    assert more.keys().isdisjoint(environment(found["shop-paceline-draft"]))
    draft = environment(found["shop-paceline-draft"])
    assert "quantized:int4,ngram" == draft["PACELINE_DRAFT_SOURCE"]


@pytest.mark.parametrize("profile", PROFILES)
def test_the_services_take_their_settings(profile: str) -> None:
    """Every variable of a pod is a setting that its service knows, with a value that it takes."""
    for config in (GatewayConfig, DraftConfig, VerifyConfig):
        pod = pods(render(profile))[f"shop-paceline-{config.section}"]
        settings = load(config, [], environment(pod))
        assert (50051, 9464) == (settings.port, settings.metrics_port)
        assert 50052 == settings.health_port


def test_certificates_reach_both_ends() -> None:
    """Inner tiers ask for certificates and the gateway shows its own; clients only where asked."""
    tls: dict[str, Any] = {
        "mode": "secrets",
        "secrets": {t: t for t in ("gateway", "draft", "verify")},
    }
    folder = "/var/run/secrets/paceline/tls"
    for asks in (False, True):
        found = pods(render(tls={**tls, "clientCertificates": asks}))
        for config in (GatewayConfig, DraftConfig, VerifyConfig):
            pod = found[f"shop-paceline-{config.section}"]
            settings = load(config, [], environment(pod))
            files = settings.tls()
            assert [f"{folder}/tls.crt", f"{folder}/tls.key"] == [str(p) for p in files.paths[:2]]
            assert (files.ca is not None) == (asks or config is not GatewayConfig)
            (secret,) = [one["secret"] for one in pod["spec"]["volumes"] if "secret" in one]
            assert (config.section, 0o440) == (secret["secretName"], secret["defaultMode"])
            if isinstance(settings, GatewayConfig):
                names = ("tls.crt", "tls.key", "ca.crt")
                assert [f"{folder}/{n}" for n in names] == [
                    str(p) for p in settings.tier_tls().paths
                ]
        items = found["shop-paceline-test"]["spec"]["volumes"][0]["secret"].get("items")
        assert (None if asks else [{"key": "ca.crt", "path": "ca.crt"}]) == items


def test_certificates_are_for_the_names_that_are_dialled() -> None:
    """cert-manager makes one per tier, each for what the gateway and clients call it by."""
    objects = render(tls={"mode": "certManager", "issuer": {"name": "ca"}})
    settings = environment(pods(objects)["shop-paceline-gateway"])
    certificates = of_kind(objects, "Certificate")
    for tier in ("verify", "draft"):
        name = settings[f"PACELINE_GATEWAY_{tier.upper()}"].rpartition(":")[0]
        assert name in certificates[f"shop-paceline-{tier}"]["spec"]["dnsNames"]
    names = certificates["shop-paceline-gateway"]["spec"]["dnsNames"]
    assert {"shop-paceline-gateway", "shop-paceline-gateway-replicas.default"} <= set(names)


def test_a_zone_comes_from_the_pod_or_from_settings() -> None:
    """Kubernetes labels pods with it; what is set by hand goes before."""
    found = pods(render(verify={"settings": {"zone": "west"}}))
    assert "west" == environment(found["shop-paceline-verify"])["PACELINE_VERIFY_ZONE"]
    variables = container(found["shop-paceline-gateway"])["env"]
    (zone,) = [one for one in variables if one["name"] == "PACELINE_GATEWAY_ZONE"]
    path = "metadata.labels['topology.kubernetes.io/zone']"
    assert {"fieldRef": {"fieldPath": path}} == zone["valueFrom"]


def test_scalers_own_the_number_of_pods() -> None:
    """B123: with a scaler the Deployment names no number; each tier has one, on its own load."""
    objects = render("ha")
    scalers = of_kind(objects, "ScaledObject")
    deployments = of_kind(objects, "Deployment")
    assert deployments.keys() == scalers.keys()
    assert all("replicas" not in one["spec"] for one in deployments.values())
    for name, scaler in scalers.items():
        (trigger,) = scaler["spec"]["triggers"]
        assert f'pod=~"{name}-[a-z0-9]{{1,10}}-[a-z0-9]{{5}}"' in trigger["metadata"]["query"]
        assert "false" == trigger["metadata"]["ignoreNullValues"]
        assert scaler["spec"]["minReplicaCount"] >= 1


def test_a_tier_without_pods_comes_back() -> None:
    """Only drafts may all go: a running generation wakes one, and nothing known wakes nobody."""
    none = {"autoscaling": {"minReplicas": 0}}
    pooled = {**none, "pools": {"east": {}}}
    scalers = of_kind(render("ha", gateway=pooled, draft=none, verify=none), "ScaledObject")
    least = {name: one["spec"]["minReplicaCount"] for name, one in scalers.items()}
    assert 0 == least.pop("shop-paceline-draft")
    assert {1} == set(least.values())
    own, wakes = (one["metadata"] for one in scalers["shop-paceline-draft"]["spec"]["triggers"])
    assert ("true", "false") == (own["ignoreNullValues"], wakes["ignoreNullValues"])
    assert "activationThreshold" not in own
    assert "0" == wakes["activationThreshold"]
    assert int(wakes["threshold"]) > 1000 * 64  # more than any number of gateways carries
    assert "sum(paceline_generations_running{" in wakes["query"]
    found = pattern(wakes["query"])
    for name in ("shop-paceline-gateway", "shop-paceline-gateway-east"):
        assert found.fullmatch(pod_name(name))
    assert not found.fullmatch(pod_name("shop-paceline-verify"))
    for name, one in scalers.items():
        if name != "shop-paceline-draft":
            (trigger,) = one["spec"]["triggers"]
            assert "false" == trigger["metadata"]["ignoreNullValues"]


def pattern(query: str) -> re.Pattern[str]:
    """The pods that a query asks of."""
    (found,) = re.findall(r'pod=~"([^"]+)"', query)
    return re.compile(found)


def pod_name(deployment: str, digest: str = "7f9c6d5b8b") -> str:
    """A pod's name as Kubernetes makes it: what comes before the random part is cut at 58."""
    return f"{deployment}-{digest}-"[:58] + "x2k9z"


@pytest.mark.parametrize("length", [4, 20, 36, 50])
def test_scalers_know_their_pods(length: int) -> None:
    """Each finds all of its own, and a main pool's no others, also where names are cut."""
    names = [*("p" * count for count in range(1, 17)), "a-b", "a-bb-ccc-dddd"]
    tier: dict[str, Any] = {"pools": {name: {} for name in names}}
    objects = render("ha", fullnameOverride="r" * length, gateway=tier, verify=tier, draft=tier)
    scalers = of_kind(objects, "ScaledObject")
    assert 3 * (1 + len(names)) == len(scalers)
    digests = ("7f9c6d5b8b", "9c6d5b8b", "5b8b")  # hashes are 32 bits in digits, so some are short
    made = [(pod_name(name, digest), name) for name in scalers for digest in digests]
    for name, scaler in scalers.items():
        (trigger,) = scaler["spec"]["triggers"]
        found = pattern(trigger["metadata"]["query"])
        chosen = [owner for pod, owner in made if found.fullmatch(pod)]
        assert len(digests) == chosen.count(name)
        if name.rpartition("-")[2] in ("gateway", "verify", "draft"):
            assert {name} == set(chosen)
