"""What is printed and written: every row, ratios of the served ones, everything raw beside them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from paceline.bench.figures import Measurement
from paceline.bench.plot import plot
from paceline.bench.prompts import Question
from paceline.bench.report import as_json, tables
from paceline.bench.runs import Group, Run
from paceline.v1 import gateway_pb2
from paceline.wire import duration

SERVED = ("plain", "ngram")


@pytest.fixture
def measurement(make_run: Callable[..., Run]) -> Measurement:
    """Two served rows and two peers, one of which takes one prompt at a time; seconds are twins."""
    stats = gateway_pb2.GenerationStats(
        round_count=2,
        drafted_token_count=8,
        accepted_token_count=4,
        draft_duration=duration(1.5),
        verify_duration=duration(16.0),
        wire_bytes_per_token=1000.0,
    )
    groups = []
    for place, name in enumerate(("plain", "ngram", "peer", "lookup"), 1):
        told = {"token_ids": (1, 2), "stats": stats} if name in SERVED else {"token_ids": (1, 3)}
        run = make_run((1.0, 1), (1.0 + place, 8), **told)
        groups.append(Group(name, 1, 0, (run,)))
        if name != "lookup":
            other = replace(run, question=Question("2", "a", "?"))
            groups.append(Group(name, 2, 0, (run, other)))
    return Measurement(("plain", "ngram", "peer", "lookup"), tuple(groups))


def cells(table: object) -> list[tuple[str, ...]]:
    """The lines of a table."""
    return list(zip(*(list(column.cells) for column in table.columns), strict=True))  # type: ignore[attr-defined]


def test_tables_have_every_row(measurement: Measurement) -> None:
    """By number of prompts at once; a round's parts are told by the served rows alone."""
    speed, rounds, over, categories = map(cells, tables(measurement, SERVED))
    every = [("1", "plain"), ("1", "ngram"), ("1", "peer"), ("1", "lookup")]
    every += [("2", "plain"), ("2", "ngram"), ("2", "peer")]
    assert every == [line[:2] for line in speed]
    assert [("1", "a"), ("1", "all"), ("2", "a"), ("2", "all")] == [c[:2] for c in categories]
    assert (("8.0", "4.0", "2.7", "2.0"), "") == (categories[0][2:], categories[2][-1])
    assert ("1", "plain", "8.0", "4.5", "8.0", "1000", "125.0", "125.0", "1/1") == speed[0]
    assert "0/1" == speed[2][-1]
    assert [("1", "plain"), ("1", "ngram"), ("2", "plain"), ("2", "ngram")] == [
        line[:2] for line in rounds
    ]
    assert ("4.0", "0.50", "3.00", "4500", "750.0", "8000") == rounds[1][2:8]
    assert ("1", "one", "plain", "", "0.50 (-)") in over  # one prompt has no interval
    assert ("1", "one", "lookup", "4.00 (-)", "2.00 (-)") in over
    assert ("2", "one", "peer", "3.00 (3.00-3.00)", "1.50 (1.50-1.50)") in over
    assert ("2", "all", "peer", "2.00 (-)", "1.33 (-)") in over
    assert [] == [line for line in over if line[0] == "2" and line[2] == "lookup"]


def test_tables_fit_a_terminal(measurement: Measurement) -> None:
    """Nothing is cut in 80 columns, with names and figures as long as they get."""
    longer = {"ngram": "quantized:int8", "lookup": "assisted quantized:int8"}
    groups = tuple(replace(g, row=longer.get(g.row, g.row)) for g in measurement.groups)
    rows = tuple(longer.get(row, row) for row in measurement.rows)
    console = Console(file=StringIO(), width=80)
    for table in tables(Measurement(rows, groups), [longer.get(row, row) for row in SERVED]):
        console.print(table)
    assert isinstance(console.file, StringIO) and "…" not in console.file.getvalue()


def test_json_is_json(measurement: Measurement) -> None:
    """Facts first; summaries, ratios of served rows, and raw runs with their arrivals."""
    written = json.loads(json.dumps(as_json(measurement, SERVED, settings={"limit": 3})))
    assert ["settings", "summaries", "ratios", "runs"] == list(written)
    assert {"plain", "ngram"} == {ratio["row"] for ratio in written["ratios"]}
    assert {None} == {ratio["low"] for ratio in written["ratios"] if ratio["concurrency"] == 1}
    assert {"plain", "ngram", "peer", "lookup"} == {ratio["base"] for ratio in written["ratios"]}
    assert 1 + 1 + 1 + 1 + 2 + 2 + 2 == len(written["runs"])
    first = written["runs"][0]
    assert ([[1.0, 1], [2.0, 8]], 8.0) == (first["arrivals"], first["tokens_per_second"])
    assert 4 == first["stats"]["accepted_tokens"]
    assert None is written["runs"][-1]["stats"]


def test_plot(measurement: Measurement, tmp_path: Path) -> None:
    """A picture is written where matplotlib is there."""
    pytest.importorskip("matplotlib")
    assert plot(measurement, tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_no_plot_without_matplotlib(
    measurement: Measurement, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it nothing is written, and that is said."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not plot(measurement, tmp_path / "out.png")
    assert list(tmp_path.iterdir()) == []
