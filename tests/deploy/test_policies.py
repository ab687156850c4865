"""What every rendered pod must be: confined, bounded, watched, and given time to end."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pytest

from tests.deploy.rendering import (
    PROFILES,
    Object,
    container,
    environment,
    of_kind,
    pods,
    render,
    selects,
)

pytestmark = pytest.mark.deploy
each_profile = pytest.mark.parametrize("profile", PROFILES)
UNITS = {"m": Decimal("0.001")} | {
    unit: Decimal(1 << 10 * power) for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti"), start=1)
}


def amount(quantity: str | int) -> Decimal:
    """The number that a Kubernetes quantity stands for."""
    match = re.fullmatch(r"([\d.]+)([A-Za-z]*)", str(quantity))
    assert match is not None, quantity
    return Decimal(match[1]) * (UNITS[match[2]] if match[2] else 1)


@each_profile
def test_pods_are_confined(profile: str) -> None:
    """The restricted standard, a read-only root, no token, no writable place but a volume."""
    for name, pod in pods(render(profile)).items():
        spec, one = pod["spec"], container(pod)
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert {"type": "RuntimeDefault"} == spec["securityContext"]["seccompProfile"]
        assert {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        } == one["securityContext"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        kinds = {next(k for k in volume if k != "name") for volume in spec.get("volumes", [])}
        assert kinds <= {"emptyDir", "persistentVolumeClaim", "image"}


@each_profile
def test_accounts_have_no_token(profile: str) -> None:
    """No pod talks to the API server, so none can."""
    accounts = of_kind(render(profile), "ServiceAccount")
    assert 3 == len(accounts)
    assert not any(one["automountServiceAccountToken"] for one in accounts.values())
    used = {pod["spec"]["serviceAccountName"] for pod in pods(render(profile)).values()}
    assert accounts.keys() == used


@each_profile
def test_variables_of_services_do_not_become_settings(profile: str) -> None:
    """Kubernetes would add PACELINE_GATEWAY_PORT=tcp://... for a release called paceline."""
    assert not any(pod["spec"]["enableServiceLinks"] for pod in pods(render(profile)).values())


@each_profile
def test_resources_are_bounded(profile: str) -> None:
    """Requests and limits are set, and what an engine plans to use fits under its limit."""
    for name, pod in pods(render(profile)).items():
        resources = container(pod)["resources"]
        for kind in ("cpu", "memory"):
            request, limit = resources["requests"][kind], resources["limits"][kind]
            assert 0 < amount(request) <= amount(limit), name
        for variable, value in environment(pod).items():
            on_gpu = any(key.endswith("/gpu") for key in resources["limits"])
            if variable.endswith("_MEMORY_MIB") and not on_gpu:
                assert int(value) << 20 < amount(resources["limits"]["memory"])


@each_profile
def test_images_are_pinned(profile: str) -> None:
    """A rollback must know what it returns to."""
    for pod in pods(render(profile)).values():
        name, _, tag = container(pod)["image"].rpartition(":")
        assert name
        assert tag not in {"", "latest"}


def test_a_digest_goes_before_the_tag() -> None:
    """Production pins what it was tested with."""
    digest = "sha256:" + "0" * 64
    image = {"registry": "images.example/team", "tag": "9", "digest": digest}
    found = {container(pod)["image"] for pod in pods(render(defaults={"image": image})).values()}
    assert {
        f"images.example/team/paceline/{name}@{digest}" for name in ("gateway", "engine-cpu")
    } == found


@each_profile
def test_pods_are_watched(profile: str) -> None:
    """B122: all three probes, over gRPC; startup waits for a load, liveness is a check apart."""
    for name, pod in pods(render(profile)).items():
        if name.endswith("-test"):
            continue
        one = container(pod)
        startup, liveness = one["startupProbe"], one["livenessProbe"]
        assert {"port": 50052, "service": ""} == one["readinessProbe"]["grpc"]
        assert {50052} == {startup["grpc"]["port"], liveness["grpc"]["port"]}
        assert ("health", 50052) == (one["ports"][1]["name"], one["ports"][1]["containerPort"])
        assert "liveness" == liveness["grpc"]["service"]
        assert "initialDelaySeconds" not in liveness
        is_gateway = one["name"] == "gateway"
        assert ("liveness" if is_gateway else "") == startup["grpc"]["service"]
        assert startup["failureThreshold"] * startup["periodSeconds"] >= (60 if is_gateway else 900)
        assert 50051 == one["ports"][0]["containerPort"]


