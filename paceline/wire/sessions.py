"""What opens a session, and the answer to it."""

from __future__ import annotations

from paceline.errors import FailedPrecondition, InvalidArgument
from paceline.records import (
    PROTOCOL_REVISION,
    Opened,
    SessionSpec,
)
from paceline.v1 import draft_pb2, speculation_pb2, verify_pb2
from paceline.wire.sampling import (
    decode_rule,
    decode_sampling,
    encode_rule,
    encode_sampling,
)


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
    if message.sample_index < 0:
        raise InvalidArgument(
            "session.sample_index", f"must be at least 0, got {message.sample_index}"
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
        has_fresh_seed=message.has_fresh_seed,
    )


def encode_session(session: SessionSpec) -> speculation_pb2.SessionSpec:
    """The message of a session."""
    message = speculation_pb2.SessionSpec(
        token_ids=session.token_ids,
        prompt_length=session.prompt_length,
        sampling=encode_sampling(session.sampling),
        rule=encode_rule(session.rule),
        seed=session.seed,
        sample_index=session.sample_index,
        cache_domain=session.cache_domain,
        request_id=session.request_id,
        protocol_revision=PROTOCOL_REVISION,
        has_fresh_seed=session.has_fresh_seed,
    )
    # In two parts: the product of Unix time and 1e9 has more digits than a float.
    whole_s, fraction_s = divmod(session.arrival_time_s, 1.0)
    message.arrival_time.FromNanoseconds(int(whole_s) * 10**9 + round(fraction_s * 1e9))
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
