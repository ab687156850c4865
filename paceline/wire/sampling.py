"""Sampling parameters and rules: every field is checked here or refused by name."""

from __future__ import annotations

from paceline.errors import InvalidArgument
from paceline.records import (
    SamplingParams,
    VerificationRule,
)
from paceline.v1 import speculation_pb2

MAX_TEMPERATURE = 100.0
UNSUPPORTED = "is not supported by this build"


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
            raise InvalidArgument(f"{field}.{name}", UNSUPPORTED, reason="UNSUPPORTED_PARAMETER")


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


def encode_rule(rule: VerificationRule) -> speculation_pb2.VerificationRule.ValueType:
    """The value of a rule on the wire."""
    return speculation_pb2.VerificationRule.ValueType(rule.value)
