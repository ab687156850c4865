"""From a model's name to an engine that is warm: the one place that knows the order.

Memory is planned before weights are read, a network proves itself before it is trusted, and shapes
are run once before anybody waits for them. Both tiers start this way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from paceline.engine import models
from paceline.engine.attention import CUDA_BLOCK_SIZE
from paceline.engine.engine import Engine, EngineOptions
from paceline.engine.job import Extend, Job
from paceline.engine.lean.cuda_runner import CudaRunner
from paceline.engine.lean.exact_check import check_exact
from paceline.engine.lean.graph_check import record_steps
from paceline.engine.lean.graphs import find_recorder
from paceline.engine.lean.runner import LeanRunner
from paceline.engine.memory_plan import MemoryPlan, plan_memory
from paceline.engine.models import LoadedModel, LoadOptions
from paceline.engine.runners import build_runner
from paceline.engine.self_test import check_against_stock, run_stock
from paceline.engine.step import ModelRunner
from paceline.engine.table_model import TableModel
from paceline.errors import InvalidArgument
from paceline.records import ModelIdentity, SamplingParams, SessionSpec, VerificationRule

Progress = Callable[[str], None]

_CPU_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What an operator decides about an engine."""

    cache_dir: Path
    dtype: str = "float32"
    device: str = "cpu"
    max_length: int = 0
    """Longest sequence in tokens; 0 takes the model's own."""
    memory_bytes: int = 4 << 30
    """For weights, workspace and cache together."""
    block_size: int = 0
    """Tokens per block; 0 is the least that suits the device."""
    max_rows: int = 512
    max_draft_tokens: int = 16
    max_sessions: int = 256
    step_limit_s: float = 300.0
    """A step that takes longer is stuck."""
    num_threads: int = 0
    """Threads of one step on the CPU; 0 leaves torch's choice."""
    target: str = ""
    """Name of the model that a distilled draft borrows from."""
    exact: bool = False
    """Whether a row's arithmetic must not depend on the rows that share its step."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What is known of a model whose weights are the engine's."""

    identity: ModelIdentity
    tokenizer_archive: bytes
    """A zip; see tokenizer_archive.py."""


def assemble(name: str, settings: EngineSettings, progress: Progress) -> tuple[ServedModel, Engine]:
    """Loads a model and starts a warm engine on it.

    Raises:
        NotFound, InvalidArgument, FailedPrecondition: as `models.load`; also when the network does
            not compute the same through the paged cache.
        Exhausted: the memory does not hold one sequence.
    """
    if settings.num_threads:
        torch.set_num_threads(settings.num_threads)
    load_options = LoadOptions(
        settings.cache_dir,
        settings.dtype,
        settings.device,
        settings.max_length,
        settings.target,
        settings.exact,
    )
    plan = _bounded(
        plan_memory(
            models.measure(name, load_options, progress),
            total_bytes=settings.memory_bytes,
            block_size=find_block_size(settings),
            max_rows=settings.max_rows,
            max_length=models.find_max_length(name, load_options, progress),
        ),
        settings.max_sessions,
    )
    progress(plan.describe())
    loaded = models.load(name, load_options, progress)
    served = ServedModel(loaded.identity, loaded.tokenizer_archive)
    runner = _proven_runner(loaded, progress)
    del loaded  # Where the runner keeps the weights in a form of its own, the network goes.
    engine = Engine(runner, _engine_options(plan, settings))
    engine.start()
    progress("warming up")
    try:
        _record(engine, runner, progress)
        _warm_up(engine, served.identity.max_length)
    except BaseException:
        engine.stop()
        raise
    return served, engine


def _engine_options(plan: MemoryPlan, settings: EngineSettings) -> EngineOptions:
    return EngineOptions(
        plan.num_blocks,
        plan.block_size,
        settings.max_rows,
        settings.max_draft_tokens,
        settings.step_limit_s,
    )


def find_block_size(settings: EngineSettings) -> int:
    """Tokens of a block: what the settings say, or else the least that suits the device.

    Raises:
        InvalidArgument: the device's kernels take no such blocks.
    """
    if torch.device(settings.device).type == "cpu":
        return settings.block_size or _CPU_BLOCK_SIZE
    if settings.block_size % CUDA_BLOCK_SIZE:
        raise InvalidArgument(
            "block_size", f"must be a multiple of {CUDA_BLOCK_SIZE} on {settings.device}"
        )
    return settings.block_size or CUDA_BLOCK_SIZE


def _bounded(plan: MemoryPlan, max_sessions: int) -> MemoryPlan:
    """No more blocks than the sessions that are let in could ever fill."""
    most = max_sessions * -(-plan.max_length // plan.block_size)
    return replace(plan, num_blocks=min(plan.num_blocks, most))


def _proven_runner(loaded: LoadedModel, progress: Progress) -> ModelRunner:
    """A runner that has shown that it computes what the network does, which it may use up."""
    network, size = loaded.network, loaded.identity.vocabulary_size
    if isinstance(network, TableModel):
        return build_runner(loaded)
    progress("checking the paged cache against the stock forward")
    stock = run_stock(network, size, is_quantized=bool(loaded.identity.quantization))
    runner = build_runner(loaded)
    check_against_stock(runner, stock)
    if loaded.identity.exact:
        progress("checking that the cut of a step changes no bit")
        assert isinstance(runner, LeanRunner)  # no other is exact, which loading looked at
        check_exact(runner, runner.decoder, size)
    return runner


def _record(engine: Engine, runner: ModelRunner, progress: Progress) -> None:
    """Records what is recorded on a device, on the engine's thread, before the first sequence."""
    if isinstance(runner, CudaRunner):
        recorder = find_recorder(runner.device)
        engine.call(lambda: record_steps(runner, recorder, progress)).result()


def _warm_up(engine: Engine, max_length: int) -> None:
    """Runs a prompt and every number of rows of a proposal once, and leaves nothing behind.

    Kernels are compiled, and prepared for a number of rows, where they first meet it. A draft runs
    its prompt without a law, and so with a head that has no rows.
    """
    length = min(3 * engine.options.max_draft_tokens, max_length)
    spec = SessionSpec(
        (0,) * length, length, SamplingParams(0.0), VerificationRule.REJECTION_TOKEN, 0
    )
    sequence = engine.open(spec).result()

    def job() -> Job[None]:
        yield Extend(length - 1, 0, spec.sampling)
        for num_rows in range(1, min(engine.options.max_draft_tokens + 1, length) + 1):
            yield Extend(length, num_rows, spec.sampling)

    engine.submit(sequence, job()).result()
    engine.close(sequence)
    engine.check().result()
