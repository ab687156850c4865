"""What replicas say of themselves: load, identity, draft sources."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.records import (
    AuditReport,
    AuditSum,
    DraftSource,
    ModelIdentity,
    ReplicaLoad,
)
from paceline.v1 import draft_pb2, speculation_pb2


def decode_load(message: speculation_pb2.ReplicaLoad) -> ReplicaLoad:
    """The record of a load report."""
    return ReplicaLoad(
        message.open_session_count,
        message.queued_count,
        message.row_count,
        message.held_block_count,
        message.free_block_count,
        message.is_draining,
        decode_audit(message.audit) if message.HasField("audit") else None,
    )


def encode_load(load: ReplicaLoad) -> speculation_pb2.ReplicaLoad:
    """The message of a load report."""
    message = speculation_pb2.ReplicaLoad()
    fill_load(message, load)
    return message


def fill_load(message: speculation_pb2.ReplicaLoad, load: ReplicaLoad) -> None:
    """Writes a load report into a message that is part of another: no copy is made."""
    message.open_session_count = load.num_open_sessions
    message.queued_count = load.num_queued
    message.row_count = load.num_rows
    message.held_block_count = load.num_held_blocks
    message.free_block_count = load.num_free_blocks
    message.is_draining = load.is_draining
    if load.audit:
        message.audit.CopyFrom(encode_audit(load.audit))


def decode_audit(message: speculation_pb2.AuditReport) -> AuditReport:
    """The record of an audit's report."""
    emitted, drafted = (
        AuditSum(one.token_count, one.total, one.variance, one.evidence)
        for one in (message.emitted, message.drafted)
    )
    return AuditReport(emitted, drafted)


def encode_audit(report: AuditReport) -> speculation_pb2.AuditReport:
    """The message of an audit's report."""
    emitted, drafted = (
        speculation_pb2.AuditSum(
            token_count=one.num_tokens,
            total=one.total,
            variance=one.variance,
            evidence=one.evidence,
        )
        for one in (report.emitted, report.drafted)
    )
    return speculation_pb2.AuditReport(emitted=emitted, drafted=drafted)


def decode_identity(message: speculation_pb2.ModelIdentity) -> ModelIdentity:
    """The record of a model's identity."""
    return ModelIdentity(
        name=message.name,
        fingerprint=message.fingerprint,
        tokenizer_fingerprint=message.tokenizer_fingerprint,
        vocabulary_size=message.vocabulary_size,
        eos_token_ids=tuple(message.eos_token_ids),
        max_length=message.max_length,
        dtype=message.dtype,
        quantization=message.quantization,
        exact=message.exact,
        noise_version=message.noise_version,
    )


def encode_identity(identity: ModelIdentity) -> speculation_pb2.ModelIdentity:
    """The message of a model's identity."""
    return speculation_pb2.ModelIdentity(
        name=identity.name,
        fingerprint=identity.fingerprint,
        tokenizer_fingerprint=identity.tokenizer_fingerprint,
        vocabulary_size=identity.vocabulary_size,
        eos_token_ids=identity.eos_token_ids,
        max_length=identity.max_length,
        dtype=identity.dtype,
        quantization=identity.quantization,
        exact=identity.exact,
        noise_version=identity.noise_version,
    )


def decode_sources(messages: Iterable[draft_pb2.DraftSource]) -> tuple[DraftSource, ...]:
    """The records of a draft replica's sources, the default first."""
    return tuple(
        DraftSource(m.name, decode_identity(m.model) if m.HasField("model") else None)
        for m in messages
    )


def encode_source(source: DraftSource) -> draft_pb2.DraftSource:
    """The message of a draft source."""
    message = draft_pb2.DraftSource(name=source.name)
    if source.model is not None:
        message.model.CopyFrom(encode_identity(source.model))
    return message
