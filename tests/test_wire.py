"""Messages to records and back, and what is refused on the way."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from paceline import wire
from paceline.errors import FailedPrecondition, InvalidArgument
from paceline.records import (
    Advance,
    AuditReport,
    AuditSum,
    Constraint,
    ConstraintKind,
    DraftSource,
    LawEncoding,
    ModelIdentity,
    Opened,
    Proposal,
    ReplicaLoad,
    SamplingParams,
    SessionSpec,
    TokenLogProbs,
    Verdict,
    VerdictKind,
    VerificationRule,
)
from paceline.v1 import draft_pb2, speculation_pb2, verify_pb2

IDENTITY = ModelIdentity(
    name="tiny",
    fingerprint="f1",
    tokenizer_fingerprint="t1",
    vocabulary_size=258,
    eos_token_ids=(1, 7),
    max_length=256,
    dtype="float32",
    quantization="int8-per-row",
    exact=True,
    noise_version=2,
)
SESSION = SessionSpec(
    token_ids=(3, 1, 2**32 - 1),
    prompt_length=2,
    sampling=SamplingParams(
        temperature=0.7,
        top_k=5,
        top_p=0.9,
        stop_token_ids=(1, 7),
        min_p=0.1,
        repetition_penalty=1.25,
        presence_penalty=-2.0,
        frequency_penalty=0.5,
        logit_bias=((3, -100.0), (2**32 - 1, 1.5)),
        min_tokens=4,
        banned_sequences=((1,), (2, 3)),
        num_log_probs=0,
        num_prompt_log_probs=3,
    ),
    rule=VerificationRule.REJECTION_TOKEN,
    seed=2**64 - 1,
    sample_index=3,
    cache_domain="tenant",
    arrival_time_s=1764439602.1234567,
    request_id="r-1",
    has_fresh_seed=True,
)
AUDIT = AuditReport(AuditSum(7, -0.5, 2.25, 0.75), AuditSum(9, 1.5, 4.5, 1.25))
LOAD = ReplicaLoad(1, 2, 3, 4, 5, True, AUDIT)
PROPOSAL = Proposal(2, 10, (4, 5), LawEncoding.SPARSE, b"\x00\xff", 0.25)
LOG_PROBS = (TokenLogProbs(-0.5), TokenLogProbs(-1.5, (7, 2), (-0.25, -2.0)))
VERDICT = Verdict(
    2, 1, 9, VerdictKind.BONUS, 12, 0.5, 1.25, LOAD, LOG_PROBS, LOG_PROBS[1:], margin=0.0
)
ADVANCE = Advance(3, 12, (4, 9), 6)


def refused(decode: Callable[..., Any], *arguments: Any, **keywords: Any) -> InvalidArgument:
    """The refusal of a decoder."""
    with pytest.raises(InvalidArgument) as caught:
        decode(*arguments, **keywords)
    return caught.value


def session_message(**fields: Any) -> speculation_pb2.SessionSpec:
    """A good session with some fields replaced."""
    message = wire.encode_session(SESSION)
    for name, value in fields.items():
        setattr(message, name, value)
    return message


# There and back ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "encode", "decode"),
    [
        (SESSION, wire.encode_session, wire.decode_session),
        (PROPOSAL, wire.encode_proposal, wire.decode_proposal),
        (Proposal(1, 3), wire.encode_proposal, wire.decode_proposal),
        (VERDICT, wire.encode_verdict, wire.decode_verdict),
        (ADVANCE, wire.encode_advance, wire.decode_advance),
        (LOAD, wire.encode_load, wire.decode_load),
        (IDENTITY, wire.encode_identity, wire.decode_identity),
        (Opened(3, 256, 16), wire.encode_verify_opened, wire.decode_opened),
        (Opened(3, 256, 16, "ngram"), wire.encode_draft_opened, wire.decode_opened),
    ],
    ids=lambda value: type(value).__name__ if not callable(value) else "",
)
def test_record_survives_the_wire(
    record: Any, encode: Callable[[Any], Any], decode: Callable[[Any], Any]
) -> None:
    """A record comes back as it was, through bytes."""
    message = encode(record)
    assert record == decode(type(message).FromString(message.SerializeToString()))


@pytest.mark.parametrize("encoding", list(LawEncoding))
def test_every_encoding_survives(encoding: LawEncoding) -> None:
    """The numbers of the records are those of the messages."""
    proposal = Proposal(1, 3, (2,), encoding)
    message = wire.encode_proposal(proposal)
    assert f"LAW_ENCODING_{encoding.name}" == speculation_pb2.LawEncoding.Name(message.law_encoding)
    assert proposal == wire.decode_proposal(message)


@pytest.mark.parametrize("kind", list(VerdictKind))
def test_every_kind_survives(kind: VerdictKind) -> None:
    """The numbers of the records are those of the messages."""
    message = wire.encode_verdict(Verdict(1, 0, 2, kind, 4))
    assert f"VERDICT_KIND_{kind.name}" == speculation_pb2.VerdictKind.Name(message.kind)
    assert kind is wire.decode_verdict(message).kind


@pytest.mark.parametrize("rule", list(VerificationRule))
def test_every_rule_survives(rule: VerificationRule) -> None:
    """The numbers of the records are those of the messages."""
    name = f"VERIFICATION_RULE_{rule.name}"
    value = speculation_pb2.VerificationRule.Value(name)
    assert rule is wire.decode_rule(value, field="rule")


def test_sources_survive_in_order() -> None:
    """The default stays first, and a source without a model has none."""
    sources = (DraftSource("tiny", IDENTITY), DraftSource("ngram"))
    assert sources == wire.decode_sources([wire.encode_source(source) for source in sources])


@pytest.mark.parametrize("arrival_time_s", [0.0, 0.9999999999, 1764439602.9999998, 4e9 + 1 / 3])
def test_arrival_time_is_the_same_on_both_tiers(arrival_time_s: float) -> None:
    """Unix time keeps every bit: both tiers order generations by it."""
    message = wire.encode_session(
        SessionSpec((1,), 1, SESSION.sampling, SESSION.rule, 0, arrival_time_s=arrival_time_s)
    )
    assert 0 <= message.arrival_time.nanos < 10**9
    assert wire.decode_session(message).arrival_time_s == pytest.approx(
        arrival_time_s, rel=0, abs=1e-9 if arrival_time_s < 1 else 0
    )


@pytest.mark.parametrize(
    ("value_s", "seconds", "nanos"),
    [(0.0, 0, 0), (1.5, 1, 500_000_000), (1e-9, 0, 1), (2 - 1e-12, 2, 0), (-3.0, 0, 0)],
)
def test_duration(value_s: float, seconds: int, nanos: int) -> None:
    """A duration is whole nanoseconds, carried into the seconds, and never negative."""
    message = wire.duration(value_s)
    assert (seconds, nanos) == (message.seconds, message.nanos)
    assert wire.seconds(message) == pytest.approx(max(0.0, value_s), abs=1e-9)


# Sampling parameters -----------------------------------------------------------------------------


def test_unset_parameters_have_their_defaults() -> None:
    """Nothing set is plain sampling."""
    assert SamplingParams(1.0, 0, 1.0, ()) == wire.decode_sampling(speculation_pb2.SamplingParams())


def test_zero_temperature_is_not_unset() -> None:
    """Greedy survives, although 0 is the default of numbers in messages."""
    message = wire.encode_sampling(SamplingParams(temperature=0.0))
    assert wire.decode_sampling(message).is_greedy


@pytest.mark.parametrize("temperature", [math.nan, -0.1, 100.1, math.inf, -math.inf])
def test_temperature_out_of_range(temperature: float) -> None:
    """B66: the field and its limits are named, also for NaN."""
    message = speculation_pb2.SamplingParams(temperature=temperature)
    error = refused(wire.decode_sampling, message)
    assert ("sampling.temperature", f"must be in [0, 100], got {temperature:g}") == (
        error.field,
        error.description,
    )


@pytest.mark.parametrize("top_p", [0.0, -0.5, 1.01, math.nan])
def test_top_p_out_of_range(top_p: float) -> None:
    """The field and its limits are named."""
    error = refused(wire.decode_sampling, speculation_pb2.SamplingParams(top_p=top_p))
    assert ("sampling.top_p", f"must be in (0, 1], got {top_p:g}") == (
        error.field,
        error.description,
    )


@pytest.mark.parametrize("top_k", [0, -1])
def test_top_k_out_of_range(top_k: int) -> None:
    """An explicit 0 is a mistake, not a way to say "all"."""
    error = refused(wire.decode_sampling, speculation_pb2.SamplingParams(top_k=top_k))
    assert ("sampling.top_k", f"must be at least 1, got {top_k}") == (
        error.field,
        error.description,
    )


def test_negative_sample_index() -> None:
    """An index is a key of draws; a negative one would be another sample's."""
    error = refused(wire.decode_session, session_message(sample_index=-1))
    assert ("session.sample_index", "must be at least 0, got -1") == (
        error.field,
        error.description,
    )


