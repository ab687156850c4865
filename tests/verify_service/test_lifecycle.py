"""How sessions of the verify tier end, and that nothing of them stays."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from paceline.errors import Aborted, Exhausted
from paceline.records import Proposal, ReplicaLoad
from paceline.serving.statuses import error_of

A, B = 0, 1


def is_idle(load: ReplicaLoad) -> bool:
    """Whether nothing is open and nothing is held."""
    return (0, 0, 0) == (load.num_open_sessions, load.num_held_blocks, load.num_queued)


async def test_half_close_ends_a_session(tiers: Any, rounds: Any, cycle: str) -> None:
    """B59: what was asked is answered, the stream ends well, and its blocks are free."""
    tier = await tiers.verify(cycle)
    peer = await tier.open(rounds.spec([A] * 40))
    assert 1 == (await tier.load()).num_open_sessions
    await peer.send_proposal(Proposal(1, 40))
    await peer.half_close()
    assert B == (await peer.receive()).verdict.next_token_id
    assert await peer.receive() is None
    await tier.watch(is_idle)


async def test_cancel_ends_a_session(tiers: Any, rounds: Any, cycle: str) -> None:
    """B59, B74: blocks that were held are free."""
    tier = await tiers.verify(cycle)
    peer = await tier.open(rounds.spec([A] * 40))
    await peer.verify(Proposal(1, 40))
    await tier.watch(lambda load: load.num_held_blocks == 3)
    peer.cancel()
    await tier.watch(is_idle)


async def test_cancel_in_a_round_ends_a_session(tiers: Any, rounds: Any, networks: Any) -> None:
    """B74: sessions that go while their work is queued or running leave nothing."""
    tier = await tiers.verify(networks.find())
    peers = [await tier.open(rounds.spec([number + 2] * 200)) for number in range(8)]
    for peer in peers:
        await peer.send_proposal(Proposal(1, 200))
    for peer in peers:
        peer.cancel()
    await tier.watch(is_idle)
    await asyncio.wrap_future(tier.service._verifier.engine.check())


async def test_refusal_ends_a_session(tiers: Any, rounds: Any, cycle: str) -> None:
    """B58: an error frees what a good end frees."""
    tier = await tiers.verify(cycle)
    peer = await tier.open(rounds.spec([A] * 40))
    await peer.verify(Proposal(1, 40))
    await peer.send_proposal(Proposal(7, 41))
    await peer.refusal()
    await tier.watch(is_idle)


async def test_stream_without_a_message(tiers: Any, cycle: str) -> None:
    """Nothing was asked, nothing is answered."""
    tier = await tiers.verify(cycle)
    peer = tier.connect()
    await peer.half_close()
    assert await peer.receive() is None


async def test_silent_stream_is_ended(tiers: Any, cycle: str) -> None:
    """B104: before Open ..."""
    tier = await tiers.verify(cycle, idle_timeout_s=0.05)
    error = await tier.connect().refusal()
    assert isinstance(error, Aborted)
    assert "SESSION_IDLE" == error.reason


async def test_idle_session_is_ended(tiers: Any, rounds: Any, cycle: str) -> None:
    """B104: ... and after it; its blocks are free."""
    tier = await tiers.verify(cycle, idle_timeout_s=1)
    peer = tier.connect()
    await tier.send_open(peer, rounds.spec([A]))
    await peer.send_proposal(Proposal(1, 1))
    error = await peer.refusal()
    assert isinstance(error, Aborted)
    assert ("SESSION_IDLE", "no message for 1 s") == (error.reason, error.message)
    await tier.watch(is_idle)


async def test_one_session_too_many(tiers: Any, rounds: Any, cycle: str) -> None:
    """B120: refused with RetryInfo; the place is free again when a session has ended."""
    tier = await tiers.verify(cycle, max_sessions=1)
    first = await tier.open(rounds.spec([A]))
    second = tier.connect()
    await tier.send_open(second, rounds.spec([A]))
    failure = await second.failure()
    assert grpc.StatusCode.RESOURCE_EXHAUSTED is failure.code()
    error = error_of(failure)
    assert isinstance(error, Exhausted)
    assert "SESSIONS_EXHAUSTED" == error.reason
    status = rpc_status.from_call(failure)
    assert any(detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR) for detail in status.details)
    await first.half_close()
    assert await first.receive() is None
    third = await tier.open(rounds.spec([A]))
    assert B == (await third.verify(Proposal(1, 1))).next_token_id


async def test_refused_open_takes_no_place(tiers: Any, rounds: Any, cycle: str) -> None:
    """B59: a session that never came to be is not counted."""
    tier = await tiers.verify(cycle, max_sessions=1)
    for _ in range(3):
        peer = tier.connect()
        await tier.send_open(peer, rounds.spec([99]))
        await peer.refusal()
    await tier.open(rounds.spec([A]))


async def test_drain_waits_for_sessions(tiers: Any, rounds: Any, cycle: str) -> None:
    """B115: draining shows in the load, and ends with the last session."""
    tier = await tiers.verify(cycle)
    peer = await tier.open(rounds.spec([A]))
    draining = asyncio.create_task(tier.service.drain())
    await tier.watch(lambda load: load.is_draining)
    assert not draining.done()
    assert (await peer.verify(Proposal(1, 1))).load.is_draining
    await peer.half_close()
    await draining


async def test_prefix_is_found_again(tiers: Any, rounds: Any, networks: Any) -> None:
    """B56: a second session with the same prompt starts from its blocks, and says the same."""
    tier = await tiers.verify(networks.find())
    prompt = list(range(2, 52))
    expected = networks.generate(prompt, 10)
    for num_cached in (0, 48):
        peer = await tier.open(rounds.spec(prompt))
        assert num_cached == peer.opened.cached_prefix_length
        transcript = await rounds.run(peer, None, 50, 10, lambda _: 0)
        assert expected == transcript.token_ids
        peer.cancel()
        await tier.watch(is_idle)


async def test_domains_share_no_prefix(tiers: Any, rounds: Any, networks: Any) -> None:
    """B56: what one tenant has in the cache is no other's."""
    tier = await tiers.verify(networks.find())
    prompt = list(range(2, 52))
    found = []
    for domain in ("one", "two", "one"):
        peer = await tier.open(rounds.spec(prompt, cache_domain=domain))
        found.append(peer.opened.cached_prefix_length)
        await peer.verify(Proposal(1, 50))
    assert [0, 0, 48] == found


async def test_a_tier_whose_engine_ended_says_so(tiers: Any, rounds: Any, cycle: str) -> None:
    """B121: it is not healthy, and whoever asks is sent elsewhere."""
    tier = await tiers.verify(cycle)
    assert tier.service.is_healthy
    await asyncio.to_thread(tier.service._verifier.engine.stop)
    assert not tier.service.is_healthy
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await tier.load()
    assert "ENGINE_ENDED" == error_of(caught.value).reason