@pytest.mark.parametrize("seconds", [10, 61, 3600])
def test_a_load_gets_its_time(seconds: int) -> None:
    """B122: the startup probe waits at least for the configured time, a rollout for longer."""
    objects = render(verify={"loadTimeoutSeconds": seconds})
    startup = container(pods(objects)["shop-paceline-verify"])["startupProbe"]
    waits_s = startup["failureThreshold"] * startup["periodSeconds"]
    assert seconds <= waits_s <= seconds + 30
    deployment = of_kind(objects, "Deployment")["shop-paceline-verify"]
    assert waits_s < deployment["spec"]["progressDeadlineSeconds"]


def test_a_gateway_waits_as_long_as_a_target_loads() -> None:
    """It is ready only once a target is, so its rollout may take as long as the slowest pool's."""
    objects = render(
        verify={"loadTimeoutSeconds": 1200, "pools": {"slow": {"loadTimeoutSeconds": 3600}}},
        draft={"loadTimeoutSeconds": 7200},
    )
    deadlines = {
        name.removeprefix("shop-paceline-"): one["spec"]["progressDeadlineSeconds"]
        for name, one in of_kind(objects, "Deployment").items()
    }
    expected = {"gateway": 4200, "draft": 7800, "verify": 1800, "verify-slow": 4200}
    assert expected == deadlines
    patient = of_kind(render(gateway={"loadTimeoutSeconds": 2000}), "Deployment")
    assert 2600 == patient["shop-paceline-gateway"]["spec"]["progressDeadlineSeconds"]


@pytest.mark.parametrize("values", [{}, {"preStopSeconds": 1, "drainTimeoutSeconds": 0}, None])
def test_the_end_adds_up(values: dict[str, int] | None) -> None:
    """B125: the grace period holds preStop, then the drain of the service's setting, then more."""
    changes: dict[str, Any] = {} if values is None else {"defaults": values}
    for name, pod in pods(render("ha", **changes)).items():
        if name.endswith("-test"):
            continue
        one = container(pod)
        pre_stop_s = one["lifecycle"]["preStop"]["sleep"]["seconds"]
        drain_s = next(
            int(value)
            for variable, value in environment(pod).items()
            if variable.endswith("_DRAIN_TIMEOUT_S")
        )
        assert pod["spec"]["terminationGracePeriodSeconds"] > pre_stop_s + drain_s


@each_profile
def test_nodes_can_be_drained(profile: str) -> None:
    """B125: every pool has its budget, which lets at least one pod go."""
    objects = render(profile)
    budgets = of_kind(objects, "PodDisruptionBudget")
    assert of_kind(objects, "Deployment").keys() == budgets.keys()
    for name, budget in budgets.items():
        assert budget["spec"]["maxUnavailable"] >= 1
        chosen = [n for n, pod in pods(objects).items() if fits(budget, pod)]
        assert [name] == chosen


def fits(one: Object, pod: Object) -> bool:
    """Whether an object with a selector of labels means a pod."""
    return selects(one["spec"]["selector"]["matchLabels"], pod)


@each_profile
def test_rollouts_end(profile: str) -> None:
    """B124: with GPUs a pod leaves before its follower comes, since no spare GPU may be there."""
    for name, one in of_kind(render(profile), "Deployment").items():
        limits = container(one["spec"]["template"])["resources"]["limits"]
        has_gpu = "nvidia.com/gpu" in limits
        expected = (0, 1) if has_gpu else (1, 0)
        rollout = one["spec"]["strategy"]["rollingUpdate"]
        assert expected == (rollout["maxSurge"], rollout["maxUnavailable"]), name


@each_profile
def test_pods_are_spread(profile: str) -> None:
    """Replicas stand in different zones and on different nodes."""
    insists = profile == "ha"
    for one in of_kind(render(profile), "Deployment").values():
        spreads = one["spec"]["template"]["spec"]["topologySpreadConstraints"]
        assert {"topology.kubernetes.io/zone", "kubernetes.io/hostname"} == {
            spread["topologyKey"] for spread in spreads
        }
        for spread in spreads:
            assert ("DoNotSchedule" if insists else "ScheduleAnyway") == spread["whenUnsatisfiable"]
            assert selects(spread["labelSelector"]["matchLabels"], one["spec"]["template"])


