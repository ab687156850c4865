"""What steps cost on CUDA: recorded and kernel by kernel, beside what reading the weights costs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

from paceline.bench.gpu_subject import Subject
from paceline.engine.lean.graphs import find_recorder
from paceline.engine.sampling import greedy_tokens
from paceline.engine.step import Step

_CHUNK_ROWS = 512


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Median milliseconds of one kind of step, interleaved."""

    name: str
    recorded_ms: float
    """From integers to greedy tokens on the host."""
    unrecorded_ms: float
    """The same, kernel by kernel."""
    queued_ms: float
    """Recorded steps one behind the other, none waited for: what the device alone takes."""


@dataclass(frozen=True, slots=True)
class KernelTime:
    """What one kernel takes of a step."""

    name: str
    ms: float
    num_calls: float


def measure_copy(device: torch.device, num_bytes: int, repeats: int) -> float:
    """Bytes per second that the device's memory moves, read and written, at best."""
    source = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = [_time(device, lambda: target.copy_(source)) for _ in range(repeats)]
    return 2 * num_bytes / min(times)


def measure_steps(subject: Subject, context: int, repeats: int) -> Iterator[StepTimes]:
    """Decodes, proposals and a prompt, over a cache whose contents are no matter."""
    subject.runner.allocate(subject.num_blocks, subject.block_size)
    subject.runner.record(find_recorder(subject.runner.device))
    for num_sequences, count in ((1, 1), (1, 5), (1, 9), (16, 1), (16, 5)):
        step = _behind(subject, context, min(num_sequences, subject.num_sequences), count)
        yield _measure(subject, f"{num_sequences} x {count}", [step], repeats)
    chunks = [
        subject.step(
            subject.span(0, first, subject.token_ids(0, first, last), int(last == context))
        )
        for first in range(0, context, _CHUNK_ROWS)
        for last in (min(first + _CHUNK_ROWS, context),)
    ]
    yield _measure(subject, f"prefill {context}", chunks, max(2, repeats // 8))


def profile_kernels(subject: Subject, context: int, repeats: int) -> list[KernelTime]:
    """The kernels of a recorded step of one row, the dearest first; on the CPU operations."""
    runner = subject.runner
    is_cuda = runner.device.type == "cuda"
    step = _behind(subject, context, 1, 1)
    kind = ProfilerActivity.CUDA if is_cuda else ProfilerActivity.CPU
    with profile(activities=[kind]) as profiled:
        for _ in range(repeats):
            runner.run(step)
        _wait(runner.device)
    found = [
        KernelTime(
            one.key,
            1e-3 * (one.self_device_time_total if is_cuda else one.self_cpu_time_total) / repeats,
            one.count / repeats,
        )
        for one in profiled.key_averages()
    ]
    return sorted(found, key=lambda one: -one.ms)


def _behind(subject: Subject, context: int, num_sequences: int, count: int) -> Step:
    return subject.step(
        *(
            subject.span(i, context, subject.token_ids(i, context, context + count), count)
            for i in range(num_sequences)
        )
    )


def _measure(subject: Subject, name: str, steps: list[Step], repeats: int) -> StepTimes:
    runner, device = subject.runner, subject.runner.device

    def run_all(run: Callable[[Step], torch.Tensor]) -> torch.Tensor:
        return [run(step) for step in steps][-1]

    def queue() -> None:
        for _ in range(repeats):
            run_all(runner.run)

    kinds = {
        "recorded": lambda: greedy_tokens(run_all(runner.run)),
        "unrecorded": lambda: greedy_tokens(run_all(runner.run_unrecorded)),
    }
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for repeat in range(repeats + 1):
        for kind, run in kinds.items():
            taken = _time(device, run)
            if repeat:  # The first one finds kernels.
                times[kind].append(1e3 * taken)
    return StepTimes(
        name,
        statistics.median(times["recorded"]),
        statistics.median(times["unrecorded"]),
        1e3 * _time(device, queue) / repeats,
    )


def _time(device: torch.device, run: Callable[[], object]) -> float:
    """Seconds until everything that a call has begun is done."""
    _wait(device)
    started = time.perf_counter()
    run()
    _wait(device)
    return time.perf_counter() - started


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
