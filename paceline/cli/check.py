"""`paceline check`: proves on the running system that speculation changes no output.

Every built-in prompt is generated without speculation and then with every draft source and several
draft lengths, greedily and sampled from a seed under the coupled rule; ids and text must be the
same. A check in which nothing was drafted, accepted or rejected, in either of the two ways, proves
nothing and fails as INCONCLUSIVE.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import click

from paceline.cli.client import Access, Generation, Stub, connect, generate
from paceline.cli.options import address_option, choose_model, json_option, model_option
from paceline.cli.probes import WAYS, probes
from paceline.cli.terminal import EXIT_ERROR, run
from paceline.v1 import gateway_pb2

DRAFT_LENGTHS = (0, 1, 4, 8, None)
"""None adapts the length."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place at which two generations of one prompt differ."""

    prompt: str
    sampling: str
    """One of WAYS."""
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
class Tally:
    """Comparisons of one way of sampling, and what became of draft tokens in them."""

    num_comparisons: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def rejected_tokens(self) -> int:
        """Draft tokens verified and not accepted."""
        return self.drafted_tokens - self.accepted_tokens

    def as_json(self) -> dict[str, int]:
        """The object that `--json` prints."""
        return {**asdict(self), "rejected_tokens": self.rejected_tokens}


@dataclass(frozen=True, slots=True)
class Report:
    """What was compared and what came of it."""

    num_prompts: int
    tallies: dict[str, Tally] = field(default_factory=lambda: {way: Tally() for way in WAYS})
    """By way of sampling."""
    difference: Difference | None = None

    @property
    def verdict(self) -> str:
        """DIFFERENT, INCONCLUSIVE or IDENTICAL."""
        if self.difference is not None:
            return "DIFFERENT"
        is_conclusive = all(
            tally.accepted_tokens > 0 and tally.rejected_tokens > 0
            for tally in self.tallies.values()
        )
        return "IDENTICAL" if is_conclusive else "INCONCLUSIVE"

    def as_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {
            "verdict": self.verdict,
            "num_prompts": self.num_prompts,
            **{way: tally.as_json() for way, tally in self.tallies.items()},
            "difference": asdict(self.difference) if self.difference else None,
        }


@click.command()
@address_option
@click.option(
    "--max-tokens", type=click.IntRange(min=1), default=32, help="Output tokens per prompt."
)
@model_option
@json_option
def check(access: Access, max_tokens: int, model: str, as_json: bool) -> None:
    """Proves that output is the same with every draft source and length, greedy and seeded.

    Exits with 1 on the first difference, and where nothing was drafted, accepted or rejected.
    """
    report = run(_check(access, max_tokens, model))
    click.echo(json.dumps(report.as_json(), ensure_ascii=False) if as_json else describe(report))
    if report.verdict != "IDENTICAL":
        sys.exit(EXIT_ERROR)


async def _check(access: Access, max_tokens: int, name: str) -> Report:
    async with connect(access) as gateway:
        served = await gateway.ListModels(gateway_pb2.ListModelsRequest())
        model = choose_model(served, name)
        requests = await probes(gateway, model.model, max_tokens)
        report = Report(len({prompt for prompt, _ in requests}))
        for (prompt, way), request in requests.items():
            async for compared in _compare(gateway, (prompt, way), request, model.draft_sources):
                report = _add(report, way, *compared)
                if report.difference is not None:
                    return report
    return report


async def _compare(
    gateway: Stub,
    name: tuple[str, str],
    request: gateway_pb2.GenerateRequest,
    sources: Sequence[str],
) -> AsyncIterator[tuple[Generation, Difference | None]]:
    """Generates one request with every draft; yields each generation with its difference."""
    plain = await generate(gateway, _with(request, "none", 0))
    for source in sources:
        for length in DRAFT_LENGTHS:
            generation = await generate(gateway, _with(request, source, length))
            draft = source, "auto" if length is None else str(length)
            yield generation, _difference(plain, generation, name, draft)


def _with(
    request: gateway_pb2.GenerateRequest, source: str, length: int | None
) -> gateway_pb2.GenerateRequest:
    """A copy of the request with another draft."""
    changed = gateway_pb2.GenerateRequest()
    changed.CopyFrom(request)
    changed.speculation.draft_source = source
    if length is not None:
        changed.speculation.draft_token_count = length
    return changed


def _difference(
    plain: Generation, other: Generation, name: tuple[str, str], draft: tuple[str, str]
) -> Difference | None:
    if plain.token_ids == other.token_ids and plain.text == other.text:
        return None
    shorter = min(len(plain.token_ids), len(other.token_ids))
    pairs = zip(plain.token_ids, other.token_ids, strict=False)
    index = next((i for i, (left, right) in enumerate(pairs) if left != right), shorter)
    return Difference(
        prompt=name[0],
        sampling=name[1],
        draft=draft[0],
        draft_length=draft[1],
        index=index,
        plain_token_id=_at(plain.token_ids, index),
        token_id=_at(other.token_ids, index),
        plain_text=plain.text,
        text=other.text,
    )


def _at(token_ids: tuple[int, ...], index: int) -> int | None:
    return token_ids[index] if index < len(token_ids) else None


def _add(report: Report, way: str, generation: Generation, difference: Difference | None) -> Report:
    """The report with one more comparison."""
    tally, stats = report.tallies[way], generation.stats
    more = Tally(
        tally.num_comparisons + 1,
        tally.drafted_tokens + stats.drafted_token_count,
        tally.accepted_tokens + stats.accepted_token_count,
    )
    return replace(report, tallies={**report.tallies, way: more}, difference=difference)


def describe(report: Report) -> str:
    """The report for people."""
    counts = f"{report.num_prompts} prompts against plain decoding" + "".join(
        f"\n  {way}: {tally.num_comparisons} generations, {tally.drafted_tokens} tokens drafted, "
        f"{tally.accepted_tokens} accepted, {tally.rejected_tokens} rejected"
        for way, tally in report.tallies.items()
    )
    if (found := report.difference) is not None:
        return (
            f"DIFFERENT: {counts}\n"
            f"  prompt: {found.prompt!r}, {found.sampling}\n"
            f"  draft source {found.draft}, draft length {found.draft_length}\n"
            f"  output token {found.index}: plain {found.plain_token_id}, "
            f"speculative {found.token_id}\n"
            f"  plain:       {found.plain_text!r}\n"
            f"  speculative: {found.text!r}"
        )
    return f"{report.verdict}: {counts}"
