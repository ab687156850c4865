"""Proposals, verdicts and advances: what a round says. The law inside a proposal stays bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from paceline.errors import InvalidArgument
from paceline.records import (
    Advance,
    LawEncoding,
    Proposal,
    TokenLogProbs,
    Verdict,
    VerdictKind,
)
from paceline.v1 import draft_pb2, speculation_pb2
from paceline.wire.durations import fill_duration, seconds
from paceline.wire.replicas import decode_load, fill_load
from paceline.wire.sampling import (
    UNSUPPORTED,
)


def decode_proposal(message: speculation_pb2.Proposal) -> Proposal:
    """The record of a proposal; the law stays bytes.

    Raises:
        InvalidArgument: it is a tree, or tokens come without a law encoding.
    """
    if message.parent_indices:
        raise InvalidArgument(
            "proposal.parent_indices", UNSUPPORTED, reason="UNSUPPORTED_PARAMETER"
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
    if not proposal.token_ids:
        return speculation_pb2.Proposal(round=proposal.round, base_length=proposal.base_length)
    message = speculation_pb2.Proposal(
        round=proposal.round,
        base_length=proposal.base_length,
        token_ids=proposal.token_ids,
        law_encoding=speculation_pb2.LawEncoding.ValueType(proposal.encoding.value),
        law=proposal.law,
    )
    fill_duration(message.draft_duration, proposal.draft_s)
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
        log_probs=_decode_log_probs(message.log_probs),
        prompt_log_probs=_decode_log_probs(message.prompt_log_probs),
        margin=message.margin if message.HasField("margin") else None,
    )


def encode_verdict(verdict: Verdict) -> speculation_pb2.Verdict:
    """The message of a verdict."""
    message = speculation_pb2.Verdict(
        round=verdict.round,
        accepted_count=verdict.num_accepted,
        next_token_id=verdict.next_token_id,
        kind=speculation_pb2.VerdictKind.ValueType(verdict.kind.value),
        committed_length=verdict.committed_length,
        log_probs=encode_log_probs(verdict.log_probs),
        prompt_log_probs=encode_log_probs(verdict.prompt_log_probs),
        margin=verdict.margin,
    )
    fill_duration(message.queue_duration, verdict.queue_s)
    fill_duration(message.forward_duration, verdict.forward_s)
    fill_load(message.load, verdict.load)
    return message


def encode_log_probs(log_probs: Iterable[TokenLogProbs]) -> list[speculation_pb2.TokenLogProbs]:
    """The messages of the log-probabilities of some tokens."""
    return [
        speculation_pb2.TokenLogProbs(
            chosen=one.chosen, top_token_ids=one.top_token_ids, top_log_probs=one.top_log_probs
        )
        for one in log_probs
    ]


def _decode_log_probs(
    messages: Sequence[speculation_pb2.TokenLogProbs],
) -> tuple[TokenLogProbs, ...]:
    if not messages:
        return ()
    return tuple(
        TokenLogProbs(one.chosen, tuple(one.top_token_ids), tuple(one.top_log_probs))
        for one in messages
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
