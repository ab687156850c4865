"""Recording at load: what computes the same is kept, anything else is told and forgotten."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedModel

from paceline.bench.paged_reference import attend_plainly
from paceline.engine.lean.cuda_runner import CudaRunner
from paceline.engine.lean.graph_check import find_largest_error, record_steps
from paceline.engine.lean.graphs import ROW_COUNTS, Run, find_recorded
from paceline.engine.lean.weights import take_decoder
from paceline.engine.reduced_head import ReducedHead
from paceline.engine.step import Step

BuildNetwork = Callable[..., PreTrainedModel]


def record_stale(run: Run) -> Run:
    """Repeats what came out when it was recorded."""
    output = run().clone()
    return lambda: output


def record_one_row_wrong(run: Run) -> Run:
    """Loses what the last but one row computed."""

    def repeat() -> torch.Tensor:
        output = run()
        output[-2:-1] = 0
        return output

    return repeat


def record_nan(run: Run) -> Run:
    """Computes nothing."""
    return lambda: run() * math.nan


def refuse(run: Run) -> Run:
    """Fails as a device does that cannot record."""
    raise RuntimeError("operation not permitted when stream is capturing")


@pytest.fixture
def runner(tiny_network: BuildNetwork) -> CudaRunner:
    """A tiny runner with room for a few sequences."""
    network = tiny_network("llama").requires_grad_(False).bfloat16()
    runner = CudaRunner(take_decoder(network, by_place=False), 500, attend_plainly)
    runner.allocate(9, 16)
    return runner


def test_what_computes_the_same_is_kept(runner: CudaRunner) -> None:
    """Every row count, without a warning."""
    lines: list[str] = []
    record_steps(runner, lambda run: run, lines.append)
    assert ["recording steps of few rows"] == lines
    assert len(ROW_COUNTS) == len(runner.recorded_shapes)
    assert 0.02 > find_largest_error(runner)


def test_heads_over_some_tokens_are_kept(tiny_network: BuildNetwork) -> None:
    """A token that is not scored is at minus infinity on both sides."""
    decoder = take_decoder(tiny_network("llama").requires_grad_(False).bfloat16(), by_place=False)
    scored = torch.arange(0, 520, 3)
    head = ReducedHead(lambda x: decoder.head(x)[:, scored], scored, 520)
    runner = CudaRunner(replace(decoder, head=head), 500, attend_plainly)
    runner.allocate(9, 16)
    record_steps(runner, lambda run: run, lambda line: None)
    assert len(ROW_COUNTS) == len(runner.recorded_shapes)


@pytest.mark.parametrize(
    ("record", "told"),
    [
        (record_stale, "a relative error of"),
        (record_one_row_wrong, "a relative error of"),
        (record_nan, "a relative error of inf"),
        (refuse, "not permitted when stream is capturing"),
    ],
)
def test_what_differs_is_forgotten(
    runner: CudaRunner, record: Callable[[Run], Run], told: str
) -> None:
    """It is told why; steps run kernel by kernel from then on."""
    lines: list[str] = []
    record_steps(runner, record, lines.append)
    assert [] == runner.recorded_shapes
    assert lines[-1].startswith("WARNING: steps are not recorded") and told in lines[-1]


def test_every_shape_is_compared_with_surplus(
    runner: CudaRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row is left to fill up wherever there is more than one, sequences are of both kinds."""
    runner.record(lambda run: run)
    seen: list[Step] = []
    run = runner.run

    def note(step: Step) -> torch.Tensor:
        seen.append(step)
        return run(step)

    monkeypatch.setattr(runner, "run", note)
    find_largest_error(runner)
    for step, shape in zip(seen, runner.recorded_shapes, strict=True):
        assert step.num_rows <= shape.num_rows
        assert step.num_rows < shape.num_rows or shape.num_rows <= 2
        repeated = find_recorded(step, runner._recorded)
        # The largest would take more than these 9 blocks.
        assert repeated is not None and (shape == repeated.shape or shape.num_rows > 32)
    assert max(len(span.token_ids) for span in seen[0].spans) > 1
    assert 9 == len(seen[0].spans)
