"""The Grafana dashboard: four questions, a row of panels each. `deploy/generate.py` writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_WIDTH, _HEIGHT = 24, 8
# Every panel keeps to the chosen namespaces.
_WHERE = 'namespace=~"$namespace"'


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture: queries in PromQL, each with the legend of its series."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    description: str = ""


def _rate(metric: str, by: str = "", where: str = "") -> str:
    chosen = f"{_WHERE}, {where}" if where else _WHERE
    return f"sum by ({by}) (rate({metric}{{{chosen}}}[$__rate_interval]))"


def _quantile(share: float, histogram: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, {_rate(f'{histogram}_bucket', labels)})"


def _mean(histogram: str, by: str = "") -> str:
    return f"{_rate(f'{histogram}_sum', by)} / {_rate(f'{histogram}_count', by)}"


def _gauge(metric: str, by: str, how: str = "sum") -> str:
    return f"{how} by ({by}) ({metric}{{{_WHERE}}})"


ROWS: dict[str, tuple[Panel, ...]] = {
    "Is it faster than plain?": (
        Panel(
            "Speed-up over plain decoding",
            "none",
            ((_gauge("paceline_speculation_speedup", "source", "avg"), "{{source}}"),),
            "Time of a plain round over time per token with a draft. Under 1 a draft costs.",
        ),
        Panel(
            "Tokens per second",
            "short",
            ((_rate("paceline_tokens_total", "origin"), "{{origin}}"),),
            "Where tokens came from: accepted draft tokens, the target's own, plain decoding.",
        ),
        Panel(
            "Acceptance",
            "percentunit",
            (
                (
                    f"{_rate('paceline_accepted_tokens_total', 'source')}"
                    f" / {_rate('paceline_drafted_tokens_total', 'source')}",
                    "{{source}}",
                ),
            ),
        ),
        Panel(
            "Acceptance by place in the proposal",
            "percentunit",
            (
                (
                    f"{_rate('paceline_accepted_tokens_total', 'position')}"
                    f" / {_rate('paceline_drafted_tokens_total', 'position')}",
                    "{{position}}",
                ),
            ),
        ),
        Panel(
            "Tokens per round and draft length",
            "short",
            (
                (_mean("paceline_acceptance_length", "source"), "committed, {{source}}"),
                (_mean("paceline_draft_length", "source"), "asked for, {{source}}"),
            ),
        ),
        Panel(
            "Arms: seconds per token",
            "s",
            ((_mean("paceline_token_seconds", "arm"), "{{arm}}"),),
            "Arms of a comparison; empty outside of one.",
        ),
        Panel(
            "Cost of a million tokens",
            "short",
            ((_gauge("paceline_cost_per_million_tokens", "pod", "max"), "{{pod}}"),),
        ),
    ),
    "Where does a round's time go?": (
        Panel(
            "Mean seconds per round, by stage",
            "s",
            ((_mean("paceline_stage_seconds", "stage"), "{{stage}}"),),
            "overhead is what neither tier spends: the gateway, the wire, the wait for drafts.",
        ),
        Panel(
            "A round",
            "s",
            (
                (_quantile(0.5, "paceline_round_seconds", "outcome"), "median, {{outcome}}"),
                (_quantile(0.99, "paceline_round_seconds", "outcome"), "p99, {{outcome}}"),
            ),
        ),
        Panel(
            "To the first token",
            "s",
            (
                (_quantile(0.5, "paceline_time_to_first_token_seconds"), "median"),
                (_quantile(0.99, "paceline_time_to_first_token_seconds"), "p99"),
            ),
        ),
        Panel(
            "Bytes between the tiers, per token",
            "bytes",
            (
                (
                    f"{_rate('paceline_wire_bytes_total', 'tier')}"
                    f" / scalar({_rate('paceline_tokens_total')})",
                    "{{tier}}",
                ),
            ),
        ),
    ),
    "Which tier is short?": (
        Panel(
            "Generations and sessions",
            "short",
            (
                (_gauge("paceline_generations_running", ""), "generations"),
                (_gauge("paceline_sessions_open", "tier"), "sessions, {{tier}}"),
            ),
        ),
        Panel(
            "Pods that take sessions",
            "short",
            ((_gauge("paceline_replicas", "tier", "max"), "{{tier}}"),),
        ),
        Panel(
            "Jobs that wait",
            "short",
            ((_gauge("paceline_engine_queue_depth", "tier, pod"), "{{tier}} {{pod}}"),),
        ),
        Panel(
            "Rows per step",
            "short",
            ((_mean("paceline_engine_step_rows", "tier"), "{{tier}}"),),
            "Rows cost little until the hardware is full; then more pods help.",
        ),
        Panel(
            "A step",
            "s",
            (
                (_quantile(0.5, "paceline_engine_step_seconds", "tier"), "median, {{tier}}"),
                (_quantile(0.99, "paceline_engine_step_seconds", "tier"), "p99, {{tier}}"),
            ),
        ),
        Panel(
            "Cache blocks held",
            "percentunit",
            (
                (
                    f"{_gauge('paceline_engine_kv_blocks_held', 'tier, pod')} / ("
                    f"{_gauge('paceline_engine_kv_blocks_held', 'tier, pod')} + "
                    f"{_gauge('paceline_engine_kv_blocks_free', 'tier, pod')})",
                    "{{tier}} {{pod}}",
                ),
            ),
        ),
        Panel(
            "Preemptions and prefix hits",
            "short",
            (
                (_rate("paceline_engine_preemptions_total", "tier"), "preemptions/s, {{tier}}"),
                (
                    f"{_rate('paceline_engine_prefix_hit_tokens_total', 'tier')}"
                    f" / {_rate('paceline_engine_prefix_tokens_total', 'tier')}",
                    "share of prompt tokens cached, {{tier}}",
                ),
            ),
        ),
        Panel(
            "Rounds without the draft they asked for",
            "short",
            ((_rate("paceline_fallbacks_total", "cause"), "{{cause}}"),),
        ),
    ),
    "Is the law intact, and who was turned away?": (
        Panel(
            "Evidence against the laws",
            "none",
            ((_gauge("paceline_audit_evidence", "kind", "max"), "{{kind}}"),),
            "An alarm from 1 on; a right system stays below for its whole life.",
        ),
        Panel(
            "Replays as plain decoding",
            "short",
            ((_rate("paceline_replays_total", "outcome"), "{{outcome}}"),),
        ),
        Panel(
            "Ends of generations",
            "short",
            ((_rate("paceline_generations_total", "outcome"), "{{outcome}}"),),
        ),
        Panel(
            "Refusals and reopenings",
            "short",
            (
                (_rate("paceline_refusals_total", "reason"), "{{reason}}"),
                (_rate("paceline_reopenings_total"), "reopened sessions"),
            ),
        ),
    ),
}


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for question, row in ROWS.items():
        place = {"h": 1, "w": _WIDTH, "x": 0, "y": top}
        panels.append({"type": "row", "title": question, "gridPos": place, "panels": []})
        for number, panel in enumerate(row):
            line, column = divmod(number, 3)
            place = {"h": _HEIGHT, "w": 8, "x": 8 * column, "y": top + 1 + _HEIGHT * line}
            panels.append(_panel(panel) | {"gridPos": place})
        top += 1 + _HEIGHT * -(-len(row) // 3)
    for number, one in enumerate(panels, start=1):
        one["id"] = number
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Source"}
    namespaces = "label_values(paceline_generations_running, namespace)"
    chosen = {"name": "namespace", "type": "query", "query": namespaces, "multi": True}
    chosen |= {"includeAll": True, "datasource": _SOURCE, "refresh": 2, "label": "Namespace"}
    return {
        "title": "Paceline",
        "uid": "paceline",
        "tags": ["paceline"],
        "schemaVersion": 39,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": [source, chosen]},
        "panels": panels,
    }


_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def _panel(panel: Panel) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": query, "legendFormat": legend}
            for number, (query, legend) in enumerate(panel.queries)
        ],
    }
