"""What the replicas of either tier say of themselves, and how they are asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

import grpc

from gateway.replicas import Replicas, TierClient
from gateway.tokenizer import Tokenizer
from gateway.tokenizers import Tokenizers
from paceline import wire
from paceline.records import DraftSource, ModelIdentity, ReplicaLoad, VerificationRule
from paceline.v1 import draft_pb2, draft_pb2_grpc, verify_pb2, verify_pb2_grpc

_TIMEOUT_S = 10.0
_LOAD_PERIOD_MS = 500


@dataclass(frozen=True, slots=True)
class Target:
    """What a verify replica serves."""

    model: ModelIdentity
    max_draft_tokens: int
    rules: frozenset[VerificationRule]
    tokenizer: Tokenizer
    zone: str = ""


@dataclass(frozen=True, slots=True)
class Sources:
    """What a draft replica serves, the default first."""

    sources: tuple[DraftSource, ...]
    max_draft_tokens: int
    zone: str = ""


@dataclass(frozen=True, slots=True)
class Tiers:
    """Both sides of the pair."""

    targets: Replicas[Target]
    sources: Replicas[Sources]


def verify_tier(tokenizers: Tokenizers) -> TierClient[Target]:
    """How verify replicas are asked; a target comes with its tokenizer, so ready means usable."""
    return TierClient("verify", partial(_describe_target, tokenizers), _watch_target)


def draft_tier() -> TierClient[Sources]:
    """How draft replicas are asked."""
    return TierClient("draft", _describe_sources, _watch_sources)


async def _describe_target(tokenizers: Tokenizers, channel: grpc.aio.Channel) -> Target:
    stub = verify_pb2_grpc.VerifyServiceStub(channel)
    answer = await stub.DescribeModel(
        verify_pb2.VerifyServiceDescribeModelRequest(), timeout=_TIMEOUT_S
    )
    model = wire.decode_identity(answer.model)

    async def fetch() -> bytes:
        pieces = stub.GetTokenizer(verify_pb2.GetTokenizerRequest(), timeout=6 * _TIMEOUT_S)
        return b"".join([piece.chunk async for piece in pieces])

    return Target(
        model,
        answer.max_draft_tokens,
        frozenset(wire.decode_rule(rule, field="rules") for rule in answer.rules),
        await tokenizers.get(model.fingerprint, fetch),
        answer.zone,
    )


async def _describe_sources(channel: grpc.aio.Channel) -> Sources:
    stub = draft_pb2_grpc.DraftServiceStub(channel)
    answer = await stub.DescribeModel(
        draft_pb2.DraftServiceDescribeModelRequest(), timeout=_TIMEOUT_S
    )
    return Sources(wire.decode_sources(answer.sources), answer.max_draft_tokens, answer.zone)


async def _watch_target(channel: grpc.aio.Channel) -> AsyncIterator[ReplicaLoad]:
    stub = verify_pb2_grpc.VerifyServiceStub(channel)
    request = verify_pb2.VerifyServiceWatchLoadRequest(period_ms=_LOAD_PERIOD_MS)
    async for report in stub.WatchLoad(request):
        yield wire.decode_load(report.load)


async def _watch_sources(channel: grpc.aio.Channel) -> AsyncIterator[ReplicaLoad]:
    stub = draft_pb2_grpc.DraftServiceStub(channel)
    request = draft_pb2.DraftServiceWatchLoadRequest(period_ms=_LOAD_PERIOD_MS)
    async for report in stub.WatchLoad(request):
        yield wire.decode_load(report.load)
