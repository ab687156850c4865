"""The commit: ids, origins, text and count are cut at one place, by one rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.commit import Committed, Committer, Ending
from gateway.tokenizer import Tokenizer
from paceline.errors import InvalidArgument
from paceline.records import (
    FinishReason,
    Proposal,
    TokenLogProbs,
    TokenOrigin,
    Verdict,
    VerdictKind,
)

DRAFT, RECOVERED, BONUS, PLAIN = (
    TokenOrigin.DRAFT,
    TokenOrigin.RECOVERED,
    TokenOrigin.BONUS,
    TokenOrigin.PLAIN,
)
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


def verdict(proposal: Proposal, num_accepted: int, next_token_id: int) -> Verdict:
    """A well-formed verdict."""
    kind = VerdictKind.PLAIN
    if proposal.token_ids:
        is_full = num_accepted == len(proposal.token_ids)
        kind = VerdictKind.BONUS if is_full else VerdictKind.RECOVERED
    committed_length = proposal.base_length + num_accepted + 1
    return Verdict(proposal.round, num_accepted, next_token_id, kind, committed_length)


def commit(committer: Committer, token_ids: tuple[int, ...], num_accepted: int) -> Committed:
    """Commits one round: the accepted prefix of all but the last id, then the last id."""
    proposal = Proposal(1, 10, token_ids[:-1])
    return committer.commit(proposal, verdict(proposal, num_accepted, token_ids[-1]))


def letters(token_ids: tuple[int, ...] | list[int]) -> str:
    """A tokenizer of letters: id 1 is a."""
    return "".join(chr(96 + token_id) for token_id in token_ids)


def told(token_ids: tuple[int, ...]) -> tuple[TokenLogProbs, ...]:
    """A log-probability for each id that tells which one it is of."""
    return tuple(TokenLogProbs(-float(token_id)) for token_id in token_ids)


def committer(**ending: object) -> Committer:
    """A committer of letters that ends after 100 tokens unless told otherwise."""
    return Committer(Ending(**{"max_tokens": 100, **ending}), letters)  # type: ignore[arg-type]  # any field


@pytest.mark.parametrize(
    ("token_ids", "num_accepted", "origins"),
    [
        ((7,), 0, (PLAIN,)),
        ((7, 8, 9), 2, (DRAFT, DRAFT, BONUS)),
        ((7, 8, 9), 1, (DRAFT, RECOVERED)),
        ((7, 8, 9), 0, (RECOVERED,)),
    ],
)
def test_every_accepted_length_is_legal(
    token_ids: tuple[int, ...], num_accepted: int, origins: tuple[TokenOrigin, ...]
) -> None:
    """B96: a short verdict is as good as a full one, and each token knows where it came from."""
    committed = commit(committer(), token_ids, num_accepted)
    assert origins == committed.origins
    assert (*token_ids[:num_accepted], token_ids[-1]) == committed.token_ids
    assert letters(committed.token_ids) == committed.text


@pytest.mark.parametrize("offset", range(5))
def test_nothing_follows_a_stop_token(offset: int) -> None:
    """B20: a stop token at any place of a block is the last id, and is not in the text."""
    token_ids = [1, 2, 3, 4, 5]
    token_ids[offset] = 26
    committed = commit(committer(stop_token_ids=frozenset({26})), tuple(token_ids), 4)
    assert tuple(token_ids[: offset + 1]) == committed.token_ids
    assert offset + 1 == len(committed.origins)
    assert letters(token_ids[:offset]) == committed.text
    assert STOP is committed.finish_reason


@pytest.mark.parametrize(
    ("max_tokens", "num_tokens", "reason"), [(6, 4, STOP), (3, 3, LENGTH), (4, 4, STOP)]
)
@pytest.mark.parametrize("kind", ["token", "string"])
def test_stop_is_judged_before_length(
    max_tokens: int, num_tokens: int, reason: FinishReason, kind: str
) -> None:
    """B23: with a stop and the cap in one block the first wins, and a tie goes to the stop."""
    ends = {"stop_token_ids": frozenset({19})} if kind == "token" else {"stop_strings": ("s",)}
    committed = commit(committer(max_tokens=max_tokens, **ends), (7, 8, 9, 19, 3, 4, 6), 6)
    assert (num_tokens, reason) == (len(committed.token_ids), committed.finish_reason)
    assert "ghi" == committed.text


@pytest.mark.parametrize("max_tokens", range(1, 8))
def test_the_cap_is_exact(max_tokens: int) -> None:
    """B25: a block longer than the budget is cut to it."""
    committed = commit(committer(max_tokens=max_tokens), tuple(range(1, 8)), 6)
    assert tuple(range(1, max_tokens + 1)) == committed.token_ids
    assert LENGTH is committed.finish_reason


def test_ids_text_and_count_agree_at_a_stop_string() -> None:
    """B24: ids end with the token that completes the stop, text before the stop, count with ids."""
    committing = committer(stop_strings=("cde",))
    committed = commit(committing, (1, 2, 3, 4, 5, 6), 5)
    assert (1, 2, 3, 4, 5) == committed.token_ids
    assert ("ab", 5, STOP) == (committed.text, committing.num_tokens, committed.finish_reason)
    assert letters(committed.token_ids).startswith(committed.text)


@pytest.mark.parametrize(
    "ends",
    [{"max_tokens": 3}, {"stop_token_ids": frozenset({3})}, {"stop_strings": ("bc",)}, {}],
    ids=["length", "token", "string", "none"],
)
@pytest.mark.parametrize("num_accepted", [2, 4])
def test_log_probs_are_cut_with_the_ids(ends: dict[str, object], num_accepted: int) -> None:
    """B24, B42: one of each id and none of an id that is not there, whatever ends it."""
    proposal = Proposal(1, 10, (1, 2, 3, 4))
    committed_ids = (*proposal.token_ids[:num_accepted], 5)
    answer = replace(verdict(proposal, num_accepted, 5), log_probs=told(committed_ids))
    committed = committer(**ends).commit(proposal, answer)
    assert told(committed.token_ids) == committed.log_probs
    assert 3 == len(committed.token_ids) or not ends


def test_a_stop_string_over_two_rounds() -> None:
    """B22: what may become a stop is held back over the end of a round."""
    committing = committer(stop_strings=("cd",))
    first = commit(committing, (1, 2, 3), 2)
    second = commit(committing, (4, 5), 1)
    assert ("ab", None) == (first.text, first.finish_reason)
    assert ((4,), "", STOP) == (second.token_ids, second.text, second.finish_reason)


@pytest.mark.parametrize(
    "ends", [{"max_tokens": 3}, {"stop_token_ids": frozenset({9}), "max_tokens": 50}]
)
def test_held_text_comes_out_at_another_ending(ends: dict[str, object]) -> None:
    """Text held for a stop string that never came is part of the answer."""
    committed = commit(committer(stop_strings=("cz",), **ends), (1, 2, 3, 9), 3)
    assert "abc" == committed.text


def test_an_unfinished_character_comes_out_at_the_end(bytes_tokenizer: Tokenizer) -> None:
    """B77: the last piece closes the text as decoding all ids would."""
    token_ids = bytes_tokenizer.encode("é")
    committing = Committer(Ending(max_tokens=1), bytes_tokenizer.decode)
    assert "\ufffd" == commit(committing, token_ids[:1], 0).text


def test_an_earlier_attempt_counts_and_stays_silent() -> None:
    """Resuming: the budget counts from the prompt, and only new text is given out."""
    committing = committer(max_tokens=4, stop_strings=("cd",))
    committing.resume((1, 2, 3))
    committed = commit(committing, (5, 6), 1)
    assert ((5,), "ce", LENGTH) == (committed.token_ids, committed.text, committed.finish_reason)


def test_a_stop_string_begun_in_an_earlier_attempt() -> None:
    """Resuming: a stop string over the seam is found."""
    committing = committer(stop_strings=("cd",))
    committing.resume((1, 2, 3))
    assert STOP is commit(committing, (4, 5), 1).finish_reason


def test_an_attempt_that_had_ended_cannot_be_resumed() -> None:
    """Resuming after a stop is a mistake of the caller, and is named."""
    with pytest.raises(InvalidArgument, match="committed_token_ids"):
        committer(stop_token_ids=frozenset({2})).resume((1, 2))
