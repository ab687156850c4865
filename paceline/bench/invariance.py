"""One seed, one text: ids of a pair of its own over drafts, lengths, company and losses.

`python -m paceline.bench.invariance [--prompts FILE.jsonl]` starts the services, generates every
prompt plainly and then in every other way, and counts ids that differ: in exact mode none may. A
length of 0 is plain decoding for every source, so it is run once. It does not know how rounds are
run.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from paceline.bench.measure import tokenize
from paceline.bench.prompts import Question
from paceline.cli.client import (
    Generation,
    GenerationOptions,
    Stub,
    connect,
    generate,
    ids_prompt,
)
from paceline.cli.options import choose_questions, prompts_option
from paceline.cli.process import StartError
from paceline.cli.stack import Stack, StackOptions
from paceline.serving.channels import open_channel
from paceline.v1 import gateway_pb2, verify_pb2, verify_pb2_grpc

LENGTHS: tuple[int | None, ...] = (2, 8, None)
"""None adapts the length."""
CONCURRENCIES = (1, 8)
RESUMED, VERIFY_KILLED, DRAFT_KILLED = "resumed", "verify killed", "draft killed"
Act = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Way:
    """One way to generate all prompts."""

    draft: str
    num_draft_tokens: int | None
    concurrency: int
    loss: str = ""
    """What goes wrong in mid-stream."""


PLAIN = Way("none", 0, 1)


@dataclass(frozen=True, slots=True)
class Runs:
    """What is started, and what is asked of it."""

    stack: StackOptions
    options: GenerationOptions


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of one way, against the plain one."""

    way: Way
    num_tokens: int
    num_differing_ids: int
    num_differing_prompts: int
    """Each is one flip: what follows the first differing id is another text."""
    num_drafted: int
    num_accepted: int
    num_reopened: int
    num_fallbacks: int

    @property
    def is_conclusive(self) -> bool:
        """Whether what the way is for has happened."""
        if self.way.loss == VERIFY_KILLED:
            return self.num_reopened > 0
        if self.way.loss == DRAFT_KILLED:
            return self.num_accepted > 0 and self.num_fallbacks > 0
        return self.way.draft == "none" or self.num_drafted > 0


def ways(sources: Sequence[str], num_prompts: int) -> list[Way]:
    """Every way but the plain one; those after which a service is missing come last."""
    grid = [
        Way(source, length, concurrency)
        for concurrency in CONCURRENCIES
        for source in sources
        for length in LENGTHS
    ]
    losses = [
        Way(sources[0], None, num_prompts, loss) for loss in (RESUMED, VERIFY_KILLED, DRAFT_KILLED)
    ]
    return [*(replace(PLAIN, concurrency=c) for c in CONCURRENCIES[1:]), *grid, *losses]


class Fuse:
    """Acts once, as soon as every one of several generations has so many tokens."""

    def __init__(self, count: int, num_tokens: int, act: Act) -> None:
        self._missing = [num_tokens] * count
        self._act: Act | None = act

    async def note(self, index: int, num_tokens: int) -> None:
        """Takes in new tokens of one of them."""
        self._missing[index] -= num_tokens
        if self._act is not None and max(self._missing) <= 0:
            act, self._act = self._act, None
            await act()


