"""What the two model tiers share: settings, the count of sessions, and the reader of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from draft_service.config import DraftConfig
from paceline.errors import Aborted, Exhausted, InvalidArgument
from paceline.records import (
    ModelIdentity,
    ReplicaLoad,
    SamplingParams,
    SessionSpec,
    VerificationRule,
)
from paceline.tier import (
    EngineConfig,
    Sessions,
    check_token_ids,
    next_message,
    open_sequence,
    watch_load,
)
from verify_service.config import VerifyConfig

SPEC = SessionSpec((1, 2), 2, SamplingParams(), VerificationRule.REJECTION_BLOCK, 0)


async def messages(*given: str) -> AsyncIterator[str]:
    """A stream that ends."""
    for message in given:
        yield message


async def silence() -> AsyncIterator[str]:
    """A stream on which nothing ever comes."""
    await asyncio.Event().wait()
    yield ""


# Settings ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("config_type", [VerifyConfig, DraftConfig])
def test_settings_reach_the_engine(config_type: type[EngineConfig]) -> None:
    """Every setting of an engine is passed on, in its unit."""
    settings = config_type(
        dtype="bfloat16",
        device="cuda:1",
        max_length=128,
        memory_mib=3,
        block_size=8,
        max_rows=64,
        max_draft_tokens=4,
        max_sessions=7,
        step_limit_s=9,
        threads=2,
        cache_dir=Path("~/models"),
    ).engine_settings()
    assert Path("~/models").expanduser() == settings.cache_dir
    assert ("bfloat16", "cuda:1", 128, 3 * 1024 * 1024) == (
        settings.dtype,
        settings.device,
        settings.max_length,
        settings.memory_bytes,
    )
    assert (8, 64, 4, 7, 9, 2) == (
        settings.block_size,
        settings.max_rows,
        settings.max_draft_tokens,
        settings.max_sessions,
        settings.step_limit_s,
        settings.num_threads,
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_draft_tokens", 0),
        ("max_draft_tokens", 31),
        ("block_size", -1),
        ("max_rows", 31),
        ("memory_mib", 0),
        ("max_sessions", 0),
        ("step_limit_s", 0),
        ("max_length", -1),
        ("dtype", "int8"),
    ],
)
def test_wrong_setting_is_refused(name: str, value: Any) -> None:
    """A wrong value fails at start, named."""
    with pytest.raises(ValueError, match=name):
        VerifyConfig(**{name: value})


def test_longest_proposal_fits_into_a_step() -> None:
    """A proposal and its extra row never have to be split over steps."""
    config = VerifyConfig(max_draft_tokens=30, max_rows=32)
    assert config.max_draft_tokens + 1 <= config.max_rows


def test_draft_needs_a_source() -> None:
    """A draft tier without sources has nothing to serve."""
    with pytest.raises(ValueError, match="source"):
        DraftConfig(source=[])


# Sessions ----------------------------------------------------------------------------------------


def test_as_many_sessions_as_may_be() -> None:
    """The one too many is told to come back; a place that is left is taken again."""
    sessions = Sessions(2)
    sessions.enter()
    sessions.enter()
    with pytest.raises(Exhausted) as caught:
        sessions.enter()
    assert ("SESSIONS_EXHAUSTED", "2 sessions are open") == (
        caught.value.reason,
        caught.value.message,
    )
    sessions.leave()
    sessions.enter()
    assert 2 == sessions.stamp(ReplicaLoad()).num_open_sessions


async def test_drain_waits_for_the_last_session() -> None:
    """B115: draining is reported at once and ends with the last session, not before."""
    sessions = Sessions(2)
    sessions.enter()
    sessions.enter()
    draining = asyncio.create_task(sessions.drain())
    sessions.leave()
    await asyncio.wait([draining], timeout=0.01)
    assert not draining.done()
    assert sessions.stamp(ReplicaLoad()).is_draining
    sessions.leave()
    await draining


async def test_drain_of_nothing_returns() -> None:
    """Without sessions there is nothing to wait for."""
    await Sessions(1).drain()


def test_stamp_keeps_what_the_engine_said() -> None:
    """Only what the engine cannot know is replaced."""
    load = ReplicaLoad(9, 2, 3, 4, 5, True)
    assert ReplicaLoad(0, 2, 3, 4, 5, False) == Sessions(1).stamp(load)


# Streams -----------------------------------------------------------------------------------------


async def test_next_message_until_the_end() -> None:
    """Messages in order, then None."""
    requests = messages("a", "b")
    assert ["a", "b", None] == [await next_message(requests, 60.0) for _ in range(3)]


async def test_silence_ends_the_session() -> None:
    """B104: a peer that vanished without a word does not hold its session for ever."""
    with pytest.raises(Aborted) as caught:
        await next_message(silence(), 0.01)
    assert ("SESSION_IDLE", "no message for 0.01 s") == (caught.value.reason, caught.value.message)


async def test_cancelling_a_reader_is_not_idleness() -> None:
    """B112: a cancelled reader ends as cancelled."""
    reader = asyncio.create_task(next_message(silence(), 60.0))
    await asyncio.wait([reader], timeout=0.01)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader


async def test_first_load_report_comes_at_once() -> None:
    """Nobody waits a period to see how busy a replica is."""
    reports = watch_load(60_000, lambda: ReplicaLoad(num_queued=3))
    assert 3 == (await anext(reports)).queued_count


async def test_load_reports_follow_the_load() -> None:
    """Each report is taken when it is sent."""
    counts = iter(range(10))
    reports = watch_load(10, lambda: ReplicaLoad(num_queued=next(counts)))
    assert [0, 1, 2] == [(await anext(reports)).queued_count for _ in range(3)]


async def test_load_reports_too_often() -> None:
    """The period is checked before the first report."""
    with pytest.raises(InvalidArgument, match="period_ms"):
        await anext(watch_load(1, ReplicaLoad))


# Opening -----------------------------------------------------------------------------------------


class SlowEngine:
    """An engine that opens a sequence when it is told to."""

    def __init__(self) -> None:
        self.opening: Future[Any] = Future()
        self.opening.set_running_or_notify_cancel()
        self.closed: list[Any] = []

    def open(self, session: SessionSpec) -> Future[Any]:
        """Starts to open."""
        return self.opening

    def close(self, sequence: Any) -> None:
        """Notes what was closed."""
        self.closed.append(sequence)


async def test_opened_sequence_is_the_callers() -> None:
    """Nothing is closed behind its back."""
    engine: Any = SlowEngine()
    engine.opening.set_result("sequence")
    opened: Any = await open_sequence(engine, SPEC)
    assert "sequence" == opened
    assert [] == engine.closed


async def test_cancelled_opening_leaves_nothing_behind() -> None:
    """B59: a caller that goes while the engine is busy takes its sequence with it."""
    engine: Any = SlowEngine()
    opening = asyncio.create_task(open_sequence(engine, SPEC))
    await asyncio.wait([opening], timeout=0.01)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert [] == engine.closed
    engine.opening.set_result("sequence")
    assert ["sequence"] == engine.closed


def test_ids_outside_the_vocabulary() -> None:
    """B47: the limit is named; the last id of the vocabulary is in it."""
    identity = ModelIdentity("tiny", "f", "t", 3, (), 256, "float32")
    check_token_ids(SPEC, identity)
    with pytest.raises(InvalidArgument) as caught:
        check_token_ids(SPEC, ModelIdentity("tiny", "f", "t", 2, (), 256, "float32"))
    assert ("session.token_ids", "ids must be under 2") == (
        caught.value.field,
        caught.value.description,
    )
