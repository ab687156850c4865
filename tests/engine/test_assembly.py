"""From a name to a warm engine: planned first, proven, warmed up, and nothing left behind."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from numba.core.registry import CPUDispatcher

from paceline.bench.paged_reference import attend_plainly
from paceline.engine import assembly, runners
from paceline.engine.assembly import EngineSettings, ServedModel, assemble, find_block_size
from paceline.engine.attention import CpuRows
from paceline.engine.engine import Engine
from paceline.engine.job import Extend, Job
from paceline.engine.lean import exact_check
from paceline.engine.lean.attention import StockAttention
from paceline.engine.lean.cuda_runner import CudaRunner
from paceline.engine.lean.decoder import Decoder
from paceline.engine.lean.graph_check import record_steps
from paceline.engine.lean.kernels import Kernels
from paceline.engine.lean.packed import PackedRows
from paceline.engine.lean.paged_attention import PagedCall
from paceline.engine.lean.runner import LeanRunner
from paceline.engine.lean.weights import take_decoder
from paceline.engine.model_runner import NetworkRunner
from paceline.engine.models import LoadOptions, load
from paceline.engine.self_test import StockRun, check_against_stock
from paceline.engine.sequence import Sequence
from paceline.engine.step import ModelRunner, Step
from paceline.engine.table_model import TableModel, TableRunner
from paceline.errors import Exhausted, FailedPrecondition, InvalidArgument, NotFound
from paceline.records import SamplingParams, SessionSpec, VerificationRule

SaveModel = Callable[..., Path]
Assemble = Callable[..., tuple[ServedModel, Engine]]

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

    def start_one(name: str, **changes: object) -> tuple[ServedModel, Engine]:
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


@pytest.mark.parametrize("model_type", ["llama", "mixtral"])
def test_network_runs(
    start: Assemble, settings: EngineSettings, save_model: SaveModel, model_type: str
) -> None:
    """A directory becomes an engine whose greedy ids are those of the network itself."""
    directory = str(save_model(model_type))
    _, engine = start(directory)
    got = generate(engine, [5, 6, 7], 6)
    network = load(directory, LoadOptions(settings.cache_dir), print).network
    assert not isinstance(network, TableModel)
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        for _ in range(6):
            logits = network(ids, use_cache=False).logits[:, -1, :500]
            ids = torch.cat([ids, logits.argmax(1, keepdim=True)], dim=1)
    assert ids[0, 3:].tolist() == got


def attend(
    out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    starts: torch.Tensor,
    *_: object,
    window_size: tuple[int, int],
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
    **__: object,
) -> None:
    """Torch's paged kernel, written out."""
    none = torch.empty(0)
    rows = PackedRows(none, none, none, none, starts, seqused_k, block_table)
    attend_plainly(PagedCall(query, key, value, out, rows, None))