class Runner:
    """Generates the prompts."""

    def __init__(
        self, gateway: Stub, prompts: Sequence[Sequence[int]], options: GenerationOptions
    ) -> None:
        assert options.max_tokens is not None
        self._gateway = gateway
        self._prompts = prompts
        self._options = options
        self._num_early = max(1, options.max_tokens // 8)
        """Tokens after which a generation is under way, and may lose something."""

    async def run(
        self, way: Way, act: Act, expected: Sequence[Generation] = ()
    ) -> list[Generation]:
        """Every prompt in one way; `act` is called in mid-stream.

        A way that resumes begins with the first of the expected tokens of each prompt.
        """
        slots = asyncio.Semaphore(way.concurrency)
        fuse = Fuse(len(self._prompts), self._num_early, act)
        options = replace(self._options, draft=way.draft, num_draft_tokens=way.num_draft_tokens)

        async def run_one(index: int, prompt: Sequence[int]) -> Generation:
            async def note(tokens: gateway_pb2.Tokens) -> None:
                await fuse.note(index, len(tokens.token_ids))

            request = options.request(ids_prompt(prompt))
            if way.loss == RESUMED:
                request.committed_token_ids.extend(expected[index].token_ids[: self._num_early])
            async with slots:
                generation = await generate(self._gateway, request, note)
            earlier = tuple(request.committed_token_ids)
            return replace(generation, token_ids=earlier + generation.token_ids)

        return await asyncio.gather(*(run_one(i, prompt) for i, prompt in enumerate(self._prompts)))


def judge(way: Way, expected: Sequence[Generation], found: Sequence[Generation]) -> Finding:
    """Compares one way with the plain one."""
    differing = [
        sum(a != b for a, b in zip(one.token_ids, other.token_ids, strict=False))
        + abs(len(one.token_ids) - len(other.token_ids))
        for one, other in zip(expected, found, strict=True)
    ]
    all_stats = [one.stats for one in found]
    return Finding(
        way,
        num_tokens=sum(len(one.token_ids) for one in found),
        num_differing_ids=sum(differing),
        num_differing_prompts=sum(count > 0 for count in differing),
        num_drafted=sum(stats.drafted_token_count for stats in all_stats),
        num_accepted=sum(stats.accepted_token_count for stats in all_stats),
        num_reopened=sum(stats.reopened_count for stats in all_stats),
        num_fallbacks=sum(sum(stats.fallbacks.values()) for stats in all_stats),
    )


def table_of(findings: Sequence[Finding]) -> Table:
    """The findings for people."""
    columns = ("draft", "length", "at once", "loss", "tokens", "differing ids", "flips")
    grid = Table(*columns, "drafted", "accepted", "reopened", "fallbacks")
    for one in findings:
        length = "window" if one.way.num_draft_tokens is None else one.way.num_draft_tokens
        cells = (one.way.draft, length, one.way.concurrency, one.way.loss, one.num_tokens)
        counts = (one.num_differing_ids, one.num_differing_prompts, one.num_drafted)
        more = (one.num_accepted, one.num_reopened, one.num_fallbacks)
        grid.add_row(*map(str, (*cells, *counts, *more)))
    return grid


async def measure(
    stack: Stack, address: str, runs: Runs, questions: Sequence[Question]
) -> list[Finding]:
    """Runs every way on a stack that was just started."""
    async with connect(address) as gateway:
        acts: dict[str, Act] = {
            VERIFY_KILLED: partial(_kill_verifier, stack, gateway),
            DRAFT_KILLED: partial(_kill_drafter, stack, gateway),
        }
        prompts = [prompt.token_ids for prompt in await tokenize(gateway, questions)]
        runner = Runner(gateway, prompts, runs.options)
        expected = await runner.run(PLAIN, _nothing)
        findings = []
        todo = ways(runs.stack.sources, len(prompts))
        for way in track(todo, "generating", console=Console(stderr=True)):
            found = await runner.run(way, acts.get(way.loss, _nothing), expected)
            findings.append(judge(way, expected, found))
    return findings


async def _kill_verifier(stack: Stack, gateway: Stub) -> None:
    """Kills the verify replica that holds most sessions, by the replicas' own word."""
    addresses = await _addresses(gateway, gateway_pb2.TIER_VERIFY)
    counts = [await _num_sessions(address) for address in addresses]
    await stack.kill_replica(addresses[counts.index(max(counts))])


async def _kill_drafter(stack: Stack, gateway: Stub) -> None:
    """Kills the one draft replica."""
    (address,) = await _addresses(gateway, gateway_pb2.TIER_DRAFT)
    await stack.kill_replica(address)


async def _addresses(gateway: Stub, tier: gateway_pb2.Tier.ValueType) -> list[str]:
    listed = await gateway.ListModels(gateway_pb2.ListModelsRequest())
    return [replica.address for replica in listed.replicas if replica.tier == tier]


async def _num_sessions(address: str) -> int:
    async with open_channel(address) as channel:
        reports = verify_pb2_grpc.VerifyServiceStub(channel).WatchLoad(
            verify_pb2.VerifyServiceWatchLoadRequest()
        )
        async for report in reports:
            return int(report.load.open_session_count)
    return 0


async def _nothing() -> None:
    """Nothing goes wrong."""


async def _run(runs: Runs, questions: Sequence[Question]) -> list[Finding]:
    console, task = Console(stderr=True), asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    stack = Stack(
        runs.stack,
        report=lambda line: console.print(line, style="dim", highlight=False),
        on_line=lambda name, line: None,
    )
    try:
        return await measure(stack, await stack.start(), runs, questions)
    except StartError:
        stack.kill()
        raise
    finally:
        await asyncio.shield(stack.drain())


@click.command()
@prompts_option
@click.option("--limit", type=int, default=30, show_default=True, help="Prompts, by category.")
@click.option("--max-tokens", type=int, default=64, show_default=True, help="Output of each.")
@click.option("--target", default="smollm2", show_default=True, help="The target's name.")
@click.option("--draft", default="quantized:int4", show_default=True, help="First draft source.")
@click.option("--exact/--fast", default=True, show_default=True, help="Which kernels verify.")
@click.option("--seed", type=int, default=7, show_default=True, help="Seed of every generation.")
def main(prompts: Path | None, limit: int, **options: Any) -> None:
    """Exits with 1 where an id differs in exact mode, or where a way shows nothing."""
    questions = choose_questions(prompts, limit)
    models = {name: options[name] for name in ("target", "draft", "exact")}
    asked = {name: options[name] for name in ("max_tokens", "seed")}
    runs = Runs(
        StackOptions(**models, gateway_port=0, verify_replicas=2),
        GenerationOptions(**asked, temperature=0.8, top_p=0.95, ignore_eos=True),
    )
    findings = asyncio.run(_run(runs, questions))
    Console(width=120).print(table_of(findings))
    unclear = [one.way for one in findings if not one.is_conclusive]
    for way in unclear:
        click.echo(f"INCONCLUSIVE: {way}")
    num_flips = sum(one.num_differing_prompts for one in findings)
    click.echo(f"{num_flips} flips in {sum(one.num_tokens for one in findings)} tokens")
    sys.exit(bool(unclear) or (options["exact"] and num_flips > 0))


if __name__ == "__main__":
    main()
