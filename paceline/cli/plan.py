"""`paceline plan`: measures your prompts on a running system and says whether speculation pays.

What is measured and what is predicted from it are two modules of `paceline.bench`; here they are
put into words.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from paceline.bench.distance import Text, describe_distance
from paceline.bench.measure import tokenize
from paceline.bench.measure_sheet import Measured, measure_sheet, num_runs
from paceline.bench.memory import describe_memory
from paceline.bench.prompts import Question
from paceline.bench.runs import Prompt
from paceline.bench.sheet import (
    Prediction,
    Prices,
    acceptance_rate,
    plain_cost_per_million,
    plain_s,
    predict,
    predictions,
    warnings,
)
from paceline.bench.trials import Trial
from paceline.cli.client import GenerationOptions, connect
from paceline.cli.options import (
    address_option,
    choose_model,
    choose_questions,
    json_option,
    model_option,
    prompts_option,
)
from paceline.cli.terminal import run
from paceline.v1 import gateway_pb2, speculation_pb2

_price = click.FloatRange(min=0.0)


@click.command()
@address_option
@prompts_option
@click.option("--limit", type=click.IntRange(min=1), default=6, help="Number of prompts.")
@click.option("--max-tokens", type=click.IntRange(min=2), default=64, help="Longest output.")
@click.option("--temperature", type=float, default=0.0, help="0 is greedy.")
@click.option("--memory-mib", type=click.IntRange(min=1), default=4096, help="Of one replica.")
@click.option("--target-price", type=_price, default=0.0, help="Of a verify replica, per hour.")
@click.option("--draft-price", type=_price, default=0.0, help="Of a draft replica, per hour.")
@model_option
@json_option
def plan(as_json: bool, **options: Any) -> None:
    """Says whether speculation pays for your prompts, with which draft source and which length.

    The services must be running and otherwise idle.
    """
    questions = choose_questions(options["prompts"], options["limit"])
    measured, model, replicas, texts = run(_measure(questions, options))
    if not measured.plain.rounds:
        raise click.ClickException("every output ends with its first token: nothing to measure")
    if not measured.sheet.sources:
        raise click.ClickException("no draft source of this system proposed anything")
    prices = Prices(options["target_price"], options["draft_price"])
    report = make_report(measured, prices, _memory(model, replicas, options["memory_mib"]))
    if texts:
        report["distance"] = describe_distance(model.name, texts)
    if as_json:
        click.echo(json.dumps(report))
    else:
        _print(report)


async def _measure(
    questions: Sequence[Question], options: dict[str, Any]
) -> tuple[Measured, speculation_pb2.ModelIdentity, Sequence[gateway_pb2.Replica], list[Text]]:
    wanted = GenerationOptions(
        max_tokens=options["max_tokens"],
        temperature=options["temperature"],
        model=options["model"],
    )
    async with connect(options["access"]) as gateway:
        served = await gateway.ListModels(gateway_pb2.ListModelsRequest())
        target = choose_model(served, options["model"])
        total = num_runs(len(target.draft_sources)) * len(questions)
        with Progress(console=Console(stderr=True)) as progress:
            bar = progress.add_task("measuring", total=total)
            done = lambda: progress.advance(bar)  # noqa: E731 - a def would only repeat the line
            measured = await measure_sheet(
                gateway, questions, wanted, target.draft_sources, served.replicas, done
            )
        texts: list[Text] = []
        if target.model.quantization:
            prompts = await tokenize(gateway, questions, options["model"])
            texts = _texts(prompts, measured.plain)
    return measured, target.model, served.replicas, texts


def _texts(prompts: Sequence[Prompt], plain: Trial) -> list[Text]:
    """What the target wrote behind the prompts."""
    pairs = zip(prompts, plain.generations, strict=True)
    return [Text.of(prompt.token_ids, written.token_ids) for prompt, written in pairs]


def _memory(
    target: speculation_pb2.ModelIdentity, replicas: Sequence[gateway_pb2.Replica], memory_mib: int
) -> dict[str, Any]:
    """What each tier's model takes: the target's, and the first model that drafts."""
    tiers = {"verify": describe_memory(target.name, memory_mib, target.max_length)}
    for replica in replicas:
        if replica.tier == gateway_pb2.TIER_DRAFT and replica.model.name:
            draft = replica.model
            tiers["draft"] = describe_memory(draft.name, memory_mib, draft.max_length)
            break
    return tiers


def make_report(measured: Measured, prices: Prices, memory: dict[str, Any]) -> dict[str, Any]:
    """Everything that the command tells, as the object that `--json` prints."""
    sheet = measured.sheet
    ranked = predictions(sheet, prices)
    best_of: dict[str, Prediction] = {}
    for one in ranked:
        best_of.setdefault(one.source, one)
    return {
        "worth_it": ranked[0].speedup > 1.0,
        "best": asdict(ranked[0]),
        "sources": [
            {
                **asdict(best_of[source.name]),
                "acceptance_rate": acceptance_rate(source, best_of[source.name].num_draft_tokens),
                "draft_ms_per_token": 1e3 * source.draft_s,
                "survival": source.survival,
                "coverage": source.coverage,
            }
            for source in sheet.sources
        ],
        "plain_cost_per_million": plain_cost_per_million(sheet, prices),
        "plain_ms_per_token": 1e3 * plain_s(sheet),
        "verify_ms": {k: 1e3 * s for k, s in sorted(sheet.verify_s.items())},
        "round_trip_ms": 1e3 * sheet.round_trip_s,
        "checked": _checked(measured),
        "memory": memory,
        "warnings": warnings(sheet, ranked[0]),
    }


def _checked(measured: Measured) -> list[dict[str, Any]]:
    """Predicted beside measured speed-up of everything that was run."""
    sheets = {source.name: source for source in measured.sheet.sources}
    return [
        {
            "source": one.source,
            "num_draft_tokens": one.num_draft_tokens,
            "predicted": predict(measured.sheet, sheets[one.source], one.num_draft_tokens).speedup,
            "measured": measured.speedup(one),
        }
        for one in measured.runs
        if one.source in sheets
    ]


def _print(report: dict[str, Any]) -> None:
    console = Console()
    steps = ", ".join(f"{k}: {ms:.1f}" for k, ms in report["verify_ms"].items())
    console.print(
        f"plain {report['plain_ms_per_token']:.1f} ms a token, of it"
        f" {report['round_trip_ms']:.1f} outside the target; a step by draft tokens, ms: {steps}"
    )
    console.print(_table(report))
    for one in report["checked"]:
        console.print(
            f"{one['source']}, {one['num_draft_tokens']} draft tokens:"
            f" predicted {one['predicted']:.2f}x, measured {one['measured']:.2f}x"
        )
    for tier, memory in report["memory"].items():
        console.print(f"{tier}: {_describe(memory)}")
    if "distance" in report:
        console.print(f"laws: {_describe_distance(report['distance'])}")
    for warning in report["warnings"]:
        console.print(f"[yellow]warning[/yellow]: {warning}")
    best = report["best"]
    if report["worth_it"]:
        console.print(
            f"Speculate: {best['source']} with {best['num_draft_tokens']} draft tokens,"
            f" {best['speedup']:.2f}x plain."
        )
    else:
        console.print("Do not speculate here: plain decoding is as fast.")


def _table(report: dict[str, Any]) -> Table:
    grid = Table(
        box=box.SIMPLE,
        title="the best length of each source; at best: with drafting hidden",
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    grid.add_column("source", overflow="fold")
    for title in (
        *("k", "accepted", "break even", "ms a token", "gain", "at best"),
        *("drafts a target", "cost of 1M"),
    ):
        grid.add_column(title, justify="right")
    for row in report["sources"]:
        cost = row["cost_per_million"]
        grid.add_row(
            row["source"],
            str(row["num_draft_tokens"]),
            f"{row['acceptance_rate']:.2f}",
            f"{row['break_even']:.2f}",
            f"{row['draft_ms_per_token']:.1f}",
            f"{row['speedup']:.2f}x",
            f"{row['overlapped_speedup']:.2f}x",
            f"{row['drafts_per_target']:.2f}",
            f"{cost:.2f}" if cost else "-",
        )
    plain = report["plain_cost_per_million"]
    plain_cost = f"{plain:.2f}" if plain else "-"
    grid.add_row("plain", "0", "", "", "1.00x", "", "", "", plain_cost)
    return grid


def _describe_distance(distance: dict[str, Any]) -> str:
    if "unknown" in distance:
        return f"distance to the whole weights' unknown: {distance['unknown']}"
    return (
        f"mean TV {distance['mean_tv']:.4f} to the whole weights', the same likeliest token at"
        f" {distance['agreement']:.1%} of {distance['num_places']} places"
    )


def _describe(memory: dict[str, Any]) -> str:
    if "unknown" in memory:
        return f"{memory['model']}: memory unknown: {memory['unknown']}"
    return (
        f"{memory['model']}: weights {memory['weights_mib']:.0f} MiB,"
        f" cache {memory['kv_bytes_per_token'] / 1024:.1f} KiB a token,"
        f" {memory['blocks']} blocks of {memory['block_size']} tokens fit"
        f" ({memory['sequences']:.1f} longest sequences)"
    )
