"""METRICS.md says what the services register, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from draft_service.config import DraftConfig
from draft_service.service import DraftService
from gateway.config import GatewayConfig
from gateway.service import GatewayService
from paceline.serving.config import load
from paceline.serving.metrics import CallMetrics
from verify_service.config import VerifyConfig
from verify_service.service import VerifyService

TABLE = Path(__file__).parent.parent / "METRICS.md"
Row = tuple[str, tuple[str, ...], str]


def registries() -> Iterator[CollectorRegistry]:
    """What each service has registered before it has loaded anything."""
    for service in (
        GatewayService(load(GatewayConfig, ["--verify", "127.0.0.1:1"], {})),
        VerifyService(VerifyConfig()),
        DraftService(DraftConfig()),
    ):
        CallMetrics(service.registry)
        yield service.registry


def registered() -> dict[str, Row]:
    """Type, labels and meaning of every metric, by the name that a scrape has."""
    found: dict[str, Row] = {}
    for registry in registries():
        for collector in registry._collector_to_names:
            families: list[Any] = [collector]
            if not hasattr(collector, "_labelnames"):
                families = list(collector.collect())
            for family in families:
                metric = family.describe()[0] if hasattr(family, "describe") else family
                suffix = "_total" if metric.type == "counter" else ""
                row = metric.type, tuple(family._labelnames), metric.documentation
                if metric.name.startswith("paceline_"):
                    assert row == found.setdefault(metric.name + suffix, row), metric.name
    return found


def documented() -> dict[str, Row]:
    """The same, as the table says it."""
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*) \| (.*) \|$", TABLE.read_text(), re.MULTILINE)
    return {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels)), text)
        for name, kind, labels, text in rows
    }


def test_every_metric_is_in_the_table() -> None:
    """Names, types, labels and meanings are those of the code, in both directions."""
    assert registered() == documented()


def test_the_table_is_not_empty() -> None:
    """Every tier has its own, or the comparison would pass with nothing."""
    prefixes = ("paceline_rounds", "paceline_verify_", "paceline_draft_", "paceline_engine_")
    assert [p for p in prefixes if not any(name.startswith(p) for name in documented())] == []


@pytest.mark.parametrize("name", sorted(documented()))
def test_units_are_in_the_names(name: str) -> None:
    """Times are in seconds, counts end in _total, as Prometheus asks."""
    kind, _, _ = documented()[name]
    assert (kind == "counter") == name.endswith("_total")
    assert not re.search(r"_(ms|millis|microseconds)(_|$)", name)


def test_queries_name_real_metrics() -> None:
    """The examples ask for what is there."""
    suffixes = re.compile(r"_(sum|count|bucket)$")
    asked = set(re.findall(r"\bpaceline_\w+", TABLE.read_text()))
    known = documented().keys()
    assert {
        name for name in asked if name not in known and suffixes.sub("", name) not in known
    } == (set())
