"""What may be said in values: everything that is explained, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.deploy.rendering import CHART, HELMS, ChartError, container, pods, render

pytestmark = pytest.mark.deploy
VALUES = (CHART / "values.yaml").read_text()
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"verfy": {}}, "verfy"),
    ({"verify": {"replica": 2}}, "replica"),
    ({"verify": {"replicas": "2"}}, "replicas"),
    ({"verify": {"replicas": -1}}, "replicas"),
    ({"verify": {"model": ""}}, "model"),
    ({"gateway": {"model": "smollm2"}}, "model"),
    ({"verify": {"sources": ["ngram"]}}, "sources"),
    ({"verify": {"image": {"tag": "latest"}}}, "tag"),
    ({"verify": {"image": {"digest": "sha256:12"}}}, "digest"),
    ({"verify": {"settings": {"modle": "x"}}}, "modle"),
    ({"verify": {"settings": {"max_rows": "many"}}}, "max_rows"),
    ({"verify": {"settings": {"max_rows": 1}}}, "max_rows"),
    ({"verify": {"settings": {"port": 1}}}, "port"),
    ({"gateway": {"settings": {"max_rows": 64}}}, "max_rows"),
    ({"defaults": {"settings": {"memory_mib": 9}}}, "memory_mib"),
    ({"defaults": {"model": "x"}}, "model"),
    ({"verify": {"rollout": {"maxSurge": 0, "maxUnavailable": 0}}}, "rollout"),
    ({"verify": {"pools": {"main": {}}}}, "main|pools"),
    ({"verify": {"pools": {"next": {"modle": "x"}}}}, "next"),
    ({"verify": {"pools": {"next": {"pools": {}}}}}, "next"),
    ({"verify": {"maxDisrupted": 0}}, "maxDisrupted"),
    ({"verify": {"preStopSeconds": 0}}, "preStopSeconds"),
    ({"verify": {"topologySpread": "Always"}}, "topologySpread"),
    ({"verify": {"resources": {"limits": {"memory": "4 GB"}}}}, "memory"),
    ({"draft": {"autoscaling": {"mode": "kedda"}}}, "mode"),
    ({"draft": {"autoscaling": {"mode": "keda"}}}, "prometheus"),
    ({"draft": {"autoscaling": {"targets": {"x": 0}}}}, "targets"),
    ({"tls": {"enabled": True}}, "tls"),
    ({"tls": {"mode": "on"}}, "mode"),
    ({"tls": {"mode": "secrets", "secrets": {"gateway": "g", "draft": "d"}}}, "tls.secrets.verify"),
    ({"tls": {"mode": "certManager"}}, "tls.issuer.name"),
    ({"verify": {"settings": {"tls_key": "/k"}}}, "tls_key"),
    ({"auth": {"tokenSecret": {"keys": "x"}}}, "keys"),
]


@pytest.mark.parametrize("helm", HELMS)
@pytest.mark.parametrize(("values", "named"), REFUSED, ids=[str(one) for one, _ in REFUSED])
def test_typos_are_refused(helm: str, values: dict[str, Any], named: str) -> None:
    """A wrong key or value ends the installation, and the message names it."""
    with pytest.raises(ChartError, match=named):
        render(helm=helm, **values)


def test_one_claim_cannot_serve_many() -> None:
    """B126: several replicas, or a scaler, need a cache that they can share."""
    alone = {"weights": {"cache": {"claim": {"enabled": True, "accessMode": "ReadWriteOnce"}}}}
    render(verify={**alone, "replicas": 1})
    for more in ({"replicas": 2}, {"autoscaling": {"mode": "hpa"}}):
        with pytest.raises(ChartError, match="ReadWriteOnce"):
            render(verify=alone | more)


@pytest.mark.parametrize(
    ("weights", "cache", "models"),
    [
        ({}, {"emptyDir": {"sizeLimit": "20Gi"}}, None),
        (
            {"cache": {"existingClaim": "mine"}},
            {"persistentVolumeClaim": {"claimName": "mine"}},
            None,
        ),
        (
            {"cache": {"claim": {"enabled": True}}},
            {"persistentVolumeClaim": {"claimName": "shop-paceline-verify-cache"}},
            None,
        ),
        (
            {"existingClaim": "weights"},
            {"emptyDir": {"sizeLimit": "20Gi"}},
            {"persistentVolumeClaim": {"claimName": "weights", "readOnly": True}},
        ),
        (
            {"image": "images.example/weights:3"},
            {"emptyDir": {"sizeLimit": "20Gi"}},
            {"image": {"reference": "images.example/weights:3", "pullPolicy": "IfNotPresent"}},
        ),
    ],
)
def test_weights_come_from_volumes(
    weights: dict[str, Any], cache: dict[str, Any], models: dict[str, Any] | None
) -> None:
    """B126: a claim, a cache or an image; weights are mounted read-only."""
    pod = pods(render(verify={"weights": weights}))["shop-paceline-verify"]
    volumes = {one.pop("name"): one for one in pod["spec"]["volumes"]}
    assert (cache, models) == (volumes["cache"], volumes.get("weights"))
    mounts = {one["name"]: one for one in container(pod)["volumeMounts"]}
    assert (models is not None) == ("weights" in mounts)
    if models:
        assert mounts["weights"]["readOnly"] is True


def test_the_hub_token_comes_from_a_secret() -> None:
    """It is never a value."""
    pod = pods(render(verify={"weights": {"tokenSecret": {"name": "hub"}}}))["shop-paceline-verify"]
    (variable,) = [one for one in container(pod)["env"] if one["name"] == "HF_TOKEN"]
    assert {"secretKeyRef": {"name": "hub", "key": "token"}} == variable["valueFrom"]


def test_the_values_are_prose() -> None:
    """They fit in the head, and the schema knows every key of them."""
    assert len(VALUES.splitlines()) <= 250
    assert yaml.safe_load(VALUES).keys() <= {
        *("nameOverride", "fullnameOverride", "imagePullSecrets", "serviceAccountAnnotations"),
        *("defaults", "gateway", "draft", "verify", "service", "networkPolicy", "metrics", "test"),
        *("tls", "auth"),
    }
