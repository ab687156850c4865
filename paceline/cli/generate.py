"""`paceline generate`: one prompt, streamed as text or printed as one JSON object."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from paceline.cli.client import (
    Generation,
    GenerationOptions,
    chat_prompt,
    connect,
    text_prompt,
)
from paceline.cli.client import (
    generate as run_generation,
)
from paceline.cli.options import address_option, collect, generation_options, json_option
from paceline.cli.stream import stream
from paceline.cli.terminal import run
from paceline.v1 import gateway_pb2

_LONGEST_PATH = 255
"""A longer argument is the text itself."""


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
@click.option("--json-schema", metavar="FILE|TEXT", help="JSON schema that the output meets.")
@click.option("--regex", metavar="TEXT", help="Regular expression that the output matches.")
@click.option("--grammar", metavar="FILE|TEXT", help="Grammar (GBNF or Lark) of the output.")
@json_option
def generate(prompt: str, address: str, raw: bool, as_json: bool, **options: Any) -> None:
    """Generates from PROMPT, one user turn of the chat template; `-` reads standard input."""
    if options["num_log_probs"] is not None and not as_json:
        raise click.UsageError("--logprobs needs --json")
    options["constraint"] = _read_constraint(options)
    text = sys.stdin.read() if prompt == "-" else prompt
    message = text_prompt(text) if raw else chat_prompt([("user", text)])
    run(_generate(address, message, collect(options), as_json))


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
        is_text = name == "regex" or len(value) > _LONGEST_PATH or "\n" in value
        if is_text or not Path(value).is_file():
            return name, value
        return name, Path(value).read_text(encoding="utf-8")
    return None


async def _generate(
    address: str, prompt: gateway_pb2.Prompt, options: GenerationOptions, as_json: bool
) -> None:
    async with connect(address) as gateway:
        request = options.request(prompt)
        if as_json:
            generation = await run_generation(gateway, request)
            click.echo(json.dumps(generation.as_json(), ensure_ascii=False))
            return
        generation = await stream(gateway, request)
        if sys.stdout.isatty():
            click.echo(click.style(summary(generation), dim=True), err=True)


def summary(generation: Generation) -> str:
    """One line about a generation."""
    stats, usage = generation.stats, generation.finished.usage
    return (
        f"{usage.completion_token_count} tokens, {stats.tokens_per_second:.1f} tokens/s, "
        f"{stats.round_count} rounds, acceptance rate {stats.acceptance_rate:.2f}, "
        f"length {stats.acceptance_length:.2f}"
    )
