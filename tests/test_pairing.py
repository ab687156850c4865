"""Which drafts and targets may work together."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from paceline.errors import FailedPrecondition
from paceline.pairing import check_pair, fits
from paceline.records import ModelIdentity, VerificationRule

TARGET = ModelIdentity(
    name="big",
    fingerprint="f-big",
    tokenizer_fingerprint="t-1",
    vocabulary_size=500,
    eos_token_ids=(1, 2),
    max_length=256,
    dtype="bfloat16",
)


def test_a_source_without_a_model_fits_every_target() -> None:
    """Prompt lookup speaks whatever ids it is given."""
    assert fits(None, TARGET)
    check_pair(None, TARGET)


def test_only_the_meaning_of_ids_counts() -> None:
    """B44: weights, dtype, context and the order of the end ids may differ."""
    draft = dataclasses.replace(
        TARGET,
        name="small",
        fingerprint="f-small",
        eos_token_ids=(2, 1, 2),
        max_length=64,
        dtype="float32",
        quantization="int8-per-row",
    )
    assert fits(draft, TARGET)
    check_pair(draft, TARGET)


@pytest.mark.parametrize(
    ("field", "value", "printed"),
    [
        ("tokenizer_fingerprint", "t-2", "tokenizer: draft 't-2', target 't-1'"),
        ("vocabulary_size", 512, "vocabulary size: draft 512, target 500"),
        ("eos_token_ids", (3,), "end-of-sequence ids: draft [3], target [1, 2]"),
        ("eos_token_ids", (), "end-of-sequence ids: draft [], target [1, 2]"),
    ],
)
def test_mismatch_prints_both_sides(field: str, value: Any, printed: str) -> None:
    """B44, B45, B46: a pair whose ids differ is refused, and one sees why."""
    draft = dataclasses.replace(TARGET, name="small", **{field: value})
    assert not fits(draft, TARGET)
    with pytest.raises(FailedPrecondition) as caught:
        check_pair(draft, TARGET)
    error = caught.value
    assert f"draft 'small' does not fit target 'big': {printed}" == error.message
    assert ("DRAFT_MISMATCH", {"draft": "small", "target": "big"}) == (error.reason, error.metadata)


def test_every_difference_is_printed() -> None:
    """Nobody has to fix one to see the next."""
    draft = dataclasses.replace(TARGET, vocabulary_size=1, eos_token_ids=())
    with pytest.raises(FailedPrecondition) as caught:
        check_pair(draft, TARGET)
    assert "vocabulary size" in caught.value.message
    assert "end-of-sequence ids" in caught.value.message


@pytest.mark.parametrize("rule", [None, *VerificationRule])
def test_noise_counts_where_it_is_shared(rule: VerificationRule | None) -> None:
    """Two versions of the noise share nothing: the coupled rule would accept by chance alone."""
    draft = dataclasses.replace(TARGET, name="small", noise_version=1)
    assert (rule is not VerificationRule.COUPLED) is fits(draft, TARGET, rule)
    assert fits(TARGET, TARGET, rule)
    assert fits(None, TARGET, rule)
    if rule is VerificationRule.COUPLED:
        with pytest.raises(FailedPrecondition, match="noise version: draft 1, target 0"):
            check_pair(draft, TARGET, rule)
