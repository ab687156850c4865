"""Checks and measures everything that is CUDA's, in a few minutes on one device.

`python -m paceline.bench.gpu --json gpu.json`, with random weights in the shapes of Llama 3.2 1B
and Llama 3.1 8B. `--device cpu` runs the same over a tiny shape, for the code's sake: the kernel is
written out there, nothing is recorded and times mean nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import torch

from paceline.bench.gpu_checks import Check, run_checks
from paceline.bench.gpu_subject import SHAPES, build_subject, find_cache_form
from paceline.bench.gpu_times import (
    KernelTime,
    StepTimes,
    measure_copy,
    measure_steps,
    profile_kernels,
)

_MOST_PLAIN = 1.5
"""Times of reading the weights that a plain step at batch 1 may take."""
_MOST_VERIFY = 1.1
"""Plain steps that verifying four draft tokens may take."""
_NUM_KERNELS = 12


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    copy_bytes: int
    context: int
    repeats: int


ON_CUDA = Effort(1 << 30, 1000, 40)
ON_CPU = Effort(1 << 20, 100, 2)


@dataclass(frozen=True, slots=True)
class Report:
    """What was found about one shape."""

    shape: str
    attention: str
    weights_bytes: int
    copy_bytes_per_s: float
    checks: list[Check]
    steps: list[StepTimes]
    kernels: list[KernelTime]
    wall_s: float

    @property
    def floor_ms(self) -> float:
        """What reading every weight once takes at the pace of a copy."""
        return 1e3 * self.weights_bytes / self.copy_bytes_per_s

    def describe(self) -> list[str]:
        """The figures in lines for people; checks are told as they come."""
        lines = [
            f"  {self.weights_bytes / 1e9:.2f} GB of weights, copies"
            f" {self.copy_bytes_per_s / 1e9:.0f} GB/s, floor {self.floor_ms:.2f} ms,"
            f" {self.wall_s:.0f} s in all"
        ]
        if not self.steps:
            return lines
        heads = ("step", "recorded", "queued", "unrecorded", "x floor", "x plain")
        lines.append("  " + " ".join(f"{head:>12}" for head in heads))
        plain = self.steps[0].recorded_ms
        for step in self.steps:
            taken = step.recorded_ms
            figures = (
                taken,
                step.queued_ms,
                step.unrecorded_ms,
                taken / self.floor_ms,
                taken / plain,
            )
            lines.append(f"  {step.name:>12} " + " ".join(f"{one:12.2f}" for one in figures))
        lines += [
            f"  aimed at: {name} at most {most:g} times {what}: {found:.2f},"
            f" {'met' if found <= most else 'missed'}"
            for name, what, most, found in self._aims()
        ]
        lines.append("  kernels of 1 x 1, ms and calls of a step:")
        return lines + [
            f"    {one.ms:8.3f} {one.num_calls:6.0f}  {one.name[:70]}"
            for one in self.kernels[:_NUM_KERNELS]
        ]

    def as_json(self) -> dict[str, Any]:
        """The report as plain values."""
        return asdict(self) | {"floor_ms": self.floor_ms}

    def _aims(self) -> list[tuple[str, str, float, float]]:
        plain, verify = self.steps[0].recorded_ms, self.steps[1].recorded_ms
        return [
            ("1 x 1", "the floor", _MOST_PLAIN, plain / self.floor_ms),
            ("1 x 5", "1 x 1", _MOST_VERIFY, verify / plain),
        ]


def examine(shape: str, device: torch.device, effort: Effort) -> Report:
    """Checks one shape, then measures it; what is wrong is not measured."""
    started = time.perf_counter()
    subject = build_subject(shape, device, find_cache_form(device))
    click.echo(f"{shape}, attention: {subject.cache.name}")
    checks = []
    for check in run_checks(subject):
        checks.append(check)
        click.echo(f"  {'ok  ' if check.passed else 'FAIL'} {check.name}: {check.detail}")
    is_right = all(check.passed for check in checks)
    context, repeats = effort.context, effort.repeats
    return Report(
        shape,
        subject.cache.name,
        subject.weights_bytes,
        measure_copy(device, effort.copy_bytes, 10),
        checks,
        list(measure_steps(subject, context, repeats)) if is_right else [],
        profile_kernels(subject, context, repeats) if is_right else [],
        time.perf_counter() - started,
    )


@click.command()
@click.option("--device", default="cuda", show_default=True, help="cuda, cuda:N or cpu.")
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    type=click.Choice(sorted(SHAPES)),
    help="May be repeated; 1b and 8b if not given, tiny on the CPU.",
)
@click.option("--json", "json_path", type=Path, help="Where the figures go.")
def main(device: str, shapes: Sequence[str], json_path: Path | None) -> None:
    """Prints checks and times; exits with 1 when a check fails."""
    is_cpu = torch.device(device).type == "cpu"
    if not is_cpu and not torch.cuda.is_available():
        raise click.UsageError(
            "there is no CUDA device here; --device cpu runs the checks over a tiny shape"
        )
    name = "cpu" if is_cpu else torch.cuda.get_device_name(device)
    click.echo(f"{name}, torch {torch.__version__}")
    reports = []
    for shape in shapes or (("tiny",) if is_cpu else ("1b", "8b")):
        reports.append(examine(shape, torch.device(device), ON_CPU if is_cpu else ON_CUDA))
        click.echo("\n".join(reports[-1].describe()))
        if json_path is not None:  # After each one: what is found is kept, whatever comes.
            found = {"device": name, "torch": torch.__version__}
            models = [report.as_json() for report in reports]
            json_path.write_text(json.dumps(found | {"models": models}, indent=1) + "\n")
    if not all(check.passed for report in reports for check in report.checks):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