@pytest.mark.parametrize(
    ("name", "value", "place", "limits"),
    [
        ("min_p", 1.01, "", "[0, 1], got 1.01"),
        ("min_p", math.nan, "", "[0, 1], got nan"),
        ("repetition_penalty", 0.0, "", "[0.01, 100], got 0"),
        ("repetition_penalty", math.nan, "", "[0.01, 100], got nan"),
        ("repetition_penalty", math.inf, "", "[0.01, 100], got inf"),
        ("presence_penalty", 100.5, "", "[-100, 100], got 100.5"),
        ("presence_penalty", math.nan, "", "[-100, 100], got nan"),
        ("frequency_penalty", -math.inf, "", "[-100, 100], got -inf"),
        ("logit_bias", {3: 1.0, 4: math.nan}, "[4]", "[-100, 100], got nan"),
        ("logit_bias", {5: -101.0}, "[5]", "[-100, 100], got -101"),
        ("logit_bias", dict.fromkeys(range(1025), 0.0), "", "at most 1024 ids, got 1025"),
        ("min_tokens", -1, "", "at least 0, got -1"),
        ("banned_sequences", [{"token_ids": [1]}, {}], "[1]", "1 to 64 ids, got 0"),
        ("banned_sequences", [{"token_ids": [1] * 65}], "[0]", "1 to 64 ids, got 65"),
        ("banned_sequences", [{"token_ids": [1]}] * 1025, "", "at most 1024, got 1025"),
        ("log_prob_count", -1, "", "[0, 64], got -1"),
        ("log_prob_count", 65, "", "[0, 64], got 65"),
    ],
)
def test_parameter_out_of_range(name: str, value: Any, place: str, limits: str) -> None:
    """B66: the field, the entry and the limits are named, also for NaN."""
    error = refused(wire.decode_sampling, speculation_pb2.SamplingParams(**{name: value}))
    assert f"sampling.{name}{place}" == error.field
    assert error.description.endswith(limits)


