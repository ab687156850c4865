"""The script for a GPU, on the CPU: all of its checks run there, and each of them can fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from paceline.bench import gpu_checks, gpu_subject
from paceline.bench.gpu import Report, main
from paceline.bench.gpu_checks import Check, run_checks
from paceline.bench.gpu_subject import (
    IN_ONE_BLOCK,
    PAGED,
    WRITTEN_OUT,
    Subject,
    build_subject,
    find_cache_form,
)
from paceline.bench.gpu_times import KernelTime, StepTimes, measure_copy
from paceline.bench.paged_reference import attend_in_one_block, attend_plainly
from paceline.engine.lean.cuda_runner import CudaRunner
from paceline.engine.lean.decoder import HeadShape
from paceline.engine.lean.graphs import Run
from paceline.engine.lean.packed import PackedRows, PackedShape, pack
from paceline.engine.lean.paged_attention import PagedAttention, PagedCall
from paceline.engine.lean.slot_cache import SlotCache
from paceline.engine.step import Span, Step

CPU = torch.device("cpu")
NAMES = [
    "unrecorded steps = transformers",
    "recorded steps = unrecorded",
    "surplus rows touch nobody",
    "rejected rows leave no trace",
    "speculative greedy = plain",
]


@pytest.fixture
def subject() -> Subject:
    """A tiny model with room for eight sequences."""
    return build_subject("tiny", CPU, WRITTEN_OUT, num_sequences=8)


def failed(subject: Subject) -> dict[str, str]:
    """The checks that fail, with why."""
    return {check.name: check.detail for check in run_checks(subject) if not check.passed}


def test_everything_runs_on_the_cpu(tmp_path: Path) -> None:
    """Checks pass, every kind of step is measured, and the figures are written."""
    path = tmp_path / "gpu.json"
    result = CliRunner().invoke(main, ["--device", "cpu", "--json", str(path)])
    assert 0 == result.exit_code, result.output
    (model,) = json.loads(path.read_text())["models"]
    assert [(name, True) for name in NAMES] == [(c["name"], c["passed"]) for c in model["checks"]]
    assert ["1 x 1", "1 x 5", "1 x 9", "16 x 1", "16 x 5", "prefill 100"] == [
        step["name"] for step in model["steps"]
    ]
    assert model["kernels"][0]["ms"] >= model["kernels"][-1]["ms"] >= 0
    assert all(line in result.output for line in (*NAMES, "aimed at: 1 x 5"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so() -> None:
    """Nothing is measured that would be taken for a GPU's figures."""
    result = CliRunner().invoke(main, [])
    assert 2 == result.exit_code
    assert "there is no CUDA device here; --device cpu runs the checks" in result.output


def test_a_wrong_kernel_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that sees the row itself alone: exit 1, and no times of what is wrong."""

    def forget(call: PagedCall) -> None:
        attend_plainly(PagedCall(call.query, call.key, call.value, call.output, call.rows, 1))

    monkeypatch.setattr(gpu_subject, "WRITTEN_OUT", replace(WRITTEN_OUT, kernel=forget))
    result = CliRunner().invoke(main, ["--device", "cpu"])
    assert 1 == result.exit_code
    assert f"FAIL {NAMES[0]}: FailedPrecondition" in result.output
    assert "prefill" not in result.output


def test_steps_that_were_not_recorded_are_seen(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Serving would go on without; the script must not."""

    def find_stale(device: torch.device) -> Callable[[Run], Run]:
        def record(run: Run) -> Run:
            output = run().clone()
            return lambda: output

        return record

    monkeypatch.setattr(gpu_checks, "find_recorder", find_stale)
    assert "WARNING: steps are not recorded" in failed(subject)[NAMES[1]]


