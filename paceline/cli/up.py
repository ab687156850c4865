"""`paceline up`: the three services on this machine, until a signal or the gateway's end.

Knows signals and how logs are shown; starting and draining are the stack's.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

import click

from paceline.cli.client import RULE_NAMES
from paceline.cli.process import StartError
from paceline.cli.stack import Stack, StackOptions
from paceline.cli.terminal import EXIT_ERROR, run

DEFAULTS = StackOptions()
COLOURS = {"gateway": "cyan", "verify": "magenta", "draft": "green"}
_count = click.IntRange(min=1)


@click.command()
@click.option("--target", default=DEFAULTS.target, help="Target model: name, directory or file.")
@click.option(
    "--draft",
    default=DEFAULTS.draft,
    show_default="quantized:int4, or ngram for a table or a target of 4 bits",
    help="First draft source, beside ngram; none runs without a draft tier.",
)
@click.option(
    "--rule",
    type=click.Choice(RULE_NAMES),
    default=DEFAULTS.rule,
    help="Verification rule of requests that name none.",
)
@click.option(
    "--gateway-port",
    type=click.IntRange(0, 65535),
    default=DEFAULTS.gateway_port,
    help="TCP port of the gateway; 0 takes a free one.",
)
@click.option("--draft-replicas", type=_count, default=1, help="Processes of the draft tier.")
@click.option("--verify-replicas", type=_count, default=1, help="Processes of the verify tier.")
@click.option(
    "--draft-threads",
    type=_count,
    default=DEFAULTS.draft_threads,
    show_default="number of cores",
    help="Threads of each draft process.",
)
@click.option(
    "--verify-threads",
    type=_count,
    default=DEFAULTS.verify_threads,
    show_default="number of cores",
    help="Threads of each verify process.",
)
@click.option(
    "--omp-wait-policy",
    type=click.Choice(["passive", "active"]),
    default=DEFAULTS.omp_wait_policy,
    help="Whether waiting threads sleep or spin.",
)
@click.option(
    "--exact",
    is_flag=True,
    help="The target's output depends on no bit of what shares its steps: float32, int8 or int4, "
    "on the CPU.",
)
@click.pass_context
def up(context: click.Context, /, **options: Any) -> None:
    """Starts the services on this machine.

    Prints the pid and address of each process, then `ready gateway=HOST:PORT`. SIGTERM or Ctrl-C
    lets running generations end and stops all; a second one ends all at once.
    """
    log_format = "console" if sys.stderr.isatty() else "json"
    wanted = StackOptions(log_format=log_format, settings=context.obj or {}, **options)
    sys.exit(run(supervise(Stack(wanted, say, show_line))))


async def supervise(stack: Stack) -> int:
    """Runs the stack until a signal or its own end; returns the exit code."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop_or_kill, stack, stop)
    serving = asyncio.create_task(_serve(stack))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not serving.done():
        serving.cancel()
        await asyncio.wait((serving,))
        await stack.drain()
        return EXIT_ERROR if stack.is_killed else 0
    error = serving.exception()
    if error is not None:
        stack.kill()
    await stack.drain()
    if error is not None and not isinstance(error, StartError):
        raise error
    click.echo(f"error: {error or 'the gateway ended'}", err=True)
    return EXIT_ERROR


async def _serve(stack: Stack) -> None:
    say(f"ready gateway={await stack.start()}")
    await stack.watch()


def _stop_or_kill(stack: Stack, stop: asyncio.Event) -> None:
    """The first signal drains, a second one kills."""
    if stop.is_set():
        stack.kill()
    stop.set()


def say(line: str) -> None:
    """Prints a line for the program or person that started the stack, at once."""
    click.echo(line)
    sys.stdout.flush()


def show_line(name: str, line: str) -> None:
    """Passes a service's log line on; on a terminal with the name in front."""
    if sys.stderr.isatty():
        line = click.style(f"{name:>7} │ ", fg=COLOURS[name]) + line
    click.echo(line, err=True)
