"""`paceline status`: every replica with what is known about it."""

from __future__ import annotations

import json
from typing import Any


def test_json_lists_every_replica(gateway: Any, paceline: Any) -> None:
    """Both tiers appear, with health, load and acceptance."""
    verify, draft = json.loads(paceline("status", "--json").stdout)["replicas"]
    assert {
        "tier": "verify",
        "address": "v:1",
        "health": "ready",
        "model": "letters",
        "fingerprint": "0123456789abcdef",
        "open_sessions": 2,
        "held_blocks": 3,
        "free_blocks": 0,
        "acceptance_rate": None,
        "draft_sources": [],
    } == verify
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
    assert {"letters", "01234567", "2", "3/3"} <= set(verify.split())
    assert any("75%" in line for line in result.stdout.splitlines())
