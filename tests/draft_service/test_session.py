"""One session of the draft tier, through real gRPC: advances, refusals, and how it ends."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from draft_service.drafters.model import ModelDraftSession
from paceline.errors import (
    Aborted,
    Exhausted,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PacelineError,
    Unimplemented,
)
from paceline.records import Advance, Proposal, ReplicaLoad
from paceline.v1 import draft_pb2

PROMPT = [5, 6, 7]


def is_idle(load: ReplicaLoad) -> bool:
    """Whether nothing is open and nothing is held."""
    return (0, 0, 0) == (load.num_open_sessions, load.num_held_blocks, load.num_queued)


# Advances ----------------------------------------------------------------------------------------


async def test_new_tokens_are_all_since_the_last_advance(
    tiers: Any, rounds: Any, networks: Any
) -> None:
    """What was committed is taken in, whatever was drafted."""
    greedy = networks.generate(PROMPT, 20)
    tier = await tiers.draft(networks.find())
    peer = await tier.open(rounds.spec(PROMPT))
    assert (256, 16) == (peer.opened.max_length, peer.opened.max_draft_tokens)
    first = await peer.draft(Advance(1, 3, (), 4))
    assert (1, 3, tuple(greedy[:4])) == (first.round, first.base_length, first.token_ids)
    second = await peer.draft(Advance(2, 5, tuple(greedy[:2]), 3))
    assert (2, 5, tuple(greedy[2:5])) == (second.round, second.base_length, second.token_ids)
    third = await peer.draft(Advance(7, 15, tuple(greedy[2:12]), 5))
    assert (7, 15, tuple(greedy[12:17])) == (third.round, third.base_length, third.token_ids)


async def test_longest_proposal(tiers: Any, rounds: Any, networks: Any) -> None:
    """B95: asked for more than announced, it makes what was announced."""
    tier = await tiers.draft(networks.find(), max_draft_tokens=3)
    peer = await tier.open(rounds.spec(PROMPT))
    assert 3 == peer.opened.max_draft_tokens
    proposal = await peer.draft(Advance(1, 3, (), 16))
    assert tuple(networks.generate(PROMPT, 3)) == proposal.token_ids


async def test_nothing_wanted_is_not_answered(tiers: Any, rounds: Any, networks: Any) -> None:
    """An advance for 0 tokens is taken in without an answer."""
    greedy = networks.generate(PROMPT, 8)
    tier = await tiers.draft(networks.find())
    peer = await tier.open(rounds.spec(PROMPT))
    await peer.send_advance(Advance(1, 4, tuple(greedy[:1]), 0))
    await peer.send_advance(Advance(2, 6, tuple(greedy[1:3]), 0))
    proposal = await peer.draft(Advance(3, 7, tuple(greedy[3:4]), 4))
    assert (3, 7, tuple(greedy[4:8])) == (
        proposal.round,
        proposal.base_length,
        proposal.token_ids,
    )


async def test_nothing_wanted_keeps_the_cache_warm(tiers: Any, rounds: Any, networks: Any) -> None:
    """The cache grows with what is committed: 15 tokens fill a block, 40 take three."""
    tier = await tiers.draft(networks.find())
    peer = await tier.open(rounds.spec([5] * 15))
    await tier.watch(lambda load: load.num_held_blocks == 1)
    await peer.send_advance(Advance(1, 40, (6,) * 25, 0))
    await tier.watch(lambda load: load.num_held_blocks == 3)


async def test_a_few_tokens_behind_cost_no_step(tiers: Any, rounds: Any, networks: Any) -> None:
    """The next draft token's own step catches up with them."""
    tier = await tiers.draft(networks.find())
    peer = await tier.open(rounds.spec([5] * 15))
    await tier.watch(lambda load: load.num_held_blocks == 1)
    engine = tier.service._drafters[networks.find()].engine

    def count_steps() -> int:
        """Between two steps, so that none is in flight."""
        count: int = engine.call(lambda: sum(engine.figures.rows.counts)).result()
        return count

    num_steps = count_steps()
    await peer.send_advance(Advance(1, 20, (6,) * 5, 0))
    proposal = await peer.draft(Advance(2, 21, (7,), 2))
    assert tuple(networks.generate((*[5] * 15, *[6] * 5, 7), 2)) == proposal.token_ids
    assert num_steps + 2 == count_steps()


