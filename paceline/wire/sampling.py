"""Sampling parameters and rules: every field is checked here or refused by name."""

from __future__ import annotations

from paceline.errors import InvalidArgument
from paceline.records import (
    Constraint,
    ConstraintKind,
    SamplingParams,
    VerificationRule,
)
from paceline.v1 import speculation_pb2

UNSUPPORTED = "is not supported by this build"
MAX_BIASES = 1024
MAX_BANNED_SEQUENCES = 1024
MAX_BANNED_LENGTH = 64
MAX_LOG_PROBS = 64
MAX_CONSTRAINT_CHARACTERS = 65536
# Name: default, least and greatest value.
_RANGES = {
    "temperature": (1.0, 0.0, 100.0),
    "min_p": (0.0, 0.0, 1.0),
    "repetition_penalty": (1.0, 0.01, 100.0),
    "presence_penalty": (0.0, -100.0, 100.0),
    "frequency_penalty": (0.0, -100.0, 100.0),
}
_BIAS_RANGE = (-100.0, 100.0)


def decode_sampling(
    message: speculation_pb2.SamplingParams, *, field: str = "sampling"
) -> SamplingParams:
    """The record of a message, defaults filled in.

    Raises:
        InvalidArgument: a value is out of range, or a parameter is not supported.
    """
    top_k = message.top_k if message.HasField("top_k") else 0
    if message.HasField("top_k") and top_k < 1:
        raise InvalidArgument(f"{field}.top_k", f"must be at least 1, got {top_k}")
    top_p = message.top_p if message.HasField("top_p") else 1.0
    if not 0.0 < top_p <= 1.0:  # also false for NaN
        raise InvalidArgument(f"{field}.top_p", f"must be in (0, 1], got {top_p:g}")
    if message.min_tokens < 0:
        raise InvalidArgument(
            f"{field}.min_tokens", f"must be at least 0, got {message.min_tokens}"
        )
    return SamplingParams(
        top_k=top_k,
        top_p=top_p,
        stop_token_ids=tuple(message.stop_token_ids),
        logit_bias=_decode_bias(message, f"{field}.logit_bias"),
        min_tokens=message.min_tokens,
        banned_sequences=_decode_banned(message, f"{field}.banned_sequences"),
        num_log_probs=_decode_log_prob_count(message, "log_prob_count", field),
        num_prompt_log_probs=_decode_log_prob_count(message, "prompt_log_prob_count", field),
        constraint=_decode_constraint(message, f"{field}.constraint"),
        **{name: _decode_number(message, name, field) for name in _RANGES},
    )


def _decode_number(message: speculation_pb2.SamplingParams, name: str, field: str) -> float:
    default, least, greatest = _RANGES[name]
    if not message.HasField(name):  # type: ignore[arg-type]  # the stub wants literals
        return default
    value = float(getattr(message, name))
    _check_range(value, least, greatest, f"{field}.{name}")
    return value


def _check_range(value: float, least: float, greatest: float, field: str) -> None:
    if not least <= value <= greatest:  # also false for NaN
        raise InvalidArgument(field, f"must be in [{least:g}, {greatest:g}], got {value:g}")


def _decode_bias(
    message: speculation_pb2.SamplingParams, field: str
) -> tuple[tuple[int, float], ...]:
    if len(message.logit_bias) > MAX_BIASES:
        raise InvalidArgument(
            field, f"must name at most {MAX_BIASES} ids, got {len(message.logit_bias)}"
        )
    for token_id, bias in message.logit_bias.items():
        _check_range(bias, *_BIAS_RANGE, f"{field}[{token_id}]")
    return tuple(sorted(message.logit_bias.items()))


def _decode_banned(
    message: speculation_pb2.SamplingParams, field: str
) -> tuple[tuple[int, ...], ...]:
    if len(message.banned_sequences) > MAX_BANNED_SEQUENCES:
        raise InvalidArgument(
            field,
            f"must hold at most {MAX_BANNED_SEQUENCES}, got {len(message.banned_sequences)}",
        )
    for index, banned in enumerate(message.banned_sequences):
        if not 1 <= len(banned.token_ids) <= MAX_BANNED_LENGTH:
            raise InvalidArgument(
                f"{field}[{index}]",
                f"must have 1 to {MAX_BANNED_LENGTH} ids, got {len(banned.token_ids)}",
            )
    return tuple(tuple(banned.token_ids) for banned in message.banned_sequences)


def _decode_log_prob_count(
    message: speculation_pb2.SamplingParams, name: str, field: str
) -> int | None:
    if not message.HasField(name):  # type: ignore[arg-type]  # the stub wants literals
        return None
    count = int(getattr(message, name))
    _check_range(count, 0, MAX_LOG_PROBS, f"{field}.{name}")
    return count


def _decode_constraint(message: speculation_pb2.SamplingParams, field: str) -> Constraint | None:
    """Whether it can be met is for who knows the tokens to say."""
    if not message.HasField("constraint"):
        return None
    name = message.constraint.WhichOneof("form")
    if name is None:
        raise InvalidArgument(field, "must have one of json_schema, regex and grammar")
    text: str = getattr(message.constraint, name)
    if not 1 <= len(text) <= MAX_CONSTRAINT_CHARACTERS:
        raise InvalidArgument(
            f"{field}.{name}",
            f"must have 1 to {MAX_CONSTRAINT_CHARACTERS} characters, got {len(text)}",
        )
    return Constraint(ConstraintKind(name), text)


def _encode_constraint(constraint: Constraint | None) -> speculation_pb2.Constraint | None:
    if constraint is None:
        return None
    message = speculation_pb2.Constraint()
    setattr(message, constraint.kind.value, constraint.text)
    return message


def encode_sampling(sampling: SamplingParams) -> speculation_pb2.SamplingParams:
    """The message of a record."""
    return speculation_pb2.SamplingParams(
        top_k=sampling.top_k or None,
        top_p=sampling.top_p,
        stop_token_ids=sampling.stop_token_ids,
        logit_bias=dict(sampling.logit_bias),
        min_tokens=sampling.min_tokens,
        banned_sequences=[
            speculation_pb2.BannedSequence(token_ids=banned) for banned in sampling.banned_sequences
        ],
        log_prob_count=sampling.num_log_probs,
        prompt_log_prob_count=sampling.num_prompt_log_probs,
        constraint=_encode_constraint(sampling.constraint),
        **{name: getattr(sampling, name) for name in _RANGES},
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