def test_surplus_in_others_slots_is_seen(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that writes into the last block of somebody's."""
    run, ones = CudaRunner.run, torch.ones(1, 4, 16, dtype=torch.bfloat16)

    def spill(runner: CudaRunner, step: Step) -> torch.Tensor:
        logits = run(runner, step)
        slot = (runner.cache.spare_block - 1) * runner.cache.block_size
        runner.cache.write(0, torch.tensor([slot]), ones)
        return logits

    monkeypatch.setattr(CudaRunner, "run", spill)
    assert "slots that are not its own" in failed(subject)[NAMES[2]]


def test_traces_of_rejected_rows_are_seen(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that sees one place behind itself."""

    def see_ahead(call: PagedCall) -> None:
        call.rows.lengths.add_(1)
        attend_plainly(call)
        call.rows.lengths.sub_(1)

    monkeypatch.setattr(subject.runner, "_kernel", see_ahead)
    assert "logits moved" in failed(subject)[NAMES[3]]


def test_wrong_tokens_are_seen(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proposal's last row that computes something else is no near tie."""
    run = CudaRunner.run

    def turn_over(runner: CudaRunner, step: Step) -> torch.Tensor:
        logits = run(runner, step)
        if any(span.num_logits == 5 and span.start > 48 for span in step.spans):
            return torch.cat((logits[:-1], -logits[-1:]))
        return logits

    monkeypatch.setattr(CudaRunner, "run", turn_over)
    found = failed(subject)
    assert [NAMES[4]] == list(found) and "a token differs where" in found[NAMES[4]]


def test_copies_are_counted_twice() -> None:
    """Read and written."""
    assert measure_copy(CPU, 1 << 16, 2) > 0


def test_the_report_compares() -> None:
    """With the floor and with a plain step; what is aimed at is judged on its own."""
    steps = [StepTimes("1 x 1", 4.0, 20.0, 3.0), StepTimes("1 x 5", 5.0, 21.0, 4.0)]
    kernels = [KernelTime("product", 3.5, 129.0)]
    checks = [Check("a", True, "b")]
    report = Report("8b", "paged", 16_000_000_000, 4e12, checks, steps, kernels, 60.0)
    assert 4.0 == report.floor_ms == report.as_json()["floor_ms"]
    lines = report.describe()
    assert "floor 4.00 ms" in lines[0]
    assert ["1", "x", "5", "5.00", "4.00", "21.00", "1.25", "1.25"] == lines[3].split()
    assert lines[4].endswith("1.00, met") and lines[5].endswith("1.25, missed")
    assert ["3.500", "129", "product"] == lines[-1].split()


def test_the_form_of_the_cache_follows_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of blocks where the kernel takes them; before that a block per sequence."""
    device = torch.device("cuda")
    assert WRITTEN_OUT is find_cache_form(CPU)
    assert PAGED is find_cache_form(device)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn_out", lambda out, query: None)
    assert IN_ONE_BLOCK is find_cache_form(device)
    monkeypatch.delattr("torch.nn.attention.varlen.varlen_attn_out")
    assert IN_ONE_BLOCK is find_cache_form(device)


def test_a_block_per_sequence_serves_every_check() -> None:
    """The checks hold over blocks that are as long as a sequence."""
    form = replace(WRITTEN_OUT, block_size=160, num_blocks=1)
    assert {} == failed(build_subject("tiny", CPU, form, num_sequences=8))


def test_the_earlier_kernel_is_asked_for_the_same() -> None:
    """In its own signature, over keys and values as they lie and numbers that are not there."""
    like = torch.empty(0, dtype=torch.bfloat16, device="meta")
    cache, shape = SlotCache(1, HeadShape(4, 2, 8), 3, 256, like), PackedShape(5, 5, 1)
    rows = PackedRows.of(torch.empty(shape.size, dtype=torch.int64, device="meta"), shape)
    for window in (None, 7):
        output = like.new_empty(5, 4, 8)
        key, value = cache.view_layer(0)
        call = PagedCall(like.new_empty(5, 8, 8)[:, :4], key, value, output, rows, window)
        attend_in_one_block(call)
        assert (5, 4, 8) == output.shape


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("window", [None, 7])
def test_the_earlier_kernel_equals_the_reference(window: int | None) -> None:
    """Sequences in any order, with surplus rows and a sequence without any."""
    step = Step((Span((0,) * 5, 3, (2,), 5, 1), Span((0,) * 200, 7, (0,), 1, 1)), 256)
    shape, heads = PackedShape(206, 4, 1), torch.randn(206, 8, 64).bfloat16()
    outputs = []
    for kernel, device in ((attend_plainly, CPU), (attend_in_one_block, torch.device("cuda"))):
        cache = SlotCache(1, HeadShape(4, 2, 64), 4, 256, heads[:0].to(device))
        numbers = torch.empty(shape.size, dtype=torch.int64)
        pack(step, numbers, shape, cache.spare_block)
        rows = PackedRows.of(numbers.to(device), shape)
        attention = PagedAttention(rows, cache, HeadShape(4, 2, 64), [window], kernel)
        outputs.append(attention.attend(0, heads.to(device))[:205].float().cpu())
    torch.testing.assert_close(outputs[0], outputs[1], atol=3e-2, rtol=0)