async def test_newer_advance_supersedes(
    tiers: Any, rounds: Any, networks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B97: the older one has no answer, and its tokens count."""
    greedy = networks.generate(PROMPT, 10)
    tier = await tiers.draft(networks.find())
    peer = await tier.open(rounds.spec(PROMPT))
    taken_in, advance_as_ever = asyncio.Event(), ModelDraftSession.advance

    def note(session: ModelDraftSession, advance: Advance) -> Any:
        future = advance_as_ever(session, advance)
        if advance.round == 2:
            taken_in.set()
        return future

    monkeypatch.setattr(ModelDraftSession, "advance", note)
    engine = tier.service._drafters[networks.find()].engine
    may_go_on = threading.Event()
    engine.call(may_go_on.wait)  # so that both advances are there before the engine looks
    await peer.send_advance(Advance(1, 4, tuple(greedy[:1]), 8))
    await peer.send_advance(Advance(2, 6, tuple(greedy[1:3]), 4))
    await taken_in.wait()
    may_go_on.set()
    response = await peer.receive()
    assert (2, tuple(greedy[3:7])) == (
        response.proposal.round,
        tuple(response.proposal.token_ids),
    )
    await peer.half_close()
    assert await peer.receive() is None


async def test_asked_before_the_half_close(tiers: Any, rounds: Any, networks: Any) -> None:
    """Who sends all at once and closes, as on a command line, gets the answer."""
    tier = await tiers.draft(networks.find())
    peer = await tier.open(rounds.spec(PROMPT))
    await peer.send_advance(Advance(1, 3, (), 8))
    await peer.half_close()
    response = await peer.receive()
    assert networks.generate(PROMPT, 8) == list(response.proposal.token_ids)
    assert await peer.receive() is None


async def test_default_source_is_the_first(tiers: Any, rounds: Any, networks: Any) -> None:
    """A session that names no source gets the default; one that does gets that."""
    tier = await tiers.draft(networks.find(), "ngram")
    assert networks.find() == (await tier.open(rounds.spec(PROMPT))).opened.source
    assert "ngram" == (await tier.open(rounds.spec(PROMPT), "ngram")).opened.source


# Refusals of an advance --------------------------------------------------------------------------


async def refusal(tiers: Any, rounds: Any, model: str, **message: Any) -> PacelineError:
    """What a message of a session with three tokens is refused with."""
    tier = await tiers.draft(model)
    peer = await tier.open(rounds.spec([0, 1, 2]))
    await peer.send(**message)
    error: PacelineError = await peer.refusal()
    await tier.watch(is_idle)
    return error


@pytest.mark.parametrize("committed_length", [-1, 3, 5])
async def test_committed_length_mismatch(
    tiers: Any, rounds: Any, write_table: Any, committed_length: int
) -> None:
    """B97: ABORTED with the true length, and the session is freed."""
    message = draft_pb2.Advance(
        round=1, committed_length=committed_length, new_token_ids=[1], draft_token_count=2
    )
    error = await refusal(tiers, rounds, write_table(0.5, 0.3, 0.2), advance=message)
    assert isinstance(error, Aborted)
    assert ("LENGTH_MISMATCH", {"TRUE_LENGTH": "3"}) == (error.reason, error.metadata)


async def test_round_that_is_not_newer(tiers: Any, rounds: Any, write_table: Any) -> None:
    """B97: rounds count from 1."""
    message = draft_pb2.Advance(round=0, committed_length=3, draft_token_count=2)
    error = await refusal(tiers, rounds, write_table(0.5, 0.3, 0.2), advance=message)
    assert isinstance(error, Aborted)
    assert "ROUND_OUT_OF_ORDER" == error.reason


async def test_lookahead_is_not_served(tiers: Any, rounds: Any, write_table: Any) -> None:
    """What this build does not serve is named."""
    message = draft_pb2.Advance(
        round=1,
        committed_length=3,
        draft_token_count=2,
        lookahead=draft_pb2.LookaheadRequest(fan_out=2, draft_token_count=4),
    )
    error = await refusal(tiers, rounds, write_table(0.5, 0.3, 0.2), advance=message)
    assert isinstance(error, Unimplemented)
    assert "advance.lookahead" in error.message


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (
            draft_pb2.Advance(round=1, committed_length=4, new_token_ids=[3]),
            "advance.new_token_ids",
        ),
        (
            draft_pb2.Advance(round=1, committed_length=3, draft_token_count=-1),
            "advance.draft_token_count",
        ),
    ],
)
async def test_malformed_advance(
    tiers: Any, rounds: Any, write_table: Any, message: draft_pb2.Advance, field: str
) -> None:
    """B66: the field is named."""
    error = await refusal(tiers, rounds, write_table(0.5, 0.3, 0.2), advance=message)
    assert isinstance(error, InvalidArgument)
    assert field == error.field


async def test_second_open(tiers: Any, rounds: Any, write_table: Any) -> None:
    """One stream, one session."""
    message = draft_pb2.DraftOpen()
    error = await refusal(tiers, rounds, write_table(0.5, 0.3, 0.2), open=message)
    assert isinstance(error, InvalidArgument)
    assert "advance" == error.field


async def test_answer_before_a_refusal(tiers: Any, rounds: Any, write_table: Any) -> None:
    """What was ready is sent before the stream ends with an error."""
    tier = await tiers.draft("ngram")
    peer = await tier.open(rounds.spec([0, 1, 2, 0, 1]))
    await peer.send_advance(Advance(1, 5, (), 2))
    await peer.send_advance(Advance(1, 5, (), 2))
    assert [2, 0] == list((await peer.receive()).proposal.token_ids)
    assert isinstance(await peer.refusal(), Aborted)


# Refusals of a session ---------------------------------------------------------------------------


async def test_advance_before_open(tiers: Any) -> None:
    """A session is opened first."""
    tier = await tiers.draft("ngram")
    peer = tier.connect()
    await peer.send_advance(Advance(1, 3, (), 1))
    error = await peer.refusal()
    assert isinstance(error, InvalidArgument)
    assert "open" == error.field


async def test_unknown_source(tiers: Any, rounds: Any, write_table: Any) -> None:
    """The sources that there are are listed."""
    name = write_table(0.5, 0.5)
    tier = await tiers.draft(name, "ngram")
    peer = tier.connect()
    await tier.send_open(peer, rounds.spec([0]), "suffix")
    error = await peer.refusal()
    assert isinstance(error, NotFound)
    assert "SOURCE_NOT_FOUND" == error.reason
    assert f"these are: {name}, ngram" in error.message


async def test_other_end_of_sequence(tiers: Any, rounds: Any, networks: Any) -> None:
    """B46: models whose end ids differ are refused, with both."""
    target = await (await tiers.verify(networks.find())).identity()
    tier = await tiers.draft(networks.find("eos"))
    peer = tier.connect()
    await tier.send_open(peer, rounds.spec(PROMPT), target=target)
    error = await peer.refusal()
    assert isinstance(error, FailedPrecondition)
    assert "end-of-sequence ids: draft [2], target [1]" in error.message


async def test_other_vocabulary(tiers: Any, rounds: Any, networks: Any, write_table: Any) -> None:
    """B45, B46: ids that mean something else are refused at open, with both sides."""
    target = await (await tiers.verify(networks.find())).identity()
    tier = await tiers.draft(write_table(0.5, 0.5))
    peer = tier.connect()
    await tier.send_open(peer, rounds.spec([0]), target=target)
    error = await peer.refusal()
    assert isinstance(error, FailedPrecondition)
    assert "DRAFT_MISMATCH" == error.reason
    assert "vocabulary size: draft 2, target 258" in error.message
    assert target.tokenizer_fingerprint in error.message


async def test_no_target_named(tiers: Any, rounds: Any, write_table: Any) -> None:
    """B46: a source with a model is not paired with nobody."""
    tier = await tiers.draft(write_table(0.5, 0.5))
    peer = tier.connect()
    await peer.send(open=draft_pb2.DraftOpen())
    assert isinstance(await peer.refusal(), FailedPrecondition)


async def test_tokens_outside_the_vocabulary(tiers: Any, rounds: Any, write_table: Any) -> None:
    """B66: refused before anything is run."""
    tier = await tiers.draft(write_table(0.5, 0.5))
    peer = tier.connect()
    await tier.send_open(peer, rounds.spec([0, 2]))
    error = await peer.refusal()
    assert isinstance(error, InvalidArgument)
    assert "session.token_ids" == error.field


# Ends --------------------------------------------------------------------------------------------


async def test_half_close_ends_a_session(tiers: Any, rounds: Any, networks: Any) -> None:
    """B59: blocks are free."""
    tier = await tiers.draft(networks.find())
    peer = await tier.open(rounds.spec([5] * 40))
    await peer.draft(Advance(1, 40, (), 4))
    await tier.watch(lambda load: load.num_held_blocks == 3 and load.num_open_sessions == 1)
    await peer.half_close()
    assert await peer.receive() is None
    await tier.watch(is_idle)


async def test_cancel_while_drafting_ends_a_session(tiers: Any, rounds: Any, networks: Any) -> None:
    """B59, B74: sessions that go in the middle of a block leave nothing."""
    tier = await tiers.draft(networks.find())
    peers = [await tier.open(rounds.spec([number + 2] * 200)) for number in range(6)]
    for peer in peers:
        await peer.send_advance(Advance(1, 200, (), 16))
    for peer in peers:
        peer.cancel()
    await tier.watch(is_idle)
    engine = tier.service._drafters[networks.find()].engine
    await asyncio.wrap_future(engine.check())


async def test_idle_session_is_ended(tiers: Any, rounds: Any, write_table: Any) -> None:
    """B104: a peer that vanished holds nothing for long."""
    tier = await tiers.draft(write_table(0.5, 0.5), idle_timeout_s=1)
    peer = await tier.open(rounds.spec([0] * 40))
    error = await peer.refusal()
    assert isinstance(error, Aborted)
    assert "SESSION_IDLE" == error.reason
    await tier.watch(is_idle)


async def test_one_session_too_many(tiers: Any, rounds: Any) -> None:
    """B120: told to come back, and let in when a place is free."""
    tier = await tiers.draft("ngram", max_sessions=1)
    first = await tier.open(rounds.spec(PROMPT))
    second = tier.connect()
    await tier.send_open(second, rounds.spec(PROMPT))
    error = await second.refusal()
    assert isinstance(error, Exhausted)
    assert ("SESSIONS_EXHAUSTED", 1.0) == (error.reason, error.retry_after_s)
    await first.half_close()
    assert await first.receive() is None
    await tier.open(rounds.spec(PROMPT))


async def test_drain_waits_for_sessions(tiers: Any, rounds: Any) -> None:
    """B115: draining ends with the last session."""
    tier = await tiers.draft("ngram")
    peer = await tier.open(rounds.spec(PROMPT))
    draining = asyncio.create_task(tier.service.drain())
    await tier.watch(lambda load: load.is_draining)
    assert not draining.done()
    assert Proposal(1, 3) == await peer.draft(Advance(1, 3, (), 2))
    peer.cancel()
    await draining