def test_cuda_has_a_runner_of_its_own(
    start: Assemble, save_model: SaveModel, monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    """It is proven against the network, its steps are recorded, and its ids are the network's."""
    name = str(save_model("llama"))
    expected = generate(start(name)[1], [5, 6, 7], 6)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn_out", attend)
    monkeypatch.setattr(runners, "serves", lambda network: False)
    monkeypatch.setattr(runners, "serves_on_cuda", lambda network: True)
    recorded: list[CudaRunner] = []

    def record(runner: CudaRunner, *others: Any) -> None:
        recorded.append(runner)
        record_steps(runner, *others)

    monkeypatch.setattr(assembly, "record_steps", record)
    assert expected == generate(start(name)[1], [5, 6, 7], 6)
    assert [8] == [len(runner.recorded_shapes) for runner in recorded]
    assert "recording steps of few rows" in lines
    assert not any("WARNING" in line for line in lines)


@pytest.mark.parametrize(
    ("device", "given", "expected"),
    [("cpu", 0, 16), ("cpu", 4, 4), ("cuda", 0, 256), ("cuda:1", 256, 256)],
)
def test_blocks_suit_the_device(
    settings: EngineSettings, device: str, given: int, expected: int
) -> None:
    """Small ones on the CPU; the kernel of CUDA takes 256 slots alone."""
    assert expected == find_block_size(replace(settings, device=device, block_size=given))


def test_other_blocks_are_refused(start: Assemble, table: str) -> None:
    """Before anything is loaded, named."""
    with pytest.raises(InvalidArgument, match="block_size: must be a multiple of 256 on cuda"):
        start(table, device="cuda")


@pytest.mark.parametrize("prefix", ["", "quantized:int8:", "quantized:int4:"])
@pytest.mark.parametrize(
    ("model_type", "runner"),
    [
        ("llama", LeanRunner),
        ("mistral", LeanRunner),
        ("qwen2", LeanRunner),
        ("qwen3", LeanRunner),
        ("mixtral", NetworkRunner),
    ],
)
def test_lean_runner_serves_its_family(
    start: Assemble,
    save_model: SaveModel,
    monkeypatch: pytest.MonkeyPatch,
    model_type: str,
    runner: type,
    prefix: str,
) -> None:
    """The Llama-shaped family runs lean, quantized or not; every other one through transformers."""
    checked: list[object] = []

    def check(runner: ModelRunner, stock: StockRun) -> None:
        checked.append(runner)
        check_against_stock(runner, stock)

    monkeypatch.setattr(assembly, "check_against_stock", check)
    start(f"{prefix}{save_model(model_type)}")
    assert [runner] == [type(one) for one in checked]


def test_network_is_gone_once_it_was_taken(
    start: Assemble, save_model: SaveModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine holds one copy of the weights: no layer of the network outlives assembly."""
    layers: list[weakref.ref[object]] = []

    def note(network: Any, kernels: Kernels) -> Decoder:
        layers.extend(weakref.ref(layer.mlp.down_proj.weight) for layer in network.model.layers)
        return take_decoder(network, kernels)

    monkeypatch.setattr(runners, "take_decoder", note)
    start(str(save_model("llama")))
    gc.collect()
    assert [None, None] == [layer() for layer in layers]


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


def test_warm_up_runs_what_is_served(
    start: Assemble, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt of which no law is wanted, and the rows of every proposal, none and the longest."""
    seen: list[tuple[int, int]] = []
    run = TableRunner.run

    def note(runner: TableRunner, step: Step) -> torch.Tensor:
        seen.extend((len(span.token_ids), span.num_logits) for span in step.spans)
        return run(runner, step)

    monkeypatch.setattr(TableRunner, "run", note)
    start(table, max_draft_tokens=6)
    assert (17, 0) == seen[0]
    assert [(num_rows, num_rows) for num_rows in range(1, 8)] == seen[1:]


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Steps of two threads, which have loops of their own."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_nothing_is_compiled_while_serving(start: Assemble, save_model: SaveModel) -> None:
    """After the warm-up no loop meets arguments of a new kind.

    The head is so large that one row is shared among threads, and none is not.
    """
    directory = save_model("llama", vocab_size=4096)
    _, engine = start(f"quantized:int4:{directory}", memory_bytes=32 << 20)
    before = num_compiled()
    assert before > 0
    ids = list(range(40))
    spec = SessionSpec(tuple(ids), len(ids), GREEDY, VerificationRule.REJECTION_TOKEN, 0)
    sequence = engine.open(spec).result(WAIT_S)

    def job() -> Job[None]:
        yield Extend(len(ids) - 1, 0, GREEDY)
        for num_rows in (2, 1, 5, 9, 17, 20):
            yield Extend(len(ids), num_rows, GREEDY)

    engine.submit(sequence, job()).result(WAIT_S)
    engine.close(sequence)
    assert before == num_compiled()


def num_compiled() -> int:
    """Loops that are ready to run, each counted for every kind of arguments."""
    return sum(len(one.signatures) for one in gc.get_objects() if type(one) is CPUDispatcher)


def test_shortest_context_is_warmed_up(start: Assemble, table: str) -> None:
    """A context below the longest proposal is no reason to fail."""
    _, engine = start(table, max_length=2)
    assert [1] == generate(engine, [0], 1)


def test_no_more_blocks_than_sessions_can_fill(start: Assemble, table: str) -> None:
    """A budget beyond what the sessions let in could ever use is not taken."""
    _, engine = start(table, max_length=30, max_sessions=3)
    assert 3 * 8 == engine.options.num_blocks


@pytest.mark.parametrize("prefix", ["", "quantized:int8:", "quantized:int4:"])
def test_exact_engine(
    start: Assemble, save_model: SaveModel, lines: list[str], prefix: str
) -> None:
    """The identity says that it is exact, and another fingerprint that its last bits are others."""
    name = f"{prefix}{save_model('llama')}"
    fast, _ = start(name)
    assert "checking that the cut of a step changes no bit" not in lines
    exact, engine = start(name, exact=True)
    assert "checking that the cut of a step changes no bit" in lines
    assert (False, True) == (fast.identity.exact, exact.identity.exact)
    assert fast.identity.fingerprint != exact.identity.fingerprint
    assert replace(fast.identity, fingerprint="", exact=True) == replace(
        exact.identity, fingerprint=""
    )
    assert 5 == len(generate(engine, [5, 6, 7], 5))


def test_exact_mode_that_does_not_hold_is_refused(
    start: Assemble, save_model: SaveModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine whose kernels round by the number of rows nothing starts."""
    monkeypatch.setattr(exact_check, "read_rows", StockAttention)
    with pytest.raises(FailedPrecondition, match="exact mode does not hold on this machine"):
        start(str(save_model("llama")), exact=True)


@pytest.mark.parametrize("changes", [{"dtype": "bfloat16"}, {"device": "cuda"}])
def test_exact_takes_float32_on_the_cpu(
    start: Assemble, save_model: SaveModel, changes: dict[str, str]
) -> None:
    """Other types and devices are refused before anything is loaded."""
    with pytest.raises(InvalidArgument, match="takes float32 on the CPU"):
        start(str(save_model("llama")), exact=True, **changes)


@pytest.mark.parametrize(
    ("model_type", "sizes", "name"),
    [("mixtral", {}, "Mixtral"), ("llama", {"head_dim": 10}, "Llama")],
)
def test_networks_without_exact_kernels_are_refused(
    start: Assemble, save_model: SaveModel, model_type: str, sizes: dict[str, int], name: str
) -> None:
    """The architecture is named; heads must be whole vectors."""
    with pytest.raises(FailedPrecondition, match=f"no exact kernels for {name}ForCausalLM"):
        start(str(save_model(model_type, **sizes)), exact=True)


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


@pytest.mark.parametrize(
    ("model_type", "owner", "name"),
    [("llama", LeanRunner, "run"), ("mixtral", CpuRows, "attend")],
)
def test_wrong_network_never_serves(
    save_model: SaveModel,
    settings: EngineSettings,
    monkeypatch: pytest.MonkeyPatch,
    model_type: str,
    owner: Any,
    name: str,
) -> None:
    """A network that fails its self-test is refused at load, whoever runs it."""
    run = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *arguments: run(*arguments).flip(0))
    with pytest.raises(FailedPrecondition, match="ForCausalLM does not compute the same"):
        assemble(str(save_model(model_type)), settings, print)


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

    def fail(engine: Engine, max_length: int) -> None:
        engines.append(engine)
        raise RuntimeError("no kernel")

    monkeypatch.setattr(assembly, "_warm_up", fail)
    with pytest.raises(RuntimeError, match="no kernel"):
        assemble(table, settings, lines.append)
    assert [False] == [engine.is_alive for engine in engines]
