"""DraftService on the wire: messages to records, records to messages.

The reader of a stream always runs, so that a newer Advance supersedes the drafting of an older one
and the end of the stream is noticed while a block is drafted.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from functools import partial

from draft_service.config import DraftConfig
from draft_service.drafters import Drafter, DraftSession
from draft_service.drafters.model import ModelDrafter
from draft_service.metrics import DraftMetrics, told
from draft_service.sources import load_drafters
from paceline import wire
from paceline.engine.engine import Engine
from paceline.errors import Aborted, InvalidArgument, NotFound, Unavailable, Unimplemented
from paceline.pairing import check_pair
from paceline.records import Proposal, ReplicaLoad
from paceline.serving.endpoints import Context, Endpoint, Shape
from paceline.serving.metrics import new_registry
from paceline.serving.tracing import Tracer, Untraced, rpc_attributes, traceparent_of
from paceline.tier import Sessions, next_message, watch_load
from paceline.tier_metrics import TierCollector
from paceline.v1 import draft_pb2

Requests = AsyncIterator[draft_pb2.DraftRequest]
# What a session's stream has to write: a proposal, its failure, or None at its end.
Outbox = asyncio.Queue[Proposal | BaseException | None]


class DraftService:
    """The sources of one replica, served."""

    name = "paceline.v1.DraftService"

    def __init__(self, config: DraftConfig) -> None:
        self._config = config
        self._sessions = Sessions(config.max_sessions)
        self._drafters: dict[str, Drafter] = {}
        self._tracer: Tracer = Untraced()
        self.registry = new_registry()
        self._metrics = DraftMetrics(self.registry)
        self.registry.register(TierCollector("draft", self._sessions, self._engines))

    @property
    def is_healthy(self) -> bool:
        """Whether every source can still draft."""
        return all(drafter.is_alive for drafter in self._drafters.values())

    def endpoints(self) -> Sequence[Endpoint]:
        """Every RPC of draft.proto."""
        return (
            Endpoint("Draft", Shape.BIDI, draft_pb2.DraftRequest, self.draft),
            Endpoint(
                "DescribeModel",
                Shape.UNARY,
                draft_pb2.DraftServiceDescribeModelRequest,
                self.describe_model,
            ),
            Endpoint(
                "WatchLoad",
                Shape.SERVER_STREAM,
                draft_pb2.DraftServiceWatchLoadRequest,
                self.watch_load,
            ),
        )

    async def start(self) -> None:
        """Loads the sources and warms them up."""
        self._tracer = self._config.tracer()
        self._drafters = await asyncio.to_thread(load_drafters, self._config)

    async def drain(self) -> None:
        """Waits until the last session has gone."""
        await self._sessions.drain()

    async def stop(self) -> None:
        """Ends the sources."""
        for drafter in self._drafters.values():
            await asyncio.to_thread(drafter.stop)
        await asyncio.to_thread(self._tracer.close)

    async def draft(
        self, requests: Requests, context: Context
    ) -> AsyncIterator[draft_pb2.DraftResponse]:
        """Runs one session; see draft.proto."""
        first = await next_message(requests, self._config.idle_timeout_s)
        if first is None:
            return
        if not first.HasField("open"):
            raise InvalidArgument("open", "must be the first message of a session")
        self._sessions.enter()
        span = self._tracer.start(
            "paceline.v1.DraftService/Draft",
            traceparent_of(context.invocation_metadata()),
            rpc_attributes(self.name, "Draft"),
        )
        try:
            session = await self._open(first.open)
            outbox: Outbox = asyncio.Queue()
            reader = asyncio.create_task(self._read(requests, session, outbox))
            try:
                yield draft_pb2.DraftResponse(opened=wire.encode_draft_opened(session.opened))
                while (item := await outbox.get()) is not None:
                    if isinstance(item, BaseException):
                        raise item
                    self._metrics.observe(session.opened.source, item)
                    span.round(item.round, item.draft_s, told(session.opened.source, item))
                    yield draft_pb2.DraftResponse(proposal=wire.encode_proposal(item))
            finally:
                reader.cancel()
                session.close()
        finally:
            span.end(sys.exception())
            self._sessions.leave()

    async def describe_model(
        self, request: draft_pb2.DraftServiceDescribeModelRequest, context: Context
    ) -> draft_pb2.DraftServiceDescribeModelResponse:
        """Lists the sources."""
        return draft_pb2.DraftServiceDescribeModelResponse(
            sources=[wire.encode_source(d.source) for d in self._drafters.values()],
            max_draft_tokens=self._config.max_draft_tokens,
            zone=self._config.zone,
        )

    async def watch_load(
        self, request: draft_pb2.DraftServiceWatchLoadRequest, context: Context
    ) -> AsyncIterator[draft_pb2.DraftServiceWatchLoadResponse]:
        """Streams load reports."""
        async for load in watch_load(request.period_ms, self._load):
            yield draft_pb2.DraftServiceWatchLoadResponse(load=load)

    async def _open(self, message: draft_pb2.DraftOpen) -> DraftSession:
        name = message.source or next(iter(self._drafters))
        drafter = self._drafters.get(name)
        if drafter is None:
            known = ", ".join(self._drafters)
            raise NotFound(
                f"draft source {name!r} is not served here; these are: {known}",
                reason="SOURCE_NOT_FOUND",
            )
        spec = wire.decode_session(message.session)
        check_pair(drafter.source.model, wire.decode_identity(message.target), spec.rule)
        return await drafter.open(spec)

    async def _read(self, requests: Requests, session: DraftSession, outbox: Outbox) -> None:
        """Hands every message of a stream to its session; what fails ends the stream.

        What was asked for before the half-close of the stream is still answered.
        """
        loop = asyncio.get_running_loop()
        overtaken = partial(self._metrics.supersede, session.opened.source)
        last: Future[Proposal] | None = None
        try:
            while (
                request := await next_message(requests, self._config.idle_timeout_s)
            ) is not None:
                if not request.HasField("advance"):
                    raise InvalidArgument("advance", "must be set after the first message")
                if request.advance.HasField("lookahead"):
                    raise Unimplemented("advance.lookahead: outcome tables are not served")
                advance = wire.decode_advance(request.advance)
                future = session.advance(advance)
                is_answered = advance.num_draft_tokens > 0

                def deliver(done: Future[Proposal], is_answered: bool = is_answered) -> None:
                    loop.call_soon_threadsafe(_deliver, done, is_answered, outbox, overtaken)

                future.add_done_callback(deliver)
                last = future if is_answered else None
            if last is not None:
                await asyncio.wait([asyncio.wrap_future(last)])
            outbox.put_nowait(None)
        except Exception as error:
            outbox.put_nowait(error)

    def _engines(self) -> dict[str, Engine]:
        return {n: d.engine for n, d in self._drafters.items() if isinstance(d, ModelDrafter)}

    def _load(self) -> ReplicaLoad:
        if not self.is_healthy:
            raise Unavailable("a source's engine has ended", reason="ENGINE_ENDED")
        loads = [drafter.load() for drafter in self._drafters.values()]
        return self._sessions.stamp(
            ReplicaLoad(
                num_queued=sum(load.num_queued for load in loads),
                num_rows=sum(load.num_rows for load in loads),
                num_held_blocks=sum(load.num_held_blocks for load in loads),
                num_free_blocks=sum(load.num_free_blocks for load in loads),
            )
        )


def _deliver(
    done: Future[Proposal], is_answered: bool, outbox: Outbox, overtaken: Callable[[], None]
) -> None:
    """Puts what became of an advance into the outbox; a superseded one has no answer."""
    error = done.exception()
    if error is None:
        if is_answered:
            outbox.put_nowait(done.result())
    elif isinstance(error, Aborted) and error.reason == "SUPERSEDED":
        overtaken()
    else:
        outbox.put_nowait(error)
