"""Messages to records and back: the only codec, and the only place that validates fields.

Decoding raises `InvalidArgument` naming the field and its limit. What a field means is written in
the proto files; what a record means, in `records.py`. Models, vocabularies and limits of a replica
are not known here: the services check ids and lengths against their own.
"""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf import duration_pb2

from paceline.errors import FailedPrecondition, InvalidArgument
from paceline.records import (
    PROTOCOL_REVISION,
    Advance,
    DraftSource,
    LawEncoding,
    ModelIdentity,
    Opened,
    Proposal,
    ReplicaLoad,
    SamplingParams,
    SessionSpec,
    Verdict,
    VerdictKind,
    VerificationRule,
)
from paceline.v1 import draft_pb2, speculation_pb2, verify_pb2

MAX_TEMPERATURE = 100.0
_UNSUPPORTED = "is not supported by this build"


def duration(seconds: float) -> duration_pb2.Duration:
    """A protobuf duration of `seconds`, at least 0."""
    nanos = max(0, round(seconds * 1e9))
    return duration_pb2.Duration(seconds=nanos // 1_000_000_000, nanos=nanos % 1_000_000_000)


def seconds(message: duration_pb2.Duration) -> float:
    """The seconds of a protobuf duration."""
    return message.seconds + message.nanos * 1e-9


# Sampling parameters ----------------------------------------------------------------------------


def decode_sampling(
    message: speculation_pb2.SamplingParams, *, field: str = "sampling"
) -> SamplingParams:
    """The record of a message, defaults filled in.

    Raises:
        InvalidArgument: a value is out of range, or a parameter is not supported.
    """
    _refuse_unsupported(message, field)
    temperature = message.temperature if message.HasField("temperature") else 1.0
    if not 0.0 <= temperature <= MAX_TEMPERATURE:  # also false for NaN
        raise InvalidArgument(
            f"{field}.temperature", f"must be in [0, {MAX_TEMPERATURE:g}], got {temperature:g}"
        )
    top_k = message.top_k if message.HasField("top_k") else 0
    if message.HasField("top_k") and top_k < 1:
        raise InvalidArgument(f"{field}.top_k", f"must be at least 1, got {top_k}")
    top_p = message.top_p if message.HasField("top_p") else 1.0
    if not 0.0 < top_p <= 1.0:
        raise InvalidArgument(f"{field}.top_p", f"must be in (0, 1], got {top_p:g}")
    return SamplingParams(temperature, top_k, top_p, tuple(message.stop_token_ids))


def _refuse_unsupported(message: speculation_pb2.SamplingParams, field: str) -> None:
    """Refuses every parameter that would change the law and is not served yet."""
    active = {
        "min_p": message.min_p != 0.0,
        "repetition_penalty": message.HasField("repetition_penalty")
        and message.repetition_penalty != 1.0,
        "presence_penalty": message.presence_penalty != 0.0,
        "frequency_penalty": message.frequency_penalty != 0.0,
        "logit_bias": bool(message.logit_bias),
        "min_tokens": message.min_tokens != 0,
        "banned_sequences": bool(message.banned_sequences),
        "log_prob_count": message.HasField("log_prob_count"),
        "prompt_log_prob_count": message.HasField("prompt_log_prob_count"),
        "constraint": message.HasField("constraint"),
    }
    for name, is_active in active.items():
        if is_active:
            raise InvalidArgument(f"{field}.{name}", _UNSUPPORTED, reason="UNSUPPORTED_PARAMETER")


def encode_sampling(sampling: SamplingParams) -> speculation_pb2.SamplingParams:
    """The message of a record."""
    return speculation_pb2.SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k or None,
        top_p=sampling.top_p,
        stop_token_ids=sampling.stop_token_ids,
    )


def decode_rule(value: int, *, field: str) -> VerificationRule:
    """The record of a rule.

    Raises:
        InvalidArgument: unspecified or unknown.
    """
    try:
        return VerificationRule(value)
    except ValueError:
        raise InvalidArgument(field, f"must name a verification rule, got {value}") from None


