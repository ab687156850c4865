"""VerifyService on the wire: messages to records, records to messages, and nothing more."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import AsyncIterator, Sequence

from paceline import wire
from paceline.engine.assembly import assemble
from paceline.engine.constraint import Grammars
from paceline.engine.engine import Engine
from paceline.errors import FailedPrecondition, InvalidArgument
from paceline.records import ReplicaLoad, VerificationRule
from paceline.serving.endpoints import Context, Endpoint, Shape
from paceline.serving.metrics import new_registry
from paceline.serving.tracing import Tracer, Untraced, rpc_attributes, traceparent_of
from paceline.tier import Sessions, next_message, report_progress, require_alive, watch_load
from paceline.tier_metrics import TierCollector
from paceline.v1 import speculation_pb2, verify_pb2
from verify_service.audit import Audit
from verify_service.config import VerifyConfig
from verify_service.metrics import VerifyMetrics, told
from verify_service.verifier import Verifier

_CHUNK_BYTES = 1 << 20


class VerifyService:
    """One target model, served."""

    name = "paceline.v1.VerifyService"

    def __init__(self, config: VerifyConfig) -> None:
        self._config = config
        self._sessions = Sessions(config.max_sessions)
        self._tokenizer_archive = b""
        self._verifier: Verifier | None = None
        self._tracer: Tracer = Untraced()
        self.registry = new_registry()
        self._metrics = VerifyMetrics(self.registry)
        self._audit = Audit(config.audit_share)
        self._metrics.watch_audit(lambda: self._audit.report)
        self.registry.register(TierCollector("verify", self._sessions, self._engines))

    def endpoints(self) -> Sequence[Endpoint]:
        """Every RPC of verify.proto."""
        return (
            Endpoint("Verify", Shape.BIDI, verify_pb2.VerifyRequest, self.verify),
            Endpoint(
                "DescribeModel",
                Shape.UNARY,
                verify_pb2.VerifyServiceDescribeModelRequest,
                self.describe_model,
            ),
            Endpoint(
                "GetTokenizer",
                Shape.SERVER_STREAM,
                verify_pb2.GetTokenizerRequest,
                self.get_tokenizer,
            ),
            Endpoint(
                "WatchLoad",
                Shape.SERVER_STREAM,
                verify_pb2.VerifyServiceWatchLoadRequest,
                self.watch_load,
            ),
        )

    async def start(self) -> None:
        """Loads the target and warms it up."""
        self._tracer = self._config.tracer()
        loaded, engine = await asyncio.to_thread(
            assemble, self._config.model, self._config.engine_settings(), report_progress
        )
        self._tokenizer_archive = loaded.tokenizer_archive
        grammars = await asyncio.to_thread(Grammars, loaded.tokenizer_archive, loaded.identity)
        self._verifier = Verifier(
            engine, loaded.identity, grammars, self._audit, self._sessions.stamp
        )

    async def drain(self) -> None:
        """Waits until the last session has gone."""
        await self._sessions.drain()

    async def stop(self) -> None:
        """Ends the engine."""
        if self._verifier is not None:
            await asyncio.to_thread(self._verifier.engine.stop)
        await asyncio.to_thread(self._tracer.close)

    async def verify(
        self, requests: AsyncIterator[verify_pb2.VerifyRequest], context: Context
    ) -> AsyncIterator[verify_pb2.VerifyResponse]:
        """Runs one session; see verify.proto."""
        idle_timeout_s = self._config.idle_timeout_s
        first = await next_message(requests, idle_timeout_s)
        if first is None:
            return
        if not first.HasField("open"):
            raise InvalidArgument("open", "must be the first message of a session")
        self._check_fingerprint(first.open.model_fingerprint)
        self._sessions.enter()
        span = self._tracer.start(
            "paceline.v1.VerifyService/Verify",
            traceparent_of(context.invocation_metadata()),
            rpc_attributes(self.name, "Verify"),
        )
        try:
            session = await self._ready.open(wire.decode_session(first.open.session))
            try:
                yield verify_pb2.VerifyResponse(opened=wire.encode_verify_opened(session.opened))
                while (request := await next_message(requests, idle_timeout_s)) is not None:
                    if not request.HasField("proposal"):
                        raise InvalidArgument("proposal", "must be set after the first message")
                    verdict = await session.verify(wire.decode_proposal(request.proposal))
                    self._metrics.observe(verdict)
                    span.round(verdict.round, verdict.queue_s + verdict.forward_s, told(verdict))
                    yield verify_pb2.VerifyResponse(verdict=wire.encode_verdict(verdict))
            finally:
                session.close()
        finally:
            span.end(sys.exception())
            self._sessions.leave()

    async def describe_model(
        self, request: verify_pb2.VerifyServiceDescribeModelRequest, context: Context
    ) -> verify_pb2.VerifyServiceDescribeModelResponse:
        """Describes the target."""
        return verify_pb2.VerifyServiceDescribeModelResponse(
            model=wire.encode_identity(self._ready.identity),
            max_draft_tokens=self._ready.max_draft_tokens,
            rules=[
                speculation_pb2.VerificationRule.ValueType(rule.value) for rule in VerificationRule
            ],
            zone=self._config.zone,
        )

    async def get_tokenizer(
        self, request: verify_pb2.GetTokenizerRequest, context: Context
    ) -> AsyncIterator[verify_pb2.GetTokenizerResponse]:
        """Streams the tokenizer's archive."""
        archive = self._tokenizer_archive
        for start in range(0, len(archive), _CHUNK_BYTES):
            yield verify_pb2.GetTokenizerResponse(chunk=archive[start : start + _CHUNK_BYTES])

    async def watch_load(
        self, request: verify_pb2.VerifyServiceWatchLoadRequest, context: Context
    ) -> AsyncIterator[verify_pb2.VerifyServiceWatchLoadResponse]:
        """Streams load reports."""
        async for load in watch_load(request.period_ms, self._load):
            yield verify_pb2.VerifyServiceWatchLoadResponse(load=load)

    @property
    def is_healthy(self) -> bool:
        """Whether the engine lives."""
        return self._verifier is not None and self._verifier.engine.is_alive

    @property
    def _ready(self) -> Verifier:
        assert self._verifier is not None, "calls are let in only after start"
        require_alive(self._verifier.engine)
        return self._verifier

    def _engines(self) -> dict[str, Engine]:
        return {} if self._verifier is None else {"target": self._verifier.engine}

    def _load(self) -> ReplicaLoad:
        return dataclasses.replace(self._ready.load, audit=self._audit.report)

    def _check_fingerprint(self, expected: str) -> None:
        ours = self._ready.identity
        if expected and expected != ours.fingerprint:
            raise FailedPrecondition(
                f"model {expected} is expected, {ours.fingerprint} ({ours.name}) is served here"
            )
