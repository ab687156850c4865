"""What happens to a generation, and to what it holds, when a part of the pair goes away."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import grpc
import pytest

from paceline.cli.client import GenerationOptions, Stub, connect, generate, text_prompt
from paceline.serving.channels import open_channel
from paceline.v1 import (
    draft_pb2,
    draft_pb2_grpc,
    gateway_pb2,
    speculation_pb2,
    verify_pb2,
    verify_pb2_grpc,
)

if TYPE_CHECKING:
    from tests.e2e.conftest import Running, Start

pytestmark = pytest.mark.e2e

GREEDY = 0.0
LONG = 1500


async def plain(gateway: Stub, prompt: str, max_tokens: int) -> list[int]:
    """The greedy ids without a draft."""
    options = GenerationOptions(max_tokens=max_tokens, temperature=GREEDY, num_draft_tokens=0)
    return list((await generate(gateway, options.request(text_prompt(prompt)))).token_ids)


async def generate_through(
    gateway: Stub, request: gateway_pb2.GenerateRequest, fault: Callable[[], None], *, after: int
) -> tuple[list[int], gateway_pb2.GenerationStats]:
    """Runs a generation and calls `fault` once when `after` tokens have come."""
    token_ids: list[int] = []
    is_done = False
    statistics = gateway_pb2.GenerationStats()
    async for event in gateway.Generate(request):
        token_ids += event.tokens.token_ids
        if event.HasField("finished"):
            statistics = event.finished.stats
        if len(token_ids) >= after and not is_done:
            is_done = True
            fault()
    assert is_done
    return token_ids, statistics


async def loads(pair: Running) -> list[speculation_pb2.ReplicaLoad]:
    """The load of every replica of both tiers, asked of the replica itself."""
    reports = []
    for address in pair.addresses["verify"]:
        async with open_channel(address) as channel:
            verify = verify_pb2_grpc.VerifyServiceStub(channel)
            async for report in verify.WatchLoad(verify_pb2.VerifyServiceWatchLoadRequest()):
                reports.append(report.load)
                break
    for address in pair.addresses.get("draft", []):
        async with open_channel(address) as channel:
            draft = draft_pb2_grpc.DraftServiceStub(channel)
            async for answer in draft.WatchLoad(draft_pb2.DraftServiceWatchLoadRequest()):
                reports.append(answer.load)
                break
    return reports


async def wait_until_idle(pair: Running) -> None:
    """Returns when no replica holds a session or a block; the test's own timeout bounds it."""
    while any(r.open_session_count or r.held_block_count for r in await loads(pair)):
        await asyncio.sleep(0.02)


def request(max_tokens: int) -> gateway_pb2.GenerateRequest:
    """A greedy request on the prompt that all tests here use."""
    chosen = GenerationOptions(max_tokens=max_tokens, temperature=GREEDY)
    return chosen.request(text_prompt("abc"))


async def test_text_survives_a_killed_draft(start_pair: Start) -> None:
    """B98: the draft dies in mid-stream; the text is the same, and rounds go on plain."""
    pair = start_pair()
    async with connect(pair.address) as gateway:
        expected = await plain(gateway, "abc", LONG)
        token_ids, counts = await generate_through(
            gateway, request(LONG), lambda: pair.kill("draft"), after=100
        )
    assert expected == token_ids
    assert counts.accepted_token_count > 0
    assert counts.plain_round_count > 100
    assert sum(counts.fallbacks.values()) > 100


async def test_seeded_text_survives_a_killed_draft(start_pair: Start) -> None:
    """B37, B98: sampled from a seed it is the same text too, drafted, and plain after the death."""
    pair = start_pair()
    options = GenerationOptions(max_tokens=LONG, temperature=0.8, seed=7, ignore_eos=True)
    seeded = options.request(text_prompt("abc"))
    async with connect(pair.address) as gateway:
        expected = list((await generate(gateway, seeded)).token_ids)
        token_ids, counts = await generate_through(
            gateway, seeded, lambda: pair.kill("draft"), after=100
        )
    assert expected == token_ids
    assert counts.accepted_token_count > 0
    assert counts.plain_round_count > 100


async def test_text_survives_a_frozen_draft(start_pair: Start) -> None:
    """B98: a draft that stops answering costs one bounded wait, and nothing of the text."""
    pair = start_pair()
    async with connect(pair.address) as gateway:
        expected = await plain(gateway, "abc", LONG)
        token_ids, counts = await generate_through(
            gateway,
            request(LONG),
            lambda: pair.kill("draft", number=signal.SIGSTOP),
            after=20,
        )
    assert expected == token_ids
    assert counts.fallbacks["stalled"] >= 1


async def test_text_survives_a_killed_target(start_pair: Start) -> None:
    """B127: one of two verify replicas dies in mid-stream; the generation goes on on the other."""
    pair = start_pair("--verify-replicas", "2")
    async with connect(pair.address) as gateway:
        expected = await plain(gateway, "abc", LONG)
        busy: list[int] = []

        async def find_busy() -> None:
            reports = await loads(pair)
            busy.extend(i for i in range(2) if reports[i].open_session_count)

        searching: list[asyncio.Task[None]] = []
        token_ids: list[int] = []
        counts = gateway_pb2.GenerationStats()
        async for event in gateway.Generate(request(LONG)):
            token_ids += event.tokens.token_ids
            if len(token_ids) >= 100 and not searching:
                searching.append(asyncio.create_task(find_busy()))
                await searching[0]
                pair.kill("verify", busy[0])
            counts = event.finished.stats if event.HasField("finished") else counts
    assert expected == token_ids
    assert 1 == counts.reopened_count


async def test_a_killed_gateway_leaves_nothing_behind(pair: Running) -> None:
    """B74: sessions of a gateway that vanished are gone from both tiers."""
    tiers = [
        f"--{tier}={address}" for tier in ("verify", "draft") for address in pair.addresses[tier]
    ]
    second = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", *tiers),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert second.stdout is not None
    address = ""
    while "ready" not in address:
        address = (await second.stdout.readline()).decode()
        assert address, "the gateway ended early"
    async with connect(address.rpartition("=")[2].strip()) as gateway:
        with pytest.raises(grpc.aio.AioRpcError):
            await generate_through(gateway, request(4000), second.kill, after=50)
    await second.wait()
    async with asyncio.timeout(30):
        await wait_until_idle(pair)


async def test_cancelled_generations_leave_nothing_behind(pair: Running) -> None:
    """B73: 200 generations, half of them cancelled at random moments; then one more works."""
    generator = random.Random(3)

    async def run(gateway: Stub, is_cancelled: bool) -> None:
        call = gateway.Generate(request(60))
        num_events = generator.randrange(0, 12)
        async for _ in call:
            num_events -= 1
            if is_cancelled and num_events < 0:
                call.cancel()
                return

    async with connect(pair.address) as gateway:
        for start in range(0, 200, 10):
            await asyncio.gather(*(run(gateway, (start + i) % 2 == 0) for i in range(10)))
        async with asyncio.timeout(30):
            await wait_until_idle(pair)
        expected = await plain(gateway, "abc", 60)
        assert expected == list((await generate(gateway, request(60))).token_ids)
