"""`paceline bench`: plain against speculative decoding on a running system, and against peers."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress

from paceline.bench.figures import Measurement
from paceline.bench.measure import ServedRow, able, measure, tokenize, turns, warm_up
from paceline.bench.peers import PeerSettings, load_peers
from paceline.bench.plot import plot
from paceline.bench.processes import find_processes
from paceline.bench.prompts import Question
from paceline.bench.report import as_json, memory_table, tables
from paceline.bench.runs import Prompt, Row
from paceline.cli.client import GenerationOptions, Stub, connect
from paceline.cli.options import (
    DraftLength,
    address_option,
    choose_model,
    choose_questions,
    model_option,
    prompts_option,
)
from paceline.cli.terminal import run
from paceline.serving.config import CACHE_DIR
from paceline.serving.placement import num_cores
from paceline.v1 import gateway_pb2

PACKAGES = ("paceline", "torch", "transformers", "xllamacpp")
TIERS = {gateway_pb2.TIER_DRAFT: "draft", gateway_pb2.TIER_VERIFY: "verify"}
_at_least_one = click.IntRange(min=1)


@click.command()
@address_option
@prompts_option
@click.option(
    "--limit",
    type=_at_least_one,
    show_default="all",
    help="Number of prompts, spread over the categories.",
)
@click.option(
    "--max-tokens", type=click.IntRange(min=2), default=64, help="Longest output, tokens."
)
@model_option
@click.option("--ignore-eos", is_flag=True, help="Make every output as long as that.")
@click.option(
    "--concurrency",
    type=_at_least_one,
    multiple=True,
    default=(1,),
    help="Prompts at once; repeatable.",
)
@click.option("--temperature", type=float, default=0.0, help="0 is greedy.")
@click.option(
    "--draft",
    multiple=True,
    show_default="chosen by the service",
    help="Draft source; repeatable, one row each.",
)
@click.option("--num-draft-tokens", type=DraftLength(), default="auto", help="Proposal length.")
@click.option(
    "--peers",
    is_flag=True,
    help="Also run transformers and llama.cpp on the same prompts in this process.",
)
@click.option(
    "--peer-threads",
    type=_at_least_one,
    default=num_cores,
    show_default="number of cores",
    help="Threads of the peers.",
)
@click.option("--json", "out", type=click.Path(path_type=Path), help="File for JSON; plot beside.")
def bench(**options: Any) -> None:
    """Measures plain and speculative decoding of the same prompts, interleaved."""
    run(_bench(choose_questions(options["prompts"], options["limit"]), options))


async def _bench(questions: Sequence[Question], options: dict[str, Any]) -> None:
    load_before = os.getloadavg()
    async with connect(options["access"]) as gateway:
        system = await gateway.ListModels(gateway_pb2.ListModelsRequest())
        model = choose_model(system, options["model"])
        prompts = await tokenize(gateway, questions, options["model"])
        drafts = tuple(dict.fromkeys(options["draft"])) or tuple(model.draft_sources[:1])
        served = _served(gateway, drafts, options)
        rows = [*served]
        if options["peers"]:
            rows += _peers(model.model.name, drafts, prompts, options)
        measurement = await _measure(rows, prompts, options["concurrency"])
        services = [("gateway", options["access"].address)]
        services += ((TIERS[replica.tier], replica.address) for replica in system.replicas)
    names = [row.name for row in served]
    for table in tables(measurement, names):
        Console().print(table)
    if processes := find_processes(services):
        Console().print(memory_table(processes))
    if options["out"] is not None:
        facts = {
            "settings": options,
            "target": model.model.name,
            "drafts": list(drafts),
            "machine": {**_machine(), "load_before": load_before, "load_after": os.getloadavg()},
            "processes": [asdict(process) for process in processes],
        }
        _write(options["out"], measurement, as_json(measurement, names, **facts))


def _options(options: dict[str, Any], **fields: Any) -> GenerationOptions:
    return GenerationOptions(
        max_tokens=options["max_tokens"],
        temperature=options["temperature"],
        ignore_eos=options["ignore_eos"],
        model=options["model"],
        **fields,
    )


def _served(gateway: Stub, drafts: Sequence[str], options: dict[str, Any]) -> list[Row]:
    """Plain decoding, and one row for each draft source.

    A source that was not asked for is not named to the service either: it may leave drafting.
    """
    rows: list[Row] = [
        ServedRow("plain", gateway, _options(options, draft="none", num_draft_tokens=0))
    ]
    length, is_named = options["num_draft_tokens"], bool(options["draft"])
    for name in drafts:
        asked = _options(options, draft=name if is_named else "", num_draft_tokens=length)
        rows.append(ServedRow(name, gateway, asked))
    return rows


def _peers(
    target: str, drafts: tuple[str, ...], prompts: Sequence[Prompt], options: dict[str, Any]
) -> list[Row]:
    settings = PeerSettings(
        target=target,
        drafts=drafts,
        options=_options(options),
        num_threads=options["peer_threads"],
        cache_dir=CACHE_DIR.expanduser(),
        max_concurrency=max(options["concurrency"]),
        max_prompt_length=max(len(prompt.token_ids) for prompt in prompts),
    )
    with Console(stderr=True).status("loading the peers"):
        return load_peers(settings, report=lambda line: click.echo(line, err=True))


async def _measure(
    rows: Sequence[Row], prompts: Sequence[Prompt], concurrencies: Sequence[int]
) -> Measurement:
    plan = turns(prompts, sorted(set(concurrencies)))
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("warming up", total=sum(len(able(rows, turn)) for turn in plan))
        await warm_up(rows, prompts)
        progress.update(bar, description=f"{len(rows)} rows by turns")
        groups = await measure(rows, plan, lambda: progress.advance(bar))
    return Measurement(tuple(row.name for row in rows), tuple(groups))


def _machine() -> dict[str, Any]:
    versions: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return {"platform": platform.platform(), "cores": num_cores(), "versions": versions}


def _write(out: Path, measurement: Measurement, written: dict[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(written, indent=2, default=str) + "\n")
    picture = out.with_suffix(".png")
    drawn = plot(measurement, picture)
    click.echo(f"wrote {out}" + (f" and {picture}" if drawn else " (no plot: no matplotlib)"))