@each_profile
def test_services_find_their_pods(profile: str) -> None:
    """B102: the inner Services are headless and select exactly their tier, on the pods' port."""
    objects = render(profile)
    services = of_kind(objects, "Service")
    for name, tier, is_headless in [
        ("shop-paceline-verify", "verify", True),
        ("shop-paceline-draft", "draft", True),
        ("shop-paceline-gateway-replicas", "gateway", True),
        ("shop-paceline-gateway", "gateway", False),
    ]:
        spec = services[name]["spec"]
        assert is_headless == (spec.get("clusterIP") == "None")
        chosen = {n for n, pod in pods(objects).items() if selects(spec["selector"], pod)}
        assert {f"shop-paceline-{tier}"} == chosen
        assert ("grpc", 50051) == (spec["ports"][0]["targetPort"], spec["ports"][0]["port"])


@each_profile
def test_the_gateway_asks_for_the_services_there_are(profile: str) -> None:
    """The names that it resolves are those of the headless Services."""
    objects = render(profile)
    settings = environment(pods(objects)["shop-paceline-gateway"])
    for tier in ("verify", "draft"):
        name, _, port = settings[f"PACELINE_GATEWAY_{tier.upper()}"].partition(":")
        assert "None" == of_kind(objects, "Service")[name]["spec"]["clusterIP"]
        assert "50051" == port


def reach(objects: list[Object], source: str, target: str, port: str) -> bool:
    """Whether the policies let one pod of the release open a port of another."""
    from_pod, to_pod = pods(objects)[source], pods(objects)[target]
    policies = of_kind(objects, "NetworkPolicy").values()
    ways = {"ingress": (to_pod, "from", from_pod), "egress": (from_pod, "to", to_pod)}
    numbers = {"grpc": 50051, "health": 50052, "metrics": 9464}
    return all(
        any(
            any(p["port"] in (port, numbers[port]) for p in rule["ports"])
            and any(_is_peer(peer, other) for peer in rule.get(key, [{"podSelector": {}}]))
            for policy in policies
            if selects(policy["spec"]["podSelector"]["matchLabels"], held)
            for rule in policy["spec"][way]
        )
        for way, (held, key, other) in ways.items()
        if any(selects(p["spec"]["podSelector"]["matchLabels"], held) for p in policies)
    )


def _is_peer(peer: dict[str, Any], pod: Object) -> bool:
    return "podSelector" in peer and selects(peer["podSelector"].get("matchLabels", {}), pod)


@pytest.mark.parametrize("clients", [[], [{"podSelector": {"matchLabels": {"app": "shop"}}}]])
def test_who_reaches_whom(clients: list[Any]) -> None:
    """The gateway alone reaches the inner tiers; they reach nobody; the test pod gets in."""
    objects = render(networkPolicy={"clients": clients})
    allowed = {
        (source, target)
        for source in ("gateway", "draft", "verify", "test")
        for target in ("gateway", "draft", "verify")
        if reach(objects, f"shop-paceline-{source}", f"shop-paceline-{target}", "grpc")
    }
    assert {("gateway", "draft"), ("gateway", "verify"), ("test", "gateway")} == allowed


def test_probes_reach_every_pod() -> None:
    """Whoever may call: kubelets ask from outside of what peers can name."""
    clients = [{"podSelector": {"matchLabels": {"app": "shop"}}}]
    for policy in of_kind(render(networkPolicy={"clients": clients}), "NetworkPolicy").values():
        assert {"ports": [{"port": "health"}]} in policy["spec"]["ingress"]


@pytest.mark.parametrize("allow_hub", [True, False])
def test_who_leaves_the_cluster(allow_hub: bool) -> None:
    """Only the tiers that load models, and only where they must fetch them."""
    policies = of_kind(render(networkPolicy={"allowHub": allow_hub}), "NetworkPolicy")
    out = {
        name
        for name, policy in policies.items()
        if any(
            "to" not in rule and rule["ports"][0]["port"] != 53 for rule in policy["spec"]["egress"]
        )
    }
    hub = {"shop-paceline-draft", "shop-paceline-verify"}
    assert (hub if allow_hub else set()) == out
