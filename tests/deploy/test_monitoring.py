"""Dashboard, alerts and scalers ask for metrics that exist; alerts fire where they should."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.dashboard import ROWS, dashboard
from gateway.watch import FASTER
from tests.deploy.rendering import CHART, of_kind, render
from tests.deploy.tools import find

ROOT = CHART.parent.parent
# The namespace of the unit tests.
NAMESPACE = "n"
METRIC = re.compile(r"\bpaceline_[a-z_]+")


def rules_in(namespace: str) -> Any:
    """The file of alerts as the chart renders it for a release in a namespace."""
    text = (CHART / "files" / "rules.yaml").read_text()
    return yaml.safe_load(text.replace("RELEASE_NAMESPACE", namespace))


RULES = rules_in(NAMESPACE)


def known_metrics() -> set[str]:
    """Every series that the services have, from the table that a test holds to their code."""
    found: set[str] = set()
    for name, kind in re.findall(
        r"^\| `(\w+)` \| (\w+) \|", (ROOT / "METRICS.md").read_text(), re.M
    ):
        parts = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        found |= {name + part for part in parts}
    return found


def rules() -> Iterator[dict[str, Any]]:
    """Every alert."""
    for group in RULES["groups"]:
        yield from group["rules"]


def queries() -> Iterator[str]:
    """Every query of dashboard and alerts."""
    for row in ROWS.values():
        for panel in row:
            yield from (query for query, _ in panel.queries)
    yield from (rule["expr"] for rule in rules())
    yield from (variable["query"] for variable in dashboard()["templating"]["list"])


def test_every_metric_exists() -> None:
    """What is asked for is what the services serve."""
    asked = {name for query in queries() for name in METRIC.findall(query)}
    assert len(asked) > 30
    assert set() == asked - known_metrics()


def test_alerts_say_what_to_do() -> None:
    """Each has a severity, a summary and a description."""
    for rule in rules():
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"].keys() == {"summary", "description"}


def test_alerts_name_reasons_that_exist() -> None:
    """Reasons of errors are words of the code, so that none is spelled as nothing ever ends."""
    folders = ("gateway", "paceline", "verify_service")
    sources = [path.read_text() for name in folders for path in (ROOT / name).rglob("*.py")]
    words = {word for text in sources for word in re.findall(r'"([A-Z_]+)"', text)}
    for alert, least in (("PacelineFailing", 10), ("PacelineRefusing", 2)):
        (expr,) = (rule["expr"] for rule in rules() if rule["alert"] == alert)
        (reasons,) = re.findall(r'(?:outcome|reason)=~"([A-Z_|]+)"', expr)
        assert len(reasons.split("|")) >= least
        assert set() == set(reasons.split("|")) - words


def test_a_draft_that_pays_is_judged_as_the_gateway_does() -> None:
    """The estimate from which a low acceptance is no alert is the gateway's own."""
    (expr,) = (rule["expr"] for rule in rules() if rule["alert"] == "PacelineAcceptanceLow")
    assert f"paceline_speculation_speedup) >= {FASTER}" in expr


@pytest.mark.deploy
def test_scalers_ask_for_gauges_that_exist() -> None:
    """B123: targets are metrics of the tier's own pods."""
    none = render("ha", draft={"autoscaling": {"minReplicas": 0}})
    for scaler in of_kind(none, "ScaledObject").values():
        for trigger in scaler["spec"]["triggers"]:
            (name,) = METRIC.findall(trigger["metadata"]["query"])
            assert name in known_metrics()


@pytest.mark.deploy
def test_alerts_fire_where_they_should(tmp_path: Path) -> None:
    """The unit tests of `alerts.yaml`; texts are left out, since promtool compares them whole."""
    shutil.copy(Path(__file__).with_name("alerts.yaml"), tmp_path)
    promtool = find("promtool")
    subprocess.run((promtool, "check", "rules", CHART / "files" / "rules.yaml"), check=True)
    bare = [
        {
            **group,
            "rules": [
                {k: v for k, v in rule.items() if k != "annotations"} for rule in group["rules"]
            ],
        }
        for group in RULES["groups"]
    ]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": bare}))
    command = (promtool, "test", "rules", tmp_path / "alerts.yaml")
    done = subprocess.run(command, capture_output=True, text=True)
    assert 0 == done.returncode, done.stdout + done.stderr


@pytest.mark.deploy
def test_every_alert_is_tested() -> None:
    """Each fires once in the unit tests, and each test knows a case beside it."""
    tested = yaml.safe_load(Path(__file__).with_name("alerts.yaml").read_text())["tests"]
    fired = {
        check["alertname"]
        for test in tested
        for check in test["alert_rule_test"]
        if check["exp_alerts"]
    }
    assert {rule["alert"] for rule in rules()} == fired


@pytest.mark.deploy
def test_queries_are_promql(tmp_path: Path) -> None:
    """Prometheus' own tool parses every query of the dashboard, as a rule."""
    filled = [
        {"record": f"query:{number}", "expr": query.replace("$__rate_interval", "5m")}
        for number, query in enumerate(queries())
        if "label_values" not in query and query != "prometheus"
    ]
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": filled}]}))
    done = subprocess.run(
        (find("promtool"), "check", "rules", path), capture_output=True, text=True
    )
    assert 0 == done.returncode, done.stdout + done.stderr


@pytest.mark.deploy
def test_they_are_in_the_chart() -> None:
    """The objects hold the files, and none is there where it was not asked for."""
    found = render("ha")
    assert rules_in("default") == of_kind(found, "PrometheusRule")["shop-paceline"]["spec"]
    held = of_kind(found, "ConfigMap")["shop-paceline-dashboard"]
    assert dashboard() == yaml.safe_load(held["data"]["paceline.json"])
    assert "1" == held["metadata"]["labels"]["grafana_dashboard"]
    kinds = {one["kind"] for one in render()}
    assert set() == kinds & {"PodMonitor", "PrometheusRule", "ConfigMap", "ScaledObject"}
