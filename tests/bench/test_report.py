"""Figures of a measurement: medians, pooled acceptance, and everything raw beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.bench.measure import Pair, Timed
from paceline.bench.peers import PeerRun, peer_draft
from paceline.bench.prompts import Question
from paceline.bench.report import as_json, by_category, plot, summarize, table
from paceline.cli.client import Generation
from paceline.v1 import gateway_pb2


def _timed(rate: float, rounds: int = 0, drafted: int = 0, accepted: int = 0, id: int = 1) -> Timed:
    stats = gateway_pb2.GenerationStats(
        tokens_per_second=rate,
        round_count=rounds,
        drafted_token_count=drafted,
        accepted_token_count=accepted,
    )
    finished = gateway_pb2.Finished(stats=stats)
    return Timed(Generation("x", (id, 2), (4, 4), gateway_pb2.Started(), finished), wall_s=0.5)


PAIRS = [
    Pair(Question("1", "math", "?"), _timed(10), _timed(20, 2, 8, 8)),
    Pair(Question("2", "math", "?"), _timed(10), _timed(15, 2, 8, 4)),
    Pair(Question("3", "code", "?"), _timed(20), _timed(10, 4, 16, 0, id=9)),
]
PEERS = [PeerRun("peer", "1", 11, 1, 0.5, 1.5), PeerRun("peer", "2", 21, 1, 0.5, 1.5)]


def test_groups() -> None:
    """Categories in order, then all."""
    sizes = {name: len(group) for name, group in by_category(PAIRS).items()}
    assert list(sizes.items()) == [("code", 1), ("math", 2), ("all", 3)]


def test_summary() -> None:
    """Speedups are medians over questions; acceptance is pooled over tokens."""
    figures = summarize(PAIRS)
    assert figures["speedup"] == 1.5
    assert figures["speedup_quartiles"] == (1.0, 1.75)
    assert (figures["plain_tokens_per_second"], figures["speculative_tokens_per_second"]) == (
        10,
        15,
    )
    assert figures["acceptance_rate"] == 12 / 32
    assert figures["acceptance_length"] == 1 + 12 / 8
    assert (figures["identical"], figures["prompts"]) == (2, 3)


def test_nothing_drafted() -> None:
    """Without drafts there is no rate, and a round commits one token."""
    figures = summarize([Pair(Question("1", "a", "?"), _timed(10), _timed(10))])
    assert (figures["acceptance_rate"], figures["acceptance_length"]) == (0.0, 1.0)
    assert figures["speedup_quartiles"] == (1.0, 1.0)


def test_json_is_json() -> None:
    """Everything can be written, raw figures included."""
    written = json.loads(json.dumps(as_json({"limit": 3}, PAIRS, PEERS)))
    assert written["settings"] == {"limit": 3}
    assert written["categories"]["code"]["speedup"] == 0.5
    assert [question["question_id"] for question in written["questions"]] == ["1", "2", "3"]
    assert written["questions"][0]["speculative"]["stats"]["accepted_tokens"] == 8
    assert written["peers"]["peer"]["tokens_per_second"] == 15.0


def test_table_names_every_group_and_peer() -> None:
    """One line each."""
    rows = [list(column.cells) for column in table(PAIRS, PEERS).columns]
    assert rows[0] == ["code", "math", "all", "peer"]
    assert rows[4][0] == "0.50x (0.50-0.50)"


def test_plot(tmp_path: Path) -> None:
    """A picture is written where matplotlib is there."""
    pytest.importorskip("matplotlib")
    assert plot(PAIRS, tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_no_plot_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it nothing is written, and that is said."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not plot(PAIRS, tmp_path / "out.png")
    assert list(tmp_path.iterdir()) == []


def test_rate_of_a_peer() -> None:
    """Tokens that came together first are left out, as is the time to them."""
    assert PeerRun("p", "1", 14, 4, 1.0, 3.0).tokens_per_second == 5.0


def test_draft_of_a_peer() -> None:
    """The target's own weights quantized need the target's name; other names stand alone."""
    assert peer_draft("quantized:int8", "smollm2") == "quantized:int8:smollm2"
    assert peer_draft("ngram", "smollm2") == "ngram"
