"""Every draft source of a running system on the same prompts: what is accepted, and what it costs.

`python -m paceline.bench.sources --address HOST:PORT --prompts FILE.jsonl`: greedy, and at
temperature 0.7 with a seed under the coupled rule; in both ways each output must equal plain
decoding's. It does not know how rounds are run.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from paceline.bench.prompts import Question
from paceline.bench.trials import Trial, plainly, run_interleaved
from paceline.cli.client import GenerationOptions, connect
from paceline.cli.options import (
    address_option,
    choose_model,
    choose_questions,
    prompts_option,
)
from paceline.v1 import gateway_pb2

WAYS = {
    "greedy": GenerationOptions(temperature=0.0),
    "0.7, coupled": GenerationOptions(temperature=0.7, seed=1, rule="coupled"),
}
"""How each prompt is sampled: in both ways the draft may not change an id."""


def describe(way: str, run: Trial, plain: Trial) -> dict[str, Any]:
    """The figures of one source beside plain decoding of the same prompts."""
    plain_rate = plain.tokens_per_second
    return {
        "sampling": way,
        "source": run.source,
        "num_draft_tokens": run.num_draft_tokens,
        "acceptance_rate": run.acceptance_rate,
        "acceptance_length": run.acceptance_length,
        "tokens_per_step": run.num_tokens / max(1, _num_steps(run)),
        "coverage": run.coverage,
        "draft_ms_per_token": 1e3 * run.draft_s_per_token,
        "tokens_per_second": run.tokens_per_second,
        "speedup": run.tokens_per_second / plain_rate if plain_rate else 0.0,
        "identical": run.num_same(plain),
        "prompts": len(run.generations),
    }


def _num_steps(run: Trial) -> int:
    """Steps of the target, those without a proposal included."""
    return sum(g.stats.round_count + g.stats.plain_round_count for g in run.generations)


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """The figures for people."""
    grid = Table(box=box.SIMPLE)
    grid.add_column("source", overflow="fold")
    for title in (
        *("sampling", "accepted", "per round", "per step", "rounds with a draft"),
        *("draft ms/token", "tokens/s", "speedup", "identical"),
    ):
        grid.add_column(title, justify="right")
    for row in rows:
        grid.add_row(
            row["source"],
            row["sampling"],
            f"{row['acceptance_rate']:.2f}",
            f"{row['acceptance_length']:.2f}",
            f"{row['tokens_per_step']:.2f}",
            f"{row['coverage']:.0%}",
            f"{row['draft_ms_per_token']:.2f}",
            f"{row['tokens_per_second']:.1f}",
            f"{row['speedup']:.2f}x",
            f"{row['identical']}/{row['prompts']}",
        )
    return grid


async def measure_sources(
    questions: Sequence[Question], options: dict[str, Any], names: Sequence[str]
) -> list[dict[str, Any]]:
    """The rows of the table: every source, or those that are named, in every way."""
    rows = []
    async with connect(options["access"]) as gateway:
        models = await gateway.ListModels(gateway_pb2.ListModelsRequest())
        sources = names or choose_model(models, "").draft_sources
        with Progress(console=Console(stderr=True)) as progress:
            total = len(WAYS) * (1 + len(sources)) * len(questions)
            bar = progress.add_task("sources", total=total)

            def done() -> None:
                progress.advance(bar)

            for way, sampling in WAYS.items():
                limited = replace(sampling, max_tokens=options["max_tokens"])
                length = options["num_draft_tokens"]
                wanted = [plainly(limited)]
                wanted += [replace(limited, draft=s, num_draft_tokens=length) for s in sources]
                runs = await run_interleaved(gateway, questions, wanted, done)
                rows += [describe(way, one, runs[0]) for one in runs]
    return rows


@click.command()
@address_option
@prompts_option
@click.option("--limit", type=click.IntRange(1), default=13, show_default=True, help="Prompts.")
@click.option("--max-tokens", type=click.IntRange(2), default=64, show_default=True, help="Output.")
@click.option("--num-draft-tokens", type=click.IntRange(1), default=4, show_default=True)
@click.option("--source", "names", multiple=True, show_default="all that fit", help="Repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(names: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Prints the table; exits with 1 where an output differs from plain decoding's."""
    questions = choose_questions(options["prompts"], options["limit"])
    rows = asyncio.run(measure_sources(questions, options, names))
    if as_json:
        click.echo(json.dumps(rows))
    else:
        Console(width=None if sys.stdout.isatty() else 150).print(table(rows))
    sys.exit(any(row["identical"] < row["prompts"] for row in rows))


if __name__ == "__main__":
    main()
