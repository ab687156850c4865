"""What the two model tiers have in common: the settings of an engine, and the life of a session.

The one module that sees both the serving side and the engine side; it belongs to neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Literal, TypeVar

import structlog
from pydantic import Field

from paceline import wire
from paceline.engine.assembly import EngineSettings
from paceline.engine.constraint import Grammars, Matcher
from paceline.engine.engine import Engine
from paceline.engine.sequence import Sequence
from paceline.errors import Aborted, Exhausted, InvalidArgument, Unavailable
from paceline.records import ModelIdentity, ReplicaLoad, SessionSpec
from paceline.serving.config import CACHE_DIR, ServerConfig
from paceline.serving.placement import parse_cores
from paceline.v1 import speculation_pb2

T = TypeVar("T")
_log = structlog.get_logger(__name__)


class EngineConfig(ServerConfig):
    """The settings of a service that runs a model."""

    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32", description="element type of weights and arithmetic"
    )
    device: str = Field(default="cpu", description="cpu, cuda or cuda:N")
    max_length: int = Field(
        default=0, ge=0, description="longest sequence in tokens; 0 takes the model's own limit"
    )
    memory_mib: int = Field(
        default=4096,
        ge=1,
        description="MiB for weights, workspace and KV cache of one model together",
    )
    block_size: int = Field(
        default=0,
        ge=0,
        le=256,
        description="tokens per KV block; 0 takes 16 on the CPU, 256 on CUDA, which knows no other",
    )
    max_rows: int = Field(
        default=512, ge=32, description="rows of one step; longer prompts are prefilled in chunks"
    )
    max_draft_tokens: int = Field(default=16, ge=1, le=30, description="longest proposal in tokens")
    max_sessions: int = Field(default=256, ge=1, description="sessions open at once")
    step_limit_s: float = Field(
        default=300.0,
        gt=0,
        allow_inf_nan=False,
        description="seconds after which a step of the model counts as stuck, which ends the "
        "process's health",
    )
    idle_timeout_s: float = Field(
        default=60.0,
        gt=0,
        allow_inf_nan=False,
        description="seconds without a message that end a session",
    )
    threads: int = Field(
        default=0,
        ge=0,
        description="CPU threads of one step, never more than `cores` has; 0 takes all cores",
    )
    exact: bool = Field(
        default=False,
        description="float32, int8 and int4 on the CPU: no bit of a row depends on rows beside it",
    )
    cache_dir: Path = Field(default=CACHE_DIR, description="where converted models are kept")

    @property
    def num_threads(self) -> int:
        """CPU threads of one step; 0 leaves it to the libraries. Two on one core would fight."""
        num_cores = len(parse_cores(self.cores))
        return min(self.threads or num_cores, num_cores) if num_cores else self.threads

    def engine_settings(self) -> EngineSettings:
        """The settings as the engine takes them."""
        return EngineSettings(
            cache_dir=self.cache_dir.expanduser(),
            dtype=self.dtype,
            device=self.device,
            max_length=self.max_length,
            memory_bytes=self.memory_mib << 20,
            block_size=self.block_size,
            max_rows=self.max_rows,
            max_draft_tokens=self.max_draft_tokens,
            max_sessions=self.max_sessions,
            step_limit_s=self.step_limit_s,
            num_threads=self.num_threads,
            exact=self.exact,
        )


def report_progress(text: str) -> None:
    """Logs what loading is doing, a line at a time."""
    for line in text.splitlines():
        _log.info("loading", step=line)


class Sessions:
    """How many sessions are open, and whether new ones are let in."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._num_open = 0
        self.num_opened = 0
        """Sessions let in since the start."""
        self._is_draining = False
        self._none_open = asyncio.Event()
        self._none_open.set()

    @property
    def num_open(self) -> int:
        """Sessions open now."""
        return self._num_open

    def enter(self) -> None:
        """Lets a session in.

        Raises:
            Exhausted: as many as may be are open.
        """
        if self._num_open >= self._limit:
            raise Exhausted(f"{self._limit} sessions are open", reason="SESSIONS_EXHAUSTED")
        self._num_open += 1
        self.num_opened += 1
        self._none_open.clear()

    def leave(self) -> None:
        """Lets a session go."""
        self._num_open -= 1
        if self._num_open == 0:
            self._none_open.set()

    async def drain(self) -> None:
        """Returns when the last session has gone."""
        self._is_draining = True
        await self._none_open.wait()

    def stamp(self, load: ReplicaLoad) -> ReplicaLoad:
        """A load report with what is known here."""
        return ReplicaLoad(
            self._num_open,
            load.num_queued,
            load.num_rows,
            load.num_held_blocks,
            load.num_free_blocks,
            self._is_draining,
            load.audit,
        )


async def next_message(requests: AsyncIterator[T], idle_timeout_s: float) -> T | None:
    """The next message of a session's stream, or None at its end.

    Raises:
        Aborted: none came in time: the peer may have vanished.
    """
    try:
        async with asyncio.timeout(idle_timeout_s):
            return await anext(requests, None)
    except TimeoutError:
        raise Aborted(f"no message for {idle_timeout_s:g} s", reason="SESSION_IDLE") from None


def require_alive(engine: Engine) -> None:
    """Lets a call pass only while there is an engine to serve it.

    Raises:
        Unavailable: the engine has ended; another replica will do better.
    """
    if not engine.is_alive:
        raise Unavailable("the engine has ended", reason="ENGINE_ENDED")


async def watch_load(
    period_ms: int, load: Callable[[], ReplicaLoad]
) -> AsyncIterator[speculation_pb2.ReplicaLoad]:
    """Load reports, one per period, the first at once.

    Raises:
        InvalidArgument: the period is out of range.
    """
    period_s = wire.watch_period_s(period_ms)
    while True:
        yield wire.encode_load(load())
        await asyncio.sleep(period_s)


async def settled(future: Future[T]) -> T:
    """What the engine's thread makes of a future; who is cancelled here leaves it running.

    `asyncio.wrap_future` does the same in twice the time, and every round waits for it.
    """
    loop = asyncio.get_running_loop()
    waiting = loop.create_future()

    def wake() -> None:
        if not waiting.done():
            waiting.set_result(None)

    def hand_over(_: Future[T]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(wake)

    future.add_done_callback(hand_over)
    await waiting
    return future.result()


async def open_sequence(engine: Engine, session: SessionSpec) -> Sequence:
    """Opens a session's sequence; a caller that is cancelled meanwhile leaves none behind."""
    opening = engine.open(session)
    try:
        return await settled(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(lambda opened: engine.close(opened.result()))
        raise


async def open_matcher(grammars: Grammars, session: SessionSpec) -> Matcher | None:
    """The matcher of a session's constraint, if it has one; made beside the event loop.

    Raises:
        InvalidArgument: as `Grammars.matcher`.
    """
    if session.sampling.constraint is None:
        return None
    return await asyncio.to_thread(grammars.matcher, session)


def check_token_ids(session: SessionSpec, identity: ModelIdentity) -> None:
    """Checks that the model knows a session's tokens, and those that its parameters name.

    Raises:
        InvalidArgument: an id is outside the vocabulary.
    """
    size = identity.vocabulary_size
    fields = {"token_ids": session.token_ids} | {
        f"sampling.{name}": ids for name, ids in session.sampling.token_ids_by_field.items()
    }
    for name, ids in fields.items():
        if max(ids, default=0) >= size:
            raise InvalidArgument(f"session.{name}", f"ids must be under {size}")
