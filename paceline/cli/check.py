"""`paceline check`: proves on the running system that speculation changes no output.

Every built-in prompt is generated greedily without speculation and then with every draft source
and several draft lengths; ids and text must be the same. A check in which nothing was drafted,
accepted or rejected proves nothing and fails as INCONCLUSIVE. Seeded output is left out while no
rule reproduces it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import click

from paceline.cli.client import Generation, GenerationOptions, Stub, connect, generate
from paceline.cli.options import address_option, json_option
from paceline.cli.probes import probes
from paceline.cli.terminal import EXIT_ERROR, run
from paceline.v1 import gateway_pb2

DRAFT_LENGTHS = (0, 1, 4, 8, None)
"""None adapts the length."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place at which two generations of one prompt differ."""

    prompt: str
    draft: str
    draft_length: str
    index: int
    """Of the output token, from 0."""
    plain_token_id: int | None
    """None past the end of the plain output."""
    token_id: int | None
    plain_text: str
    text: str


@dataclass(frozen=True, slots=True)
class Report:
    """What was compared and what came of it."""

    num_prompts: int
    num_comparisons: int
    drafted_tokens: int
    accepted_tokens: int
    difference: Difference | None

    @property
    def rejected_tokens(self) -> int:
        """Draft tokens verified and not accepted."""
        return self.drafted_tokens - self.accepted_tokens

    @property
    def verdict(self) -> str:
        """DIFFERENT, INCONCLUSIVE or IDENTICAL."""
        if self.difference is not None:
            return "DIFFERENT"
        is_conclusive = self.accepted_tokens > 0 and self.rejected_tokens > 0
        return "IDENTICAL" if is_conclusive else "INCONCLUSIVE"

    def as_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {"verdict": self.verdict, "covers": "greedy", **asdict(self)} | {
            "rejected_tokens": self.rejected_tokens
        }


@click.command()
@address_option
@click.option(
    "--max-tokens", type=click.IntRange(min=1), default=32, help="Output tokens per prompt."
)
@json_option
def check(address: str, max_tokens: int, as_json: bool) -> None:
    """Proves that greedy output is the same with every draft source and length.

    Exits with 1 on the first difference, and where nothing was drafted, accepted or rejected.
    """
    report = run(_check(address, max_tokens))
    click.echo(json.dumps(report.as_json(), ensure_ascii=False) if as_json else describe(report))
    if report.verdict != "IDENTICAL":
        sys.exit(EXIT_ERROR)


async def _check(address: str, max_tokens: int) -> Report:
    async with connect(address) as gateway:
        models = await gateway.ListModels(gateway_pb2.ListModelsRequest())
        model = models.models[0]
        requests = await probes(gateway, model.model, max_tokens)
        report = Report(len(requests), 0, 0, 0, None)
        for name, request in requests.items():
            async for compared in _compare(gateway, name, request, model.draft_sources):
                report = _add(report, *compared)
                if report.difference is not None:
                    return report
    return report


async def _compare(
    gateway: Stub, prompt: str, request: gateway_pb2.GenerateRequest, sources: Sequence[str]
) -> AsyncIterator[tuple[Generation, Difference | None]]:
    """Generates one prompt in every way; yields each generation with its difference."""
    plain = await generate(gateway, _with(request, "none", 0))
    for source in sources:
        for length in DRAFT_LENGTHS:
            generation = await generate(gateway, _with(request, source, length))
            name = "auto" if length is None else str(length)
            yield generation, _difference(plain, generation, prompt, source, name)


def _with(
    request: gateway_pb2.GenerateRequest, source: str, length: int | None
) -> gateway_pb2.GenerateRequest:
    """A copy of the request with another way to speculate."""
    changed = gateway_pb2.GenerateRequest()
    changed.CopyFrom(request)
    options = GenerationOptions(draft=source, num_draft_tokens=length)
    changed.speculation.CopyFrom(options.request(request.prompt).speculation)
    return changed


def _difference(
    plain: Generation, other: Generation, prompt: str, draft: str, draft_length: str
) -> Difference | None:
    if plain.token_ids == other.token_ids and plain.text == other.text:
        return None
    shorter = min(len(plain.token_ids), len(other.token_ids))
    pairs = zip(plain.token_ids, other.token_ids, strict=False)
    index = next((i for i, (left, right) in enumerate(pairs) if left != right), shorter)
    return Difference(
        prompt=prompt,
        draft=draft,
        draft_length=draft_length,
        index=index,
        plain_token_id=_at(plain.token_ids, index),
        token_id=_at(other.token_ids, index),
        plain_text=plain.text,
        text=other.text,
    )


def _at(token_ids: tuple[int, ...], index: int) -> int | None:
    return token_ids[index] if index < len(token_ids) else None


def _add(report: Report, generation: Generation, difference: Difference | None) -> Report:
    """The report with one more comparison."""
    return replace(
        report,
        num_comparisons=report.num_comparisons + 1,
        drafted_tokens=report.drafted_tokens + generation.stats.drafted_token_count,
        accepted_tokens=report.accepted_tokens + generation.stats.accepted_token_count,
        difference=difference,
    )


def describe(report: Report) -> str:
    """The report for people."""
    counts = (
        f"{report.num_comparisons} greedy generations of {report.num_prompts} prompts against "
        f"plain decoding; {report.drafted_tokens} tokens drafted, "
        f"{report.accepted_tokens} accepted, {report.rejected_tokens} rejected"
    )
    if (found := report.difference) is not None:
        return (
            f"DIFFERENT: {counts}\n"
            f"  prompt: {found.prompt!r}\n"
            f"  draft source {found.draft}, draft length {found.draft_length}\n"
            f"  output token {found.index}: plain {found.plain_token_id}, "
            f"speculative {found.token_id}\n"
            f"  plain:       {found.plain_text!r}\n"
            f"  speculative: {found.text!r}"
        )
    return f"{report.verdict}: {counts}"
