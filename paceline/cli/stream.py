"""Prints a generation as it comes: coloured by origin on a terminal, else the bare text."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from paceline.cli.client import Generation, Stub, generate
from paceline.cli.paint import LEGEND, Painter
from paceline.v1 import gateway_pb2


async def stream(gateway: Stub, request: gateway_pb2.GenerateRequest) -> Generation:
    """Runs a generation, printing its text; the text ends with a line break of its own."""
    is_terminal = sys.stdout.isatty()

    async def detokenize(token_ids: Sequence[int]) -> str:
        ids = gateway_pb2.DetokenizeRequest(model=request.model, token_ids=token_ids)
        return (await gateway.Detokenize(ids)).text

    painter = Painter(detokenize)

    async def show(tokens: gateway_pb2.Tokens) -> None:
        text = await painter.paint(tokens) if is_terminal else tokens.text
        click.echo(text, nl=False, color=is_terminal)

    if is_terminal:
        click.echo(LEGEND)
    generation = await generate(gateway, request, show)
    click.echo()
    return generation
