"""What a draft session knows of its stream."""

from __future__ import annotations

import pytest

from draft_service.drafters.history import CommittedLength, chain_length
from paceline.errors import Aborted, InvalidArgument
from paceline.records import Advance


def test_lengths_add_up() -> None:
    """Each advance continues where the one before it ended; rounds may be skipped."""
    committed = CommittedLength(3)
    assert 3 == committed.advance(Advance(1, 5, (7, 8), 4))
    assert 5 == committed.advance(Advance(2, 5, (), 0))
    assert 5 == committed.advance(Advance(6, 6, (9,), 4))


@pytest.mark.parametrize("committed_length", [-1, 0, 3, 4, 6])
def test_length_that_does_not_follow(committed_length: int) -> None:
    """B97: the true length is told, and nothing is taken in."""
    committed = CommittedLength(3)
    with pytest.raises(Aborted) as caught:
        committed.advance(Advance(1, committed_length, (7, 8), 4))
    assert ("LENGTH_MISMATCH", {"TRUE_LENGTH": "3"}) == (
        caught.value.reason,
        caught.value.metadata,
    )
    assert 3 == committed.advance(Advance(1, 5, (7, 8), 4))


@pytest.mark.parametrize("number", [-1, 0, 1, 2])
def test_round_that_is_not_newer(number: int) -> None:
    """B97: a repeated or older round is refused."""
    committed = CommittedLength(3)
    committed.advance(Advance(2, 4, (7,), 4))
    with pytest.raises(Aborted) as caught:
        committed.advance(Advance(number, 5, (8,), 4))
    assert ("ROUND_OUT_OF_ORDER", {"TRUE_ROUND": "2", "TRUE_LENGTH": "4"}) == (
        caught.value.reason,
        caught.value.metadata,
    )


def test_id_outside_the_vocabulary() -> None:
    """B66: the field and its limit are named; a source without a vocabulary takes any id."""
    with pytest.raises(InvalidArgument) as caught:
        CommittedLength(3).advance(Advance(1, 5, (7, 8), 4), vocabulary_size=8)
    assert ("advance.new_token_ids", "ids must be under 8") == (
        caught.value.field,
        caught.value.description,
    )
    assert 3 == CommittedLength(3).advance(Advance(1, 5, (7, 8), 4), vocabulary_size=9)
    assert 3 == CommittedLength(3).advance(Advance(1, 5, (7, 2**32 - 1), 4))


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [((), 0), ((1, 2), 2), ((9,), 1), ((1, 9, 2, 9), 2), ((8, 9), 1), ((1, 2, 9), 3)],
)
def test_chain_ends_with_its_first_stop(token_ids: tuple[int, ...], expected: int) -> None:
    """B28: the stop token is part of the chain; nothing follows it."""
    assert expected == chain_length(token_ids, (9, 8))
