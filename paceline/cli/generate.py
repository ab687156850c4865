"""`paceline generate`: one prompt, streamed as text or printed as one JSON object."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from paceline.cli.client import (
    Access,
    Generation,
    GenerationOptions,
    chat_prompt,
    connect,
    generate_samples,
    text_prompt,
)
from paceline.cli.options import address_option, collect, generation_options, json_option
from paceline.cli.stream import stream
from paceline.cli.terminal import run
from paceline.v1 import gateway_pb2


@click.command()
@click.argument("prompt")
@address_option
@click.option("--raw", is_flag=True, help="Take the prompt as plain text, without chat template.")
@generation_options
@click.option(
    "--logprobs",
    "num_log_probs",
    type=click.INT,
    default=None,
    show_default="none",
    help="Log-probability of each token, with those of the N likeliest; needs --json.",
)
@click.option(
    "--prompt-logprobs",
    "num_prompt_log_probs",
    type=click.INT,
    default=None,
    show_default="none",
    help="The same for the tokens of the prompt; needs --json.",
)
@click.option(
    "--n",
    "num_samples",
    type=click.INT,
    default=None,
    show_default="1",
    help="Number of samples, each printed when all have ended.",
)
@click.option("--json-schema", metavar="FILE|TEXT", help="JSON schema that the output meets.")
@click.option("--regex", metavar="TEXT", help="Regular expression that the output matches.")
@click.option("--grammar", metavar="FILE|TEXT", help="Grammar (GBNF or Lark) of the output.")
@json_option
def generate(prompt: str, access: Access, raw: bool, as_json: bool, **options: Any) -> None:
    """Generates from PROMPT, one user turn of the chat template; `-` reads standard input."""
    for name, flag in (
        ("num_log_probs", "--logprobs"),
        ("num_prompt_log_probs", "--prompt-logprobs"),
    ):
        if options[name] is not None and not as_json:
            raise click.UsageError(f"{flag} needs --json")
    options["constraint"] = _read_constraint(options)
    text = sys.stdin.read() if prompt == "-" else prompt
    message = text_prompt(text) if raw else chat_prompt([("user", text)])
    run(_generate(access, message, collect(options), as_json))


def _read_constraint(options: dict[str, Any]) -> tuple[str, str] | None:
    """The constraint among the options, its text read from a file where it names one."""
    given = {
        name: value
        for name in ("json_schema", "regex", "grammar")
        if (value := options.pop(name)) is not None
    }
    if len(given) > 1:
        raise click.UsageError("give one of --json-schema, --regex and --grammar")
    for name, value in given.items():
        if name == "regex" or not os.path.isfile(value):  # Path refuses what is too long for one
            return name, value
        return name, Path(value).read_text(encoding="utf-8")
    return None


async def _generate(
    access: Access, prompt: gateway_pb2.Prompt, options: GenerationOptions, as_json: bool
) -> None:
    async with connect(access) as gateway:
        request = options.request(prompt)
        if as_json:
            generations = await generate_samples(gateway, request)
            is_one = options.num_samples is None
            answer = generations[0].as_json() if is_one else samples_as_json(generations)
            click.echo(json.dumps(answer, ensure_ascii=False))
        elif options.num_samples is not None:
            for generation in await generate_samples(gateway, request):
                index = generation.finished.sample_index
                click.echo(f"{click.style(f'sample {index}', bold=True)}\n{generation.text}\n")
        else:
            generation = await stream(gateway, request)
            if sys.stdout.isatty():
                click.echo(click.style(summary(generation), dim=True), err=True)


def samples_as_json(generations: Sequence[Generation]) -> dict[str, Any]:
    """The object that `--n` prints with `--json`: every sample, and the tokens of the call."""
    samples = [generation.as_json() for generation in generations]
    names = ("prompt_tokens", "completion_tokens")
    usage = {name: sum(sample["usage"][name] for sample in samples) for name in names}
    return {"usage": usage, "samples": samples}


def summary(generation: Generation) -> str:
    """One line about a generation."""
    stats, usage = generation.stats, generation.finished.usage
    return (
        f"{usage.completion_token_count} tokens, {stats.tokens_per_second:.1f} tokens/s, "
        f"{stats.round_count} rounds, acceptance rate {stats.acceptance_rate:.2f}, "
        f"length {stats.acceptance_length:.2f}"
    )
