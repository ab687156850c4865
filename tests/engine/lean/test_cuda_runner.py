"""The runner of CUDA, on the CPU: its kernel written out, its graphs replaced by direct calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from paceline.bench.paged_reference import attend_plainly
from paceline.engine.lean.cuda_runner import CudaRunner
from paceline.engine.lean.graphs import Run
from paceline.engine.lean.weights import take_decoder
from paceline.engine.step import Span, Step

BuildNetwork = Callable[..., PreTrainedModel]

VOCABULARY, SIZE, NUM_BLOCKS = 500, 4, 40


def record_like_a_graph(run: Run) -> Run:
    """Repeats into the memory of the first output, as a graph does."""
    output = run().clone()
    return lambda: output.copy_(run())


def ids(length: int, seed: int) -> tuple[int, ...]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(VOCABULARY, (length,), generator=generator).tolist())


def span(seed: int, before: int, count: int, num_logits: int) -> Span:
    """Rows of a sequence that has five blocks, scattered, of its own."""
    blocks = tuple((17 * (5 * seed + place)) % NUM_BLOCKS for place in range(5))
    return Span(ids(count, 100 * seed + before), before, blocks, num_logits, 1)


PROMPTS = Step(tuple(span(seed, 0, 11, 0) for seed in range(4)), SIZE)
MIXED: dict[str, Step] = {
    "decode": Step((span(0, 11, 1, 1),), SIZE),
    "proposal": Step((span(1, 11, 5, 5),), SIZE),
    "one of two rows": Step((span(1, 11, 2, 1),), SIZE),
    "everything": Step(
        (span(2, 11, 5, 5), span(0, 11, 1, 1), span(3, 11, 3, 1), span(1, 11, 2, 0)), SIZE
    ),
    "no logits": Step((span(1, 11, 2, 0),), SIZE),
}


@pytest.fixture
def build(tiny_network: BuildNetwork) -> Callable[..., CudaRunner]:
    """Builds a runner over a cache with four prompts in it."""

    def build(**settings: Any) -> CudaRunner:
        network = tiny_network("llama", **settings).requires_grad_(False).bfloat16()
        runner = CudaRunner(take_decoder(network, by_place=False), VOCABULARY, attend_plainly)
        runner.allocate(NUM_BLOCKS, SIZE)
        runner.record(record_like_a_graph)
        runner.run(PROMPTS)
        return runner

    return build


@pytest.mark.parametrize("name", list(MIXED))
def test_filled_up_steps_give_the_same(build: Callable[..., CudaRunner], name: str) -> None:
    """A recorded step with surplus rows computes what the step does kernel by kernel."""
    runner = build()
    step = MIXED[name]
    expected = runner.run_unrecorded(step)
    got = runner.run(step)
    assert (sum(one.num_logits for one in step.spans), VOCABULARY) == got.shape
    assert torch.float32 == got.dtype
    torch.testing.assert_close(expected, got, atol=2e-2, rtol=0)


def test_surplus_touches_nobody(build: Callable[..., CudaRunner]) -> None:
    """A step writes the slots of its own rows, and the spare block."""
    runner = build()
    (one,) = MIXED["proposal"].spans
    runner.run_unrecorded(PROMPTS)
    before = [part.clone() for part in runner.cache.view_layer(1)]
    runner.run(MIXED["proposal"])
    own = {(one.block_table[p // SIZE], p % SIZE) for p in range(one.start, one.end)}
    for old, new in zip(before, runner.cache.view_layer(1), strict=True):
        changed = {(int(b), int(i)) for b, i in (old != new).flatten(2).any(2).nonzero()}
        assert own == {place for place in changed if place[0] != runner.cache.spare_block}


def test_what_comes_out_stays(build: Callable[..., CudaRunner]) -> None:
    """A graph overwrites its output; whoever holds logits holds a copy."""
    runner = build()
    first = runner.run(MIXED["decode"])
    kept = first.clone()
    runner.run(Step((span(3, 11, 1, 1),), SIZE))
    assert torch.equal(kept, first)


def test_rejected_rows_leave_no_trace(build: Callable[..., CudaRunner]) -> None:
    """B16: after a proposal that was rejected the next row is as if it had never been."""
    runner = build()
    expected = runner.run(MIXED["decode"])
    runner.run(Step((span(0, 11, 5, 5),), SIZE))
    assert torch.equal(expected, runner.run(MIXED["decode"]))


@pytest.mark.parametrize(
    ("step", "is_recorded"),
    [
        (MIXED["decode"], True),
        (MIXED["everything"], True),
        (Step((Span(ids(129, 1), 0, tuple(range(33)), 1, 1),), SIZE), False),
    ],
    ids=["decode", "mixed", "prompt"],
)
def test_which_steps_are_repeated(
    build: Callable[..., CudaRunner],
    monkeypatch: pytest.MonkeyPatch,
    step: Step,
    is_recorded: bool,
) -> None:
    """Short steps repeat what was recorded; longer ones and others without a record do not."""
    runner = build()
    unrecorded: list[Step] = []

    def note(step: Step) -> torch.Tensor:
        unrecorded.append(step)
        return torch.zeros(0)

    monkeypatch.setattr(runner, "run_unrecorded", note)
    runner.run(step)
    assert ([] if is_recorded else [step]) == unrecorded
    runner.forget_recorded()
    runner.run(step)
    assert step is unrecorded[-1]


def test_a_new_cache_has_no_recorded_steps(build: Callable[..., CudaRunner]) -> None:
    """What was recorded would write into memory that is gone."""
    runner = build()
    assert 8 == len(runner.recorded_shapes)
    runner.allocate(3, SIZE)
    assert [] == runner.recorded_shapes


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "mistral"])
def test_a_step_waits_for_nothing(tiny_network: BuildNetwork, model_type: str) -> None:
    """No value is looked at on the host: a step runs where there are none, with torch's kernel."""
    network = tiny_network(model_type).requires_grad_(False).bfloat16().to("meta")
    runner = CudaRunner(take_decoder(network, by_place=False), VOCABULARY)
    runner.allocate(NUM_BLOCKS, 256)
    runner.record(lambda run: run)
    for step in MIXED.values():
        for run in (runner.run, runner.run_unrecorded):
            num_wanted = sum(one.num_logits for one in step.spans)
            assert (num_wanted, VOCABULARY) == run(Step(step.spans, 256)).shape


def test_blocks_are_copied(build: Callable[..., CudaRunner]) -> None:
    """A sequence that was forked goes on from copies of its blocks."""
    runner = build()
    expected = runner.run(MIXED["decode"])
    (one,) = MIXED["decode"].spans
    blocks = tuple(range(30, 35))
    runner.copy_blocks(list(zip(one.block_table, blocks, strict=True)))
    copied = Span(one.token_ids, one.start, blocks, 1, 1)
    assert torch.equal(expected, runner.run(Step((copied,), SIZE)))
