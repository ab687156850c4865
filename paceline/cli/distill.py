"""`paceline distill`: makes a draft from a target; what it does is in `paceline.distill`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from paceline.bench.prompts import read_lines
from paceline.cli.terminal import EXIT_ERROR
from paceline.errors import PacelineError
from paceline.serving.config import CACHE_DIR

_positive = click.IntRange(min=1)


@click.command()
@click.option("--target", default="smollm2", help="Model to distill: a name or a directory.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Directory of the draft, which `--draft` takes; its work is kept below, to go on from.",
)
@click.option("--num-tokens", type=_positive, default=1_000_000, help="Tokens the target writes.")
@click.option("--num-steps", type=_positive, default=4000, help="Steps of training.")
@click.option("--rounds", type=_positive, default=8, help="Parts to do it in; each writes a draft.")
@click.option(
    "--layers",
    default="",
    show_default="the first, the middle and the last",
    help="Layers of the target to begin with, such as 0,14,29.",
)
@click.option("--head-ids", type=_positive, default=8192, help="Tokens that the draft scores.")
@click.option("--batch-tokens", type=_positive, default=2048, help="Tokens of a training batch.")
@click.option("--learning-rate", type=float, default=1e-3, help="The highest.")
@click.option("--seed", type=int, default=0, help="Of prompts, draws and orders.")
@click.option(
    "--prompts",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Text file of your own prompts, one a line: half of what the target is asked.",
)
@click.option("--device", default="cpu", help="cpu, cuda or cuda:N.")
@click.option("--threads", type=click.IntRange(min=0), default=0, help="CPU threads; 0 takes all.")
@click.option(
    "--cache-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=CACHE_DIR,
    help="Where converted models are kept.",
)
def distill(
    target: str,
    out: Path,
    num_tokens: int,
    num_steps: int,
    rounds: int,
    layers: str,
    head_ids: int,
    batch_tokens: int,
    learning_rate: float,
    seed: int,
    prompts: Path | None,
    device: str,
    threads: int,
    cache_dir: Path,
) -> None:
    """Makes a draft of a few of the target's layers, trained on the target's own text and laws.

    Stopped, it goes on where it was when it is called again with the same options.
    """
    # Here, so that help does not wait for torch.
    from paceline.distill import run
    from paceline.distill.collect import CollectOptions
    from paceline.distill.train import TrainOptions

    options = run.DistillOptions(
        target=target,
        directory=out,
        cache_dir=cache_dir.expanduser(),
        device=device,
        num_threads=threads,
        layers=_read_layers(layers),
        num_head_ids=head_ids,
        num_tokens=num_tokens,
        num_rounds=rounds,
        own_prompts=tuple(filter(str.strip, read_lines(prompts))) if prompts else (),
        collecting=CollectOptions(seed=seed),
        training=TrainOptions(num_steps, batch_tokens, learning_rate, seed),
    )
    try:
        figures = run.distill(options, _say)
    except PacelineError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(EXIT_ERROR)
    click.echo(f"{out}: {figures.describe()}")


def _read_layers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no list of layers", param_hint="--layers") from None


def _say(line: str) -> None:
    click.echo(f"{time.strftime('%H:%M:%S')} {line}", err=True)