@pytest.mark.parametrize("kind", ConstraintKind)
def test_a_constraint_comes_back(kind: ConstraintKind) -> None:
    """Each form, text and all; without one there is none."""
    sampling = SamplingParams(constraint=Constraint(kind, "a\nb"))
    assert sampling == wire.decode_sampling(wire.encode_sampling(sampling))
    assert wire.decode_sampling(wire.encode_sampling(SamplingParams())).constraint is None


@pytest.mark.parametrize(
    ("form", "place", "told"),
    [
        ({}, "", "must have one of json_schema, regex and grammar"),
        ({"regex": ""}, ".regex", "must have 1 to 65536 characters, got 0"),
        (
            {"json_schema": " " * 65537},
            ".json_schema",
            "must have 1 to 65536 characters, got 65537",
        ),
    ],
)
def test_a_constraint_out_of_range(form: dict[str, str], place: str, told: str) -> None:
    """B35: none, an empty one and an oversized one are refused by name."""
    message = speculation_pb2.SamplingParams(constraint=speculation_pb2.Constraint(**form))
    error = refused(wire.decode_sampling, message)
    assert (f"sampling.constraint{place}", told) == (error.field, error.description)


def test_neutral_parameters_are_let_through() -> None:
    """A value that changes nothing asks for nothing."""
    message = speculation_pb2.SamplingParams(
        min_p=0.0, repetition_penalty=1.0, presence_penalty=0.0, ignore_eos=True
    )
    assert SamplingParams() == wire.decode_sampling(message)


