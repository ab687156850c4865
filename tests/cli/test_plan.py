"""`paceline plan`: what it asks for, and what it says of a system whose figures are known."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from paceline.bench import measure_sheet, memory
from paceline.bench.sheet import Prices, Sheet, SourceSheet
from paceline.bench.trials import Trial
from paceline.cli.plan import make_report
from paceline.errors import NotFound
from paceline.v1 import gateway_pb2

FAST = SourceSheet("fast", 0.01, 0.0, (0.9, 0.8))
SHEET = Sheet({0: 0.1, 1: 0.1, 2: 0.1}, 0.0, (FAST, replace(FAST, name="slow", draft_s=0.2)), 40)
PLAIN = Trial("none", 0, ())


def test_the_report() -> None:
    """The best source and length, each source's own best, predictions beside what was run."""
    measured = measure_sheet.Measured(SHEET, PLAIN, (Trial("fast", 2, ()), Trial("grammar", 2, ())))
    report = make_report(measured, Prices(36, 0), {})
    assert (True, "fast", 2) == (
        report["worth_it"],
        report["best"]["source"],
        report["best"]["num_draft_tokens"],
    )
    assert 2.7 * 0.1 / 0.12 == pytest.approx(report["best"]["speedup"])
    assert [("fast", 2), ("slow", 1)] == [
        (row["source"], row["num_draft_tokens"]) for row in report["sources"]
    ]
    assert {0: 100.0, 1: 100.0, 2: 100.0} == report["verify_ms"]
    (checked,) = report["checked"]  # a source that proposed nothing predicts nothing
    assert ("fast", 2, 0.0) == (
        checked["source"],
        checked["num_draft_tokens"],
        checked["measured"],
    )
    assert report["best"]["speedup"] == checked["predicted"]
    assert 1000 == pytest.approx(report["plain_cost_per_million"])
    assert [] == report["warnings"]


def test_not_worth_it() -> None:
    """Where nothing is faster than plain it says so."""
    sheet = replace(SHEET, sources=(SHEET.sources[1],))
    report = make_report(measure_sheet.Measured(sheet, PLAIN, ()), Prices(), {})
    assert not report["worth_it"]
    assert any("leave speculation off" in text for text in report["warnings"])


@pytest.fixture
def drafting(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The fake gateway with counts by place, and no model to be measured from files."""
    finished = gateway._finished

    def finish(num_tokens: int, is_plain: bool) -> gateway_pb2.Finished:
        message: gateway_pb2.Finished = finished(num_tokens, is_plain)
        message.stats.plain_round_count = 1
        if not is_plain:
            message.stats.round_count = 2
            message.stats.drafted_count_by_position.extend([2, 2])
            message.stats.accepted_count_by_position.extend([2, 1])
            message.stats.draft_duration.FromMicroseconds(4)
        return message

    gateway._finished = finish
    monkeypatch.setattr(
        "paceline.cli.plan.describe_memory", lambda *_: {"model": "letters", "unknown": "not here"}
    )
    yield gateway


def test_json(drafting: Any, paceline: Callable[..., Any]) -> None:
    """Every source with the longest proposals, one with the shorter ones, plain once."""
    result = paceline("plan", "--limit", "2", "--max-tokens", "9", "--json")
    assert 0 == result.exit_code, result.output
    report = json.loads(result.stdout)
    asked = [
        (r.speculation.draft_source, r.speculation.draft_token_count) for r in drafting.requests
    ]
    runs = [("none", 0), ("int8", 8), ("ngram", 8), ("int8", 1), ("int8", 2), ("int8", 4)]
    assert 2 * runs == asked
    assert {"9"} == {str(request.max_tokens) for request in drafting.requests}
    assert ["int8", "ngram"] == [row["source"] for row in report["sources"]]
    assert [1.0, 0.5] == report["sources"][0]["survival"]
    assert ["0", "1", "2", "4", "8"] == list(report["verify_ms"])
    assert any("fewer than 16" in text for text in report["warnings"])


def test_words(drafting: Any, paceline: Callable[..., Any]) -> None:
    """A table, predictions beside measurements, memory, warnings, and one line to act on."""
    result = paceline("plan", "--limit", "1", "--target-price", "2")
    assert 0 == result.exit_code, result.output
    for part in ("at best", "predicted", "warning", "draft tokens", "memory unknown"):
        assert part in result.stdout


@pytest.mark.parametrize(
    ("found", "part"),
    [
        ({"mean_tv": 0.0123, "agreement": 0.995, "num_places": 64}, "mean TV 0.0123"),
        ({"unknown": "no weights here"}, "unknown: no weights here"),
    ],
)
def test_a_quantized_target(
    found: dict[str, Any],
    part: str,
    drafting: Any,
    paceline: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """How far its laws are from the whole weights', read on what it wrote itself."""
    drafting.quantization = "int4-per-group"
    asked: list[Any] = []

    def describe(*given: Any) -> dict[str, Any]:
        asked.append(given)
        return found

    monkeypatch.setattr("paceline.cli.plan.describe_distance", describe)
    result = paceline("plan", "--limit", "2", "--max-tokens", "9")
    assert 0 == result.exit_code, result.output
    assert part in " ".join(result.stdout.split())
    ((name, texts),) = asked
    assert ("letters", 2) == (name, len(texts))
    assert {(2, (1, 2))} == {(text.prompt_length, text.token_ids[:2]) for text in texts}
    assert all(text.num_places for text in texts)


def test_a_system_that_never_drafts(gateway: Any, paceline: Callable[..., Any]) -> None:
    """Nothing was proposed: an error, not a prediction from nothing."""
    gateway.num_drafted = gateway.num_accepted = 0
    result = paceline("plan", "--limit", "1")
    assert 1 == result.exit_code
    assert "no draft source of this system proposed anything" in result.output


# Memory ------------------------------------------------------------------------------------------


def test_memory_of_a_model(networks: Any) -> None:
    """B89: weights, cache per token and the blocks that fit, before anything is loaded."""
    found = memory.describe_memory(networks.find(), 64, 256)
    assert 2 * 2 * 2 * 16 * 4 == found["kv_bytes_per_token"]
    assert found["blocks"] * 16 / 256 == pytest.approx(found["sequences"])
    assert found["weights_mib"] > 0


def test_memory_that_is_unknown(networks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """B89: too small a budget says what it would take; a model that is elsewhere is no error."""
    assert "too small" in memory.describe_memory(networks.find(), 1, 256)["unknown"]
    from paceline.engine import models

    def fail(*_: object) -> None:
        raise NotFound("elsewhere")

    monkeypatch.setattr(models, "measure", fail)
    assert {"model": "m", "unknown": "elsewhere"} == memory.describe_memory("m", 64, 256)
