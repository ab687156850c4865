"""`paceline chat`: a conversation at the terminal, its history kept on this side."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import click
import grpc.aio

from paceline.cli.client import Access, GenerationOptions, chat_prompt, connect
from paceline.cli.generate import summary
from paceline.cli.options import address_option, collect, generation_options
from paceline.cli.stream import stream
from paceline.cli.terminal import describe

HELP = "/reset forgets the conversation, /quit or end of input leaves."


History = tuple[tuple[str, str], ...]


@click.command()
@address_option
@click.option("--system", default="", show_default="the template's own", help="System message.")
@generation_options
def chat(access: Access, system: str, **options: Any) -> None:
    """Talks with the model; answers are streamed. Ctrl-C ends an answer early."""
    wanted = collect(options)
    opening: History = (("system", system),) if system else ()
    history = opening
    if sys.stdin.isatty():
        click.echo(click.style(HELP, dim=True))
    # Waiting for input outside of the loop is what lets Ctrl-C end an answer and not the command.
    with asyncio.Runner() as runner:
        while (line := _read_line()) is not None and line != "/quit":
            if line == "/reset":
                history = opening
            elif line:
                history = _answer(runner, access, (*history, ("user", line)), wanted)


def _answer(
    runner: asyncio.Runner, access: Access, history: History, options: GenerationOptions
) -> History:
    """Streams one answer; returns the history with it, or without its turn where it failed."""
    try:
        text = runner.run(_stream(access, history, options))
    except grpc.aio.AioRpcError as error:
        click.echo(describe(error), err=True)
        return history[:-1]
    except KeyboardInterrupt:
        click.echo()
        return history[:-1]
    return (*history, ("assistant", text))


async def _stream(access: Access, history: History, options: GenerationOptions) -> str:
    async with connect(access) as gateway:
        generation = await stream(gateway, options.request(chat_prompt(history)))
    if sys.stdout.isatty():
        click.echo(click.style(summary(generation), dim=True))
    return generation.text


def _read_line() -> str | None:
    """The next line of input, None at its end."""
    try:
        return input(click.style("> ", bold=True) if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None