# Sessions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", [0, 2])
def test_other_protocol_revision(revision: int) -> None:
    """Both revisions are printed."""
    with pytest.raises(FailedPrecondition) as caught:
        wire.decode_session(session_message(protocol_revision=revision))
    assert "PROTOCOL_REVISION" == caught.value.reason
    assert f"revision {revision} was sent, 1 is spoken" in caught.value.message


@pytest.mark.parametrize("prompt_length", [0, -1, 4])
def test_prompt_length_out_of_range(prompt_length: int) -> None:
    """At least one token is prompt, and no more than there are."""
    error = refused(wire.decode_session, session_message(prompt_length=prompt_length))
    assert ("session.prompt_length", f"must be in [1, 3], got {prompt_length}") == (
        error.field,
        error.description,
    )


def test_session_without_tokens() -> None:
    """B68: there is nothing to run."""
    message = session_message()
    del message.token_ids[:]
    assert "session.token_ids" == refused(wire.decode_session, message).field


@pytest.mark.parametrize("rule", [0, 99])
def test_unspecified_rule(rule: int) -> None:
    """Zero means that nobody decided."""
    error = refused(wire.decode_session, session_message(rule=rule))
    assert ("session.rule", f"must name a verification rule, got {rule}") == (
        error.field,
        error.description,
    )


def test_sampling_of_a_session_is_named_in_full() -> None:
    """The caller sees where the field stands."""
    message = session_message()
    message.sampling.top_p = 0.0
    assert "session.sampling.top_p" == refused(wire.decode_session, message).field


# Rounds ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", [0, 99])
def test_tokens_without_an_encoding(encoding: int) -> None:
    """B01: tokens without a law are refused, not taken for point masses."""
    message = wire.encode_proposal(PROPOSAL)
    message.law_encoding = encoding  # type: ignore[assignment]  # the wire carries any number
    error = refused(wire.decode_proposal, message)
    assert ("proposal.law_encoding", f"must name an encoding, got {encoding}") == (
        error.field,
        error.description,
    )


def test_empty_proposal_needs_no_encoding() -> None:
    """B93: nothing drafted is a legal proposal."""
    message = speculation_pb2.Proposal(round=4, base_length=9)
    assert Proposal(4, 9) == wire.decode_proposal(message)


def test_tree_is_refused() -> None:
    """Only chains are verified."""
    message = wire.encode_proposal(PROPOSAL)
    message.parent_indices.extend([-1, 0])
    error = refused(wire.decode_proposal, message)
    assert ("proposal.parent_indices", "UNSUPPORTED_PARAMETER") == (error.field, error.reason)


@pytest.mark.parametrize("kind", [0, 99])
def test_verdict_without_a_kind(kind: int) -> None:
    """B96: a verdict that does not say where its token came from is no verdict."""
    message = wire.encode_verdict(VERDICT)
    message.kind = kind  # type: ignore[assignment]  # the wire carries any number
    error = refused(wire.decode_verdict, message)
    assert ("verdict.kind", f"must name a kind, got {kind}") == (error.field, error.description)


def test_negative_draft_token_count() -> None:
    """The field and its limit are named."""
    error = refused(wire.decode_advance, draft_pb2.Advance(draft_token_count=-1))
    assert ("advance.draft_token_count", "must be at least 0, got -1") == (
        error.field,
        error.description,
    )


@pytest.mark.parametrize(("period_ms", "period_s"), [(0, 1.0), (10, 0.01), (60_000, 60.0)])
def test_watch_period(period_ms: int, period_s: float) -> None:
    """Zero is a second."""
    assert period_s == wire.watch_period_s(period_ms)


@pytest.mark.parametrize("period_ms", [-1, 1, 9, 60_001])
def test_watch_period_out_of_range(period_ms: int) -> None:
    """The field and its limits are named."""
    error = refused(wire.watch_period_s, period_ms)
    assert ("period_ms", f"must be in [10, 60000], got {period_ms}") == (
        error.field,
        error.description,
    )


def test_opened_of_the_verify_tier_has_no_source() -> None:
    """One record serves both tiers."""
    assert Opened(1, 2, 3, "") == wire.decode_opened(
        verify_pb2.VerifyOpened(cached_prefix_length=1, max_length=2, max_draft_tokens=3)
    )