# Sessions ---------------------------------------------------------------------------------------


def decode_session(message: speculation_pb2.SessionSpec) -> SessionSpec:
    """The record of a session.

    Raises:
        InvalidArgument: a field is malformed.
        FailedPrecondition: the peer speaks another revision of the protocol.
    """
    if message.protocol_revision != PROTOCOL_REVISION:
        raise FailedPrecondition(
            f"protocol revision {message.protocol_revision} was sent, {PROTOCOL_REVISION} is "
            "spoken here",
            reason="PROTOCOL_REVISION",
        )
    if not message.token_ids:
        raise InvalidArgument("session.token_ids", "must hold at least one id")
    if not 1 <= message.prompt_length <= len(message.token_ids):
        raise InvalidArgument(
            "session.prompt_length",
            f"must be in [1, {len(message.token_ids)}], got {message.prompt_length}",
        )
    return SessionSpec(
        token_ids=tuple(message.token_ids),
        prompt_length=message.prompt_length,
        sampling=decode_sampling(message.sampling, field="session.sampling"),
        rule=decode_rule(message.rule, field="session.rule"),
        seed=message.seed,
        sample_index=message.sample_index,
        cache_domain=message.cache_domain,
        arrival_time_s=message.arrival_time.seconds + message.arrival_time.nanos * 1e-9,
        request_id=message.request_id,
    )


def encode_session(session: SessionSpec) -> speculation_pb2.SessionSpec:
    """The message of a session."""
    message = speculation_pb2.SessionSpec(
        token_ids=session.token_ids,
        prompt_length=session.prompt_length,
        sampling=encode_sampling(session.sampling),
        rule=_rule_value(session.rule),
        seed=session.seed,
        sample_index=session.sample_index,
        cache_domain=session.cache_domain,
        request_id=session.request_id,
        protocol_revision=PROTOCOL_REVISION,
    )
    # In two parts: the product of Unix time and 1e9 has more digits than a float.
    whole_s, fraction_s = divmod(session.arrival_time_s, 1.0)
    message.arrival_time.FromNanoseconds(int(whole_s) * 10**9 + round(fraction_s * 1e9))
    return message


def _rule_value(rule: VerificationRule) -> speculation_pb2.VerificationRule.ValueType:
    return speculation_pb2.VerificationRule.ValueType(rule.value)


# Proposals and verdicts -------------------------------------------------------------------------


def decode_proposal(message: speculation_pb2.Proposal) -> Proposal:
    """The record of a proposal; the law stays bytes.

    Raises:
        InvalidArgument: it is a tree, or tokens come without a law encoding.
    """
    if message.parent_indices:
        raise InvalidArgument(
            "proposal.parent_indices", _UNSUPPORTED, reason="UNSUPPORTED_PARAMETER"
        )
    if not message.token_ids:
        return Proposal(message.round, message.base_length)
    try:
        encoding = LawEncoding(message.law_encoding)
    except ValueError:
        raise InvalidArgument(
            "proposal.law_encoding", f"must name an encoding, got {message.law_encoding}"
        ) from None
    return Proposal(
        message.round,
        message.base_length,
        tuple(message.token_ids),
        encoding,
        message.law,
        seconds(message.draft_duration),
    )


def encode_proposal(proposal: Proposal) -> speculation_pb2.Proposal:
    """The message of a proposal."""
    message = speculation_pb2.Proposal(round=proposal.round, base_length=proposal.base_length)
    if proposal.token_ids:
        message.token_ids.extend(proposal.token_ids)
        message.law_encoding = speculation_pb2.LawEncoding.ValueType(proposal.encoding.value)
        message.law = proposal.law
        message.draft_duration.CopyFrom(duration(proposal.draft_s))
    return message


