"""What a step costs, by the lean decoder and by transformers over the same kind of cache.

`python -m paceline.bench.steps --model smollm2`. It knows no service: runners are called directly.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import click
import torch

from paceline.engine import models
from paceline.engine.lean.weights import serves
from paceline.engine.model_runner import NetworkRunner
from paceline.engine.runners import build_runner
from paceline.engine.step import ModelRunner, Span, Step
from paceline.engine.table_model import TableModel
from paceline.serving.config import CACHE_DIR

_BLOCK_SIZE = 16
_CHUNK_ROWS = 512
_NUM_DECODE_ROWS = (1, 5, 9)
_NUM_SPARE = 16


@dataclass(frozen=True, slots=True)
class StepCost:
    """Milliseconds of the same steps by each runner."""

    name: str
    least: Mapping[str, float]
    median: Mapping[str, float]


def load_runners(name: str, cache_dir: Path, context: int) -> dict[str, ModelRunner]:
    """The model by the lean decoder and by its own modules, with room for one sequence.

    Raises:
        click.UsageError: the lean decoder does not serve the model.
    """
    options = models.LoadOptions(cache_dir)
    loaded, again = (models.load(name, options, lambda _: None) for _ in range(2))
    if isinstance(loaded.network, TableModel) or not serves(loaded.network):
        raise click.UsageError(f"the lean decoder does not serve {name}")
    assert not isinstance(again.network, TableModel)
    runners: dict[str, ModelRunner] = {
        "lean": build_runner(loaded),
        "transformers": NetworkRunner(again.network, loaded.identity.vocabulary_size),
    }
    for runner in runners.values():
        runner.allocate(-(-(context + _NUM_SPARE) // _BLOCK_SIZE), _BLOCK_SIZE)
    return runners


def measure(runners: Mapping[str, ModelRunner], context: int, repeats: int) -> Iterable[StepCost]:
    """A prefill of `context` tokens in chunks, then decodes and proposals behind it."""
    chunks = [(a, min(a + _CHUNK_ROWS, context)) for a in range(0, context, _CHUNK_ROWS)]
    prefill = [_step(first, last, 1) for first, last in chunks]
    yield _compare(f"prefill {context}", runners, prefill, max(2, repeats // 8))
    for count in _NUM_DECODE_ROWS:
        rows = [_step(context, context + count, count)]
        yield _compare(f"{count} rows at {context}", runners, rows, repeats)


def _step(first: int, last: int, num_logits: int) -> Step:
    table = tuple(range(-(-last // _BLOCK_SIZE)))
    ids = tuple(7 * position % 251 for position in range(first, last))
    return Step((Span(ids, first, table, num_logits, last),), _BLOCK_SIZE)


def _compare(
    name: str, runners: Mapping[str, ModelRunner], steps: list[Step], repeats: int
) -> StepCost:
    taken: dict[str, list[float]] = {kind: [] for kind in runners}
    for _ in range(repeats):
        for kind, runner in runners.items():
            started = time.perf_counter()
            for step in steps:
                runner.run(step)
            taken[kind].append(1e3 * (time.perf_counter() - started))
    return StepCost(
        name,
        {kind: min(values) for kind, values in taken.items()},
        {kind: statistics.median(values) for kind, values in taken.items()},
    )


@click.command()
@click.option("--model", default="smollm2", show_default=True, help="A model's name.")
@click.option("--context", type=click.IntRange(1), default=1000, show_default=True, help="Tokens.")
@click.option("--repeats", type=click.IntRange(1), default=25, show_default=True, help="Of a step.")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Of a step.")
@click.option("--cache-dir", type=Path, default=CACHE_DIR, show_default=True)
def main(model: str, context: int, repeats: int, threads: int, cache_dir: Path) -> None:
    """Prints least and median milliseconds of each kind of step."""
    torch.set_num_threads(threads)
    runners = load_runners(model, cache_dir.expanduser(), context)
    for cost in measure(runners, context, repeats):
        figures = (f"{k} {cost.least[k]:.1f} ({cost.median[k]:.1f})" for k in runners)
        click.echo(f"{cost.name:>16}: {', '.join(figures)} ms")


if __name__ == "__main__":
    main()
