"""`paceline status`: every replica with what is known about it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from paceline.records import AuditReport, AuditSum
from paceline.v1 import gateway_pb2


def test_json_lists_every_replica(gateway: Any, paceline: Any) -> None:
    """Both tiers appear, with health, load and acceptance."""
    verify, draft = json.loads(paceline("status", "--json").stdout)["replicas"]
    assert {
        "tier": "verify",
        "address": "v:1",
        "zone": "west",
        "health": "ready",
        "model": "letters",
        "fingerprint": "0123456789abcdef",
        "open_sessions": 2,
        "held_blocks": 3,
        "free_blocks": 0,
        "acceptance_rate": None,
        "draft_sources": [],
        "audit": {
            "emitted": {
                "num_tokens": 300,
                "deviations": 2.5,
                "evidence": 0.125,
                "is_alarming": False,
            },
            "drafted": {
                "num_tokens": 200,
                "deviations": 0.0,
                "evidence": 0.0,
                "is_alarming": False,
            },
        },
    } == verify
    assert draft["audit"] is None
    assert ("draft", "not ready", 0.75) == (
        draft["tier"],
        draft["health"],
        draft["acceptance_rate"],
    )


def test_table_lists_every_replica(gateway: Any, paceline: Any) -> None:
    """The table has a line for each."""
    result = paceline("status")
    assert result.exit_code == 0
    verify = next(line for line in result.stdout.splitlines() if "v:1" in line)
    assert {"west", "letters", "01234567", "2", "3/3"} <= set(verify.split())
    assert any("75%" in line for line in result.stdout.splitlines())


def test_audit(gateway: Any, paceline: Any) -> None:
    """How many tokens were judged, and the most that there was against them."""
    assert "audit v:1: 300 emitted at 12%, 200 drafted at 0%\n" in paceline("status").stdout
    gateway.audit = AuditReport(gateway.audit.emitted, replace(AuditSum(), evidence=1.5))
    assert "ALARM drafted" in paceline("status").stdout


def test_replays(gateway: Any, paceline: Any) -> None:
    """One line once there are any; always in the JSON."""
    assert "replays" not in paceline("status").stdout
    gateway.replays = gateway_pb2.ReplayReport(equal_count=3, near_tie_count=1)
    line = "replays: 3 equal, 1 near tie, 0 mismatch, 0 skipped, 0 failed"
    assert line in paceline("status").stdout
    assert {"equal": 3, "near_tie": 1, "mismatch": 0, "skipped": 0, "failed": 0} == json.loads(
        paceline("status", "--json").stdout
    )["replays"]
