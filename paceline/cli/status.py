"""`paceline status`: the replicas of both tiers, as the gateway sees them."""

from __future__ import annotations

import json
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from paceline.cli.client import connect
from paceline.cli.options import address_option, json_option
from paceline.cli.terminal import run
from paceline.v1 import gateway_pb2

FINGERPRINT_LENGTH = 8
COLUMNS = ("tier", "address", "health", "serves", "model id", "open", "blocks", "accepted")


@click.command()
@address_option
@json_option
def status(address: str, as_json: bool) -> None:
    """Shows the replicas of both tiers."""
    rows = run(_rows(address))
    if as_json:
        click.echo(json.dumps({"replicas": rows}, ensure_ascii=False))
    else:
        Console().print(_table(rows))


async def _rows(address: str) -> list[dict[str, Any]]:
    async with connect(address) as gateway:
        models = await gateway.ListModels(gateway_pb2.ListModelsRequest())
    return [_row(replica) for replica in models.replicas]


def _row(replica: gateway_pb2.Replica) -> dict[str, Any]:
    """One replica; acceptance is None before anything was drafted through this gateway."""
    drafted = replica.drafted_token_count
    return {
        "tier": gateway_pb2.Tier.Name(replica.tier).removeprefix("TIER_").lower(),
        "address": replica.address,
        "health": _health(replica),
        "model": replica.model.name,
        "fingerprint": replica.model.fingerprint,
        "open_sessions": replica.load.open_session_count,
        "held_blocks": replica.load.held_block_count,
        "free_blocks": replica.load.free_block_count,
        "acceptance_rate": replica.accepted_token_count / drafted if drafted else None,
        "draft_sources": list(replica.draft_sources),
    }


def _health(replica: gateway_pb2.Replica) -> str:
    if replica.load.is_draining:
        return "draining"
    return "ready" if replica.is_ready else "not ready"


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for name in COLUMNS:
        # On a narrow terminal names fold, and nothing else does.
        table.add_column(name, no_wrap=name != "serves", overflow="fold")
    for row in rows:
        rate = row["acceptance_rate"]
        table.add_row(
            row["tier"],
            row["address"],
            row["health"],
            ", ".join(row["draft_sources"]) or row["model"],
            row["fingerprint"][:FINGERPRINT_LENGTH] or "-",
            str(row["open_sessions"]),
            f"{row['held_blocks']}/{row['held_blocks'] + row['free_blocks']}",
            "-" if rate is None else f"{rate:.0%}",
        )
    return table
