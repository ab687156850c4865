"""`paceline status`: the replicas of both tiers, as the gateway sees them."""

from __future__ import annotations

import json
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from paceline import wire
from paceline.cli.client import Access, connect
from paceline.cli.options import address_option, json_option
from paceline.cli.terminal import run
from paceline.v1 import gateway_pb2, speculation_pb2

FINGERPRINT_LENGTH = 8
COLUMNS = ("tier", "address", "zone", "health", "serves", "model id", "open", "blocks", "accepted")


@click.command()
@address_option
@json_option
def status(access: Access, as_json: bool) -> None:
    """Shows the replicas of both tiers, and whether output is what it should be.

    The audit of a verify replica tells how many tokens were judged against their laws, and how near
    to an alarm the evidence ever came; ALARM means that it got there.
    """
    models = run(_models(access))
    rows = [_row(replica) for replica in models.replicas]
    replays = _replays(models.replays)
    if as_json:
        click.echo(json.dumps({"replicas": rows, "replays": replays}, ensure_ascii=False))
        return
    Console().print(_table(rows))
    for row in rows:
        if row["audit"] is not None:
            click.echo(f"audit {row['address']}: {_describe_audit(row['audit'])}")
    if any(replays.values()):
        counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in replays.items())
        click.echo(f"replays: {counts}")


async def _models(access: Access) -> gateway_pb2.ListModelsResponse:
    async with connect(access) as gateway:
        return await gateway.ListModels(gateway_pb2.ListModelsRequest())


def _replays(report: gateway_pb2.ReplayReport) -> dict[str, int]:
    """Generations that were replayed as plain decoding, by outcome."""
    return {
        "equal": report.equal_count,
        "near_tie": report.near_tie_count,
        "mismatch": report.mismatch_count,
        "skipped": report.skipped_count,
        "failed": report.failed_count,
    }


def _row(replica: gateway_pb2.Replica) -> dict[str, Any]:
    """One replica; acceptance is None before anything was drafted through this gateway."""
    drafted = replica.drafted_token_count
    return {
        "tier": gateway_pb2.Tier.Name(replica.tier).removeprefix("TIER_").lower(),
        "address": replica.address,
        "zone": replica.zone,
        "health": _health(replica),
        "model": replica.model.name,
        "fingerprint": replica.model.fingerprint,
        "open_sessions": replica.load.open_session_count,
        "held_blocks": replica.load.held_block_count,
        "free_blocks": replica.load.free_block_count,
        "acceptance_rate": replica.accepted_token_count / drafted if drafted else None,
        "draft_sources": list(replica.draft_sources),
        "audit": _audit(replica.load),
    }


def _audit(load: speculation_pb2.ReplicaLoad) -> dict[str, dict[str, Any]] | None:
    """Both sums of a verify replica's audit; None for other replicas."""
    if not load.HasField("audit"):
        return None
    report = wire.decode_audit(load.audit)
    return {
        kind: {
            "num_tokens": one.num_tokens,
            "deviations": one.deviations,
            "evidence": one.evidence,
            "is_alarming": one.is_alarming,
        }
        for kind, one in (("emitted", report.emitted), ("drafted", report.drafted))
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
            row["zone"] or "-",
            row["health"],
            ", ".join(row["draft_sources"]) or row["model"],
            row["fingerprint"][:FINGERPRINT_LENGTH] or "-",
            str(row["open_sessions"]),
            f"{row['held_blocks']}/{row['held_blocks'] + row['free_blocks']}",
            "-" if rate is None else f"{rate:.0%}",
        )
    return table


def _describe_audit(audit: dict[str, dict[str, Any]]) -> str:
    sums = ", ".join(
        f"{one['num_tokens']} {kind} at {one['evidence']:.0%}" for kind, one in audit.items()
    )
    alarms = [kind for kind, one in audit.items() if one["is_alarming"]]
    return f"{sums}: ALARM {' '.join(alarms)}" if alarms else sums
