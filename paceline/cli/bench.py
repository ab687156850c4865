"""`paceline bench`: plain against speculative decoding on a running system, and against peers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress

from paceline.bench.measure import Pair, measure
from paceline.bench.peers import PeerRun, PeerSettings, peer_draft, run_peers
from paceline.bench.prompts import Question, own_questions, read_questions, spread
from paceline.bench.report import as_json, plot, table
from paceline.cli.client import GenerationOptions, connect
from paceline.cli.options import DraftLength, address_option
from paceline.cli.stack import num_cores
from paceline.cli.terminal import run
from paceline.errors import PacelineError
from paceline.v1 import gateway_pb2

_file = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@address_option
@click.option(
    "--prompts",
    type=_file,
    show_default="prompts of the project",
    help="Prompts, one JSON object a line: question_id, category, turns (the first is used).",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    show_default="all",
    help="Number of prompts, spread over the categories.",
)
@click.option(
    "--max-tokens", type=click.IntRange(min=2), default=64, help="Longest output, tokens."
)
@click.option("--concurrency", type=click.IntRange(min=1), default=1, help="Prompts at once.")
@click.option("--temperature", type=float, default=0.0, help="0 is greedy.")
@click.option("--draft", default="", show_default="chosen by the service", help="Draft source.")
@click.option("--num-draft-tokens", type=DraftLength(), default="auto", help="Proposal length.")
@click.option("--peers", is_flag=True, help="Also run transformers' generation in this process.")
@click.option(
    "--peer-threads",
    type=click.IntRange(min=1),
    default=num_cores,
    show_default="number of cores",
    help="Threads of the peers.",
)
@click.option("--json", "out", type=click.Path(path_type=Path), help="File for JSON; plot beside.")
def bench(**options: Any) -> None:
    """Measures plain and speculative decoding of the same prompts, interleaved."""
    prompts, limit = options["prompts"], options["limit"]
    try:
        questions = read_questions(prompts) if prompts else own_questions()
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--prompts") from None
    questions = spread(questions, limit or len(questions))
    pairs, model = run(_measure(questions, options))
    peers = _peers(questions, model, options) if options["peers"] else []
    Console().print(table(pairs, peers))
    if (out := options["out"]) is not None:
        settings = {**options, "prompts": str(prompts or "own"), "target": model.model.name}
        _write(out, settings, pairs, peers)


async def _measure(
    questions: list[Question], options: dict[str, Any]
) -> tuple[list[Pair], gateway_pb2.ServedModel]:
    wanted = GenerationOptions(
        max_tokens=options["max_tokens"],
        temperature=options["temperature"],
        draft=options["draft"],
        num_draft_tokens=options["num_draft_tokens"],
    )
    async with connect(options["address"]) as gateway:
        models = await gateway.ListModels(gateway_pb2.ListModelsRequest())
        with Progress(console=Console(stderr=True)) as progress:
            bar = progress.add_task("plain and speculative", total=len(questions))
            done = lambda: progress.advance(bar)  # noqa: E731 - a def would only repeat the line
            pairs = await measure(gateway, questions, wanted, options["concurrency"], done)
    return pairs, models.models[0]


def _peers(
    questions: list[Question], model: gateway_pb2.ServedModel, options: dict[str, Any]
) -> list[PeerRun]:
    """The same questions without services, with the draft that the measurement used."""
    source = options["draft"] or next(iter(model.draft_sources), "")
    settings = PeerSettings(
        target=model.model.name,
        draft=peer_draft(source, model.model.name),
        max_tokens=options["max_tokens"],
        num_threads=options["peer_threads"],
        cache_dir=Path("~/.cache/paceline").expanduser(),
    )
    try:
        with Console(stderr=True).status("peers in this process"):
            return list(run_peers(questions, settings))
    except PacelineError as error:
        click.echo(f"no peers: {error}", err=True)
        return []


def _write(out: Path, settings: dict[str, Any], pairs: list[Pair], peers: list[PeerRun]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    written = {key: value for key, value in settings.items() if key != "out"}
    out.write_text(json.dumps(as_json(written, pairs, peers), indent=2) + "\n")
    picture = out.with_suffix(".png")
    names = f"{out} and {picture}" if plot(pairs, picture) else f"{out} (no plot: no matplotlib)"
    click.echo(f"wrote {names}")
