"""From a name to a warm engine: planned first, proven, warmed up, and nothing left behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from paceline.engine import assembly
from paceline.engine.assembly import EngineSettings, assemble
from paceline.engine.attention import CpuRows
from paceline.engine.engine import Engine
from paceline.engine.job import Extend, Job
from paceline.engine.models import LoadedModel
from paceline.engine.sequence import Sequence
from paceline.engine.table_model import TableModel
from paceline.errors import Exhausted, FailedPrecondition, NotFound
from paceline.records import SamplingParams, SessionSpec, VerificationRule

SaveModel = Callable[..., Path]
Assemble = Callable[..., tuple[LoadedModel, Engine]]

WAIT_S = 60
GREEDY = SamplingParams(0.0)


@pytest.fixture
def settings(tmp_path: Path) -> EngineSettings:
    """Settings with a small budget and a cache of the test's own."""
    return EngineSettings(cache_dir=tmp_path / "cache", memory_bytes=8 << 20, block_size=4)


@pytest.fixture
def lines() -> list[str]:
    """What was said on the way."""
    return []


@pytest.fixture
def start(settings: EngineSettings, lines: list[str]) -> Iterator[Assemble]:
    """Assembles with changed settings, and stops the engine at the end."""
    engines: list[Engine] = []

    def start_one(name: str, **changes: object) -> tuple[LoadedModel, Engine]:
        loaded, engine = assemble(name, replace(settings, **changes), lines.append)  # type: ignore[arg-type]  # fields by name
        engines.append(engine)
        return loaded, engine

    yield start_one
    for engine in engines:
        engine.stop()


@pytest.fixture
def table(tmp_path: Path) -> str:
    """A table in which every letter is followed by the next one."""
    path = tmp_path / "table.json"
    suffixes = {"a": [0.0, 1.0, 0.0], "b": [0.0, 0.0, 1.0], "c": [1.0, 0.0, 0.0]}
    path.write_text(
        json.dumps({"alphabet": "abc", "default": [1.0, 0.0, 0.0], "suffixes": suffixes})
    )
    return f"table:{path}"


def generate(engine: Engine, ids: list[int], count: int) -> list[int]:
    """Plain greedy decoding on an engine."""
    spec = SessionSpec(tuple(ids), len(ids), GREEDY, VerificationRule.REJECTION_TOKEN, 0)
    sequence = engine.open(spec).result(WAIT_S)

    def job(sequence: Sequence) -> Job[list[int]]:
        for _ in range(count):
            extended = yield Extend(len(sequence), 1, GREEDY)
            sequence.append([extended.laws[0].draw(0.5)])
            sequence.commit()
        return sequence.token_ids[len(ids) :]

    tokens = engine.submit(sequence, job(sequence)).result(WAIT_S)
    engine.close(sequence)
    return tokens


def test_table_model_runs(start: Assemble, table: str) -> None:
    """A table is a model like any other: assembled, warm, and it generates."""
    loaded, engine = start(table, max_length=64)
    assert (3, 64) == (loaded.identity.vocabulary_size, loaded.identity.max_length)
    assert [1, 2, 0, 1, 2] == generate(engine, [0], 5)


def test_network_runs(start: Assemble, save_model: SaveModel) -> None:
    """A directory becomes an engine whose greedy ids are those of the loaded network."""
    loaded, engine = start(str(save_model("llama")))
    got = generate(engine, [5, 6, 7], 6)
    assert not isinstance(loaded.network, TableModel)
    ids = torch.tensor([[5, 6, 7]])
    loaded.network.set_attn_implementation("eager")
    with torch.no_grad():
        for _ in range(6):
            logits = loaded.network(ids, use_cache=False).logits[:, -1, :500]
            ids = torch.cat([ids, logits.argmax(1, keepdim=True)], dim=1)
    assert ids[0, 3:].tolist() == got


@pytest.mark.parametrize("kind", ["table", "llama", "quantized"])
def test_warm_up_leaves_nothing_held(
    start: Assemble, save_model: SaveModel, table: str, kind: str
) -> None:
    """B89: a fresh engine has no sessions and no held blocks."""
    name = table if kind == "table" else str(save_model("llama"))
    _, engine = start(f"quantized:int8:{name}" if kind == "quantized" else name)
    engine.check().result(WAIT_S)
    assert (0, 0) == (engine.load.num_open_sessions, engine.load.num_held_blocks)
    assert engine.load.num_rows > 0  # it did run


def test_shortest_context_is_warmed_up(start: Assemble, table: str) -> None:
    """A context below the longest proposal is no reason to fail."""
    _, engine = start(table, max_length=2)
    assert [1] == generate(engine, [0], 1)


def test_no_more_blocks_than_sessions_can_fill(start: Assemble, table: str) -> None:
    """A budget beyond what the sessions let in could ever use is not taken."""
    _, engine = start(table, max_length=30, max_sessions=3)
    assert 3 * 8 == engine.options.num_blocks


def test_plan_comes_before_the_weights(
    save_model: SaveModel, settings: EngineSettings, lines: list[str]
) -> None:
    """B89: a budget that does not hold one sequence is refused before a weight is read."""
    directory = save_model("llama")
    (directory / "model.safetensors").unlink()
    with pytest.raises(Exhausted, match=r"memory budget of 1\.0 MiB is too small"):
        assemble(str(directory), replace(settings, memory_bytes=1 << 20), lines.append)
    assert not any("loading" in line for line in lines)


def test_progress_tells_of_every_stage(
    start: Assemble, save_model: SaveModel, lines: list[str]
) -> None:
    """The plan is printed, then loading, the self-test and the warm-up, in that order."""
    start(str(save_model("llama")))
    stages = ["memory plan", "loading", "checking the paged cache", "warming up"]
    found = [next(i for i, line in enumerate(lines) if stage in line) for stage in stages]
    assert sorted(found) == found


def test_wrong_network_never_serves(
    save_model: SaveModel,
    settings: EngineSettings,
    lines: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A network that fails its self-test is refused at load."""
    attend = CpuRows.attend
    monkeypatch.setattr(CpuRows, "attend", lambda rows, call: attend(rows, call).flip(0))
    with pytest.raises(FailedPrecondition, match="LlamaForCausalLM does not compute the same"):
        assemble(str(save_model("llama")), settings, lines.append)


def test_unknown_model_is_not_found(
    tmp_path: Path, settings: EngineSettings, lines: list[str]
) -> None:
    """A name that leads nowhere is NotFound."""
    with pytest.raises(NotFound):
        assemble(str(tmp_path / "absent"), settings, lines.append)


def test_failed_warm_up_stops_the_engine(
    table: str, settings: EngineSettings, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was started is stopped again when the first step fails."""
    engines: list[Engine] = []

    def fail(engine: Engine, loaded: LoadedModel) -> None:
        engines.append(engine)
        raise RuntimeError("no kernel")

    monkeypatch.setattr(assembly, "_warm_up", fail)
    with pytest.raises(RuntimeError, match="no kernel"):
        assemble(table, settings, lines.append)
    assert [False] == [engine.is_alive for engine in engines]