def decode_verdict(message: speculation_pb2.Verdict) -> Verdict:
    """The record of a verdict.

    Raises:
        InvalidArgument: the kind is unspecified or unknown.
    """
    try:
        kind = VerdictKind(message.kind)
    except ValueError:
        raise InvalidArgument("verdict.kind", f"must name a kind, got {message.kind}") from None
    return Verdict(
        round=message.round,
        num_accepted=message.accepted_count,
        next_token_id=message.next_token_id,
        kind=kind,
        committed_length=message.committed_length,
        queue_s=seconds(message.queue_duration),
        forward_s=seconds(message.forward_duration),
        load=decode_load(message.load),
    )


def encode_verdict(verdict: Verdict) -> speculation_pb2.Verdict:
    """The message of a verdict."""
    return speculation_pb2.Verdict(
        round=verdict.round,
        accepted_count=verdict.num_accepted,
        next_token_id=verdict.next_token_id,
        kind=speculation_pb2.VerdictKind.ValueType(verdict.kind.value),
        committed_length=verdict.committed_length,
        queue_duration=duration(verdict.queue_s),
        forward_duration=duration(verdict.forward_s),
        load=encode_load(verdict.load),
    )


def decode_advance(message: draft_pb2.Advance) -> Advance:
    """The record of an advance.

    Raises:
        InvalidArgument: a count is negative.
    """
    if message.draft_token_count < 0:
        raise InvalidArgument(
            "advance.draft_token_count", f"must be at least 0, got {message.draft_token_count}"
        )
    return Advance(
        message.round,
        message.committed_length,
        tuple(message.new_token_ids),
        message.draft_token_count,
    )


def encode_advance(advance: Advance) -> draft_pb2.Advance:
    """The message of an advance."""
    return draft_pb2.Advance(
        round=advance.round,
        committed_length=advance.committed_length,
        new_token_ids=advance.new_token_ids,
        draft_token_count=advance.num_draft_tokens,
    )


# What replicas say of themselves ----------------------------------------------------------------


def decode_load(message: speculation_pb2.ReplicaLoad) -> ReplicaLoad:
    """The record of a load report."""
    return ReplicaLoad(
        message.open_session_count,
        message.queued_count,
        message.row_count,
        message.held_block_count,
        message.free_block_count,
        message.is_draining,
    )


def encode_load(load: ReplicaLoad) -> speculation_pb2.ReplicaLoad:
    """The message of a load report."""
    return speculation_pb2.ReplicaLoad(
        open_session_count=load.num_open_sessions,
        queued_count=load.num_queued,
        row_count=load.num_rows,
        held_block_count=load.num_held_blocks,
        free_block_count=load.num_free_blocks,
        is_draining=load.is_draining,
    )


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


def decode_opened(message: verify_pb2.VerifyOpened | draft_pb2.DraftOpened) -> Opened:
    """The record of a session that exists, of either tier."""
    source = message.source if isinstance(message, draft_pb2.DraftOpened) else ""
    return Opened(
        message.cached_prefix_length, message.max_length, message.max_draft_tokens, source
    )


def encode_verify_opened(opened: Opened) -> verify_pb2.VerifyOpened:
    """The message of a verify session that exists."""
    return verify_pb2.VerifyOpened(
        cached_prefix_length=opened.cached_prefix_length,
        max_length=opened.max_length,
        max_draft_tokens=opened.max_draft_tokens,
    )


def encode_draft_opened(opened: Opened) -> draft_pb2.DraftOpened:
    """The message of a draft session that exists."""
    return draft_pb2.DraftOpened(
        cached_prefix_length=opened.cached_prefix_length,
        max_length=opened.max_length,
        max_draft_tokens=opened.max_draft_tokens,
        source=opened.source,
    )


def watch_period_s(period_ms: int) -> float:
    """The period of load reports in seconds.

    Raises:
        InvalidArgument: out of range.
    """
    if period_ms == 0:
        return 1.0
    if not 10 <= period_ms <= 60_000:
        raise InvalidArgument("period_ms", f"must be in [10, 60000], got {period_ms}")
    return period_ms / 1000
