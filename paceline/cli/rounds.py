"""`paceline rounds`: what a round costs outside the models, for table models."""

from __future__ import annotations

import json

import click

from paceline.bench.rounds import RoundCost, measure_rounds
from paceline.cli.client import Access, connect
from paceline.cli.options import address_option, json_option
from paceline.cli.terminal import run

_at_least_one = click.IntRange(min=1)


@click.command()
@address_option
@click.option(
    "--sessions",
    type=_at_least_one,
    multiple=True,
    default=(1, 32),
    help="Generations at once; repeatable, one measurement each.",
)
@click.option("--num-draft-tokens", type=click.IntRange(min=0), default=4, help="Tokens proposed.")
@click.option("--max-tokens", type=_at_least_one, default=2000, help="Output tokens per session.")
@json_option
def rounds(
    access: Access, sessions: tuple[int, ...], num_draft_tokens: int, max_tokens: int, as_json: bool
) -> None:
    """Measures rounds per second; start the services with a table model as target and draft."""
    costs = run(_measure(access, sessions, num_draft_tokens, max_tokens))
    if as_json:
        click.echo(json.dumps([cost.as_json() for cost in costs]))
        return
    for cost in costs:
        click.echo(
            f"{cost.num_sessions} sessions: {cost.rounds_per_second:.0f} rounds/s, "
            f"{cost.num_tokens / cost.num_rounds:.2f} tokens a round"
        )


async def _measure(
    access: Access, sessions: tuple[int, ...], num_draft_tokens: int, max_tokens: int
) -> list[RoundCost]:
    async with connect(access) as gateway:
        # The first generation also pays for connections between the services.
        await measure_rounds(gateway, 1, num_draft_tokens, min(max_tokens, 100))
        return [
            await measure_rounds(gateway, count, num_draft_tokens, max_tokens) for count in sessions
        ]
