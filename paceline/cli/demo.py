"""`paceline demo`: the whole system once, from start to stop, against plain decoding.

Starts the services, streams one speculative answer, generates the same without speculation, and
prints both next to one another. Where speculation is slower, the table says so.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys

import click
from rich import box
from rich.console import Console
from rich.status import Status
from rich.table import Table

from paceline.cli.client import Generation, GenerationOptions, chat_prompt, connect, generate
from paceline.cli.process import StartError
from paceline.cli.stack import Stack, StackOptions
from paceline.cli.stream import stream
from paceline.cli.terminal import EXIT_ERROR, run
from paceline.wire import seconds

QUESTION = "List five reasons to ride a bicycle to work."


@click.command()
@click.option("--prompt", default=QUESTION, help="What to ask.")
@click.option("--max-tokens", type=click.IntRange(min=2), default=96, help="Longest answer.")
def demo(prompt: str, max_tokens: int) -> None:
    """Starts everything, asks one question, compares with plain decoding, stops everything."""
    try:
        plain, speculative = run(_demo(prompt, max_tokens))
    except StartError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(EXIT_ERROR)
    Console().print(comparison(plain, speculative))


async def _demo(prompt: str, max_tokens: int) -> tuple[Generation, Generation]:
    """The plain and the speculative generation of one greedy answer."""
    console, task = Console(stderr=True), asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with console.status("starting the services") as status:
        stack = Stack(
            StackOptions(gateway_port=0),
            report=lambda line: console.print(line, style="dim", highlight=False),
            on_line=lambda name, line: _show(status, name, line),
        )
        try:
            address = await stack.start()
            status.stop()
            return await _ask(address, prompt, max_tokens)
        except StartError:
            stack.kill()
            raise
        finally:
            await asyncio.shield(stack.drain())


async def _ask(address: str, prompt: str, max_tokens: int) -> tuple[Generation, Generation]:
    greedy = GenerationOptions(max_tokens=max_tokens, temperature=0.0)
    unspeculative = GenerationOptions(max_tokens=max_tokens, temperature=0.0, num_draft_tokens=0)
    message = chat_prompt([("user", prompt)])
    async with connect(address) as gateway:
        click.echo(f"\n{click.style(prompt, bold=True)}\n")
        speculative = await stream(gateway, greedy.request(message))
        click.echo("\nthe same without speculation ...")
        plain = await generate(gateway, unspeculative.request(message))
    return plain, speculative


def _show(status: Status, name: str, line: str) -> None:
    """Shows the newest log line of a starting service."""
    try:
        entry = json.loads(line)
        text = f"{entry['event']} {entry.get('step', '')}".strip()
    except (ValueError, KeyError, TypeError):
        text = line
    status.update(f"starting the services: {name}: {text}")


def comparison(plain: Generation, speculative: Generation) -> Table:
    """The numbers of both, side by side."""
    is_same = plain.token_ids == speculative.token_ids
    table = Table("", "plain", "speculative", box=box.SIMPLE)
    table.caption = (
        f"{_ratio(plain, speculative):.2f} times the speed of plain decoding\n"
        f"identical to plain decoding: {'yes' if is_same else 'NO'}"
    )
    for name, left, right in zip(ROWS, _figures(plain), _figures(speculative), strict=True):
        table.add_row(name, left, right)
    return table


ROWS = (
    "tokens",
    "tokens/s",
    "time to first token, ms",
    "rounds with a proposal",
    "acceptance rate",
    "acceptance length, tokens",
    "round, ms p50",
    "overhead of a round, ms p50",
)


def _figures(generation: Generation) -> tuple[str, ...]:
    stats = generation.stats
    drafted = stats.drafted_token_count > 0
    return (
        str(len(generation.token_ids)),
        f"{stats.tokens_per_second:.1f}",
        f"{1e3 * seconds(stats.time_to_first_token):.0f}",
        str(stats.round_count),
        f"{stats.acceptance_rate:.2f}" if drafted else "-",
        f"{stats.acceptance_length:.2f}" if drafted else "-",
        f"{1e3 * seconds(stats.round_duration_p50):.1f}",
        f"{1e3 * seconds(stats.overhead_duration_p50):.1f}",
    )


def _ratio(plain: Generation, speculative: Generation) -> float:
    """Speed of the speculative one over that of the plain one."""
    slow = plain.stats.tokens_per_second
    return speculative.stats.tokens_per_second / slow if slow else 0.0
