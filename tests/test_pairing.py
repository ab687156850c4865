"""Which drafts and targets may work together."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from paceline.errors import FailedPrecondition
from paceline.pairing import check_pair, fits
from paceline.records import DraftSource, ModelIdentity

TARGET = ModelIdentity(
    name="big",
    fingerprint="f-big",
    tokenizer_fingerprint="t-1",
    vocabulary_size=500,
    eos_token_ids=(1, 2),
    max_length=256,
    dtype="bfloat16",
)


def source(**fields: Any) -> DraftSource:
    """A source whose model is the target's but for some fields."""
    return DraftSource("own", dataclasses.replace(TARGET, name="small", **fields))


def test_a_source_without_a_model_fits_every_target() -> None:
    """Prompt lookup speaks whatever ids it is given."""
    assert fits(DraftSource("ngram"), TARGET)
    check_pair(DraftSource("ngram"), TARGET)


def test_only_the_meaning_of_ids_counts() -> None:
    """B44: weights, dtype, context and the order of the end ids may differ."""
    draft = source(
        fingerprint="f-small",
        eos_token_ids=(2, 1, 2),
        max_length=64,
        dtype="float32",
        quantization="int8-per-row",
    )
    assert fits(draft, TARGET)
    check_pair(draft, TARGET)


@pytest.mark.parametrize(
    ("field", "value", "drafts", "targets"),
    [
        ("tokenizer_fingerprint", "t-2", "tokenizer t-2", "tokenizer t-1"),
        ("vocabulary_size", 512, "vocabulary of 512", "vocabulary of 500"),
        ("eos_token_ids", (3,), "end-of-sequence ids [3]", "end-of-sequence ids [1, 2]"),
        ("eos_token_ids", (), "end-of-sequence ids []", "end-of-sequence ids [1, 2]"),
    ],
)
def test_mismatch_prints_both_sides(field: str, value: Any, drafts: str, targets: str) -> None:
    """B44, B45, B46: a pair whose ids differ is refused, and one sees why."""
    draft = source(**{field: value})
    assert not fits(draft, TARGET)
    with pytest.raises(FailedPrecondition) as caught:
        check_pair(draft, TARGET)
    assert "DRAFT_MISMATCH" == caught.value.reason
    ours, theirs = caught.value.message.split(", target ")
    assert ours.startswith("draft source 'own' does not fit: draft 'small'")
    assert drafts in ours
    assert theirs.startswith("'big'")
    assert targets in theirs
