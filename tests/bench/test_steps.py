"""The measurement of a step: every runner runs the same steps, in turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner

from paceline.bench.steps import load_runners, main, measure
from paceline.engine.step import Step


class Recorder:
    """A model that notes its steps."""

    def __init__(self, name: str, steps: list[tuple[str, Step]]) -> None:
        self._name = name
        self._steps = steps

    def run(self, step: Step) -> torch.Tensor:
        """Notes a step."""
        self._steps.append((self._name, step))
        return torch.zeros(0)

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Needs no cache."""

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Has no blocks."""


def test_steps_are_interleaved() -> None:
    """A prefill in chunks of 512, then 1, 5 and 9 rows behind it; both by turns."""
    steps: list[tuple[str, Step]] = []
    runners = {name: Recorder(name, steps) for name in ("lean", "transformers")}
    names = [cost.name for cost in measure(runners, 600, 2)]
    assert ["prefill 600", "1 rows at 600", "5 rows at 600", "9 rows at 600"] == names
    seen = [(name, step.spans[0].start, step.num_rows) for name, step in steps]
    chunks = [(name, *part) for name in runners for part in ((0, 512), (512, 88))]
    decodes = [(name, 600, count) for count in (1, 5, 9) for _ in range(2) for name in runners]
    assert chunks * 2 + decodes == seen


def test_prints_every_kind(networks: Any, tmp_path: Path) -> None:
    """One line each."""
    flags = ["--model", networks.find(), "--context", "40", "--repeats", "1"]
    result = CliRunner().invoke(main, [*flags, "--cache-dir", str(tmp_path)])
    assert 0 == result.exit_code
    lines = result.output.splitlines()
    assert ["prefill 40", "1 rows at 40", "5 rows at 40", "9 rows at 40"] == [
        line.partition(":")[0].strip() for line in lines
    ]
    assert all("lean" in line and "transformers" in line for line in lines)


def test_tables_are_refused(write_table: Any, tmp_path: Path) -> None:
    """They have no kernels to compare."""
    with pytest.raises(click.UsageError, match="does not serve table:"):
        load_runners(write_table(0.5, 0.5), tmp_path, 10)
