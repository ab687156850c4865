"""Matchers: what may come next behind an output, and what is refused before anything runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from transformers import PreTrainedTokenizerFast

from paceline.engine import tokenizer_archive
from paceline.engine.constraint import Grammars, Matcher
from paceline.engine.models import LoadOptions, load
from paceline.errors import InvalidArgument
from paceline.records import (
    Constraint,
    ConstraintKind,
    ModelIdentity,
    SamplingParams,
    SessionSpec,
    VerificationRule,
)

ALPHABET = '0123456789[],. "ab$'
STOP = ALPHABET.index("$")
SIZE = len(ALPHABET)
LIST = Constraint(ConstraintKind.REGEX, r"\[[0-9](, [0-9])*\]")
BASE = SessionSpec((0,), 1, SamplingParams(), VerificationRule.REJECTION_BLOCK, 0)
Open = Callable[..., Matcher]


def ids(text: str) -> tuple[int, ...]:
    """The tokens of a text: its characters."""
    return tuple(map(ALPHABET.index, text))


def spec(constraint: Constraint, output: str = "") -> SessionSpec:
    """A session whose prompt is one token."""
    sampling = SamplingParams(constraint=constraint, stop_token_ids=(STOP,))
    return replace(BASE, token_ids=(0, *ids(output)), sampling=sampling)


@pytest.fixture(scope="module")
def grammars(tmp_path_factory: pytest.TempPathFactory) -> Grammars:
    """Of a table over ALPHABET."""
    path = tmp_path_factory.mktemp("table") / "table.json"
    law = [1.0] + [0.0] * (SIZE - 1)
    path.write_text(json.dumps({"alphabet": ALPHABET, "eos": "$", "default": law}))
    loaded = load(f"table:{path}", LoadOptions(path.parent), lambda _: None)
    return Grammars(loaded.tokenizer_archive, loaded.identity)


@pytest.fixture
def open_matcher(grammars: Grammars) -> Open:
    """Opens matchers that exist."""

    def open_one(constraint: Constraint, output: str = "") -> Matcher:
        matcher = grammars.matcher(spec(constraint, output))
        assert matcher is not None
        return matcher

    return open_one


def allowed(matcher: Matcher, output: str, num_rows: int | None = None) -> list[str]:
    """What may follow each beginning of an output, from the first or of the last rows."""
    masks = matcher.row_masks(ids(output), num_rows or len(output) + 1)
    return ["".join(c for c, ok in zip(ALPHABET, mask, strict=True) if ok) for mask in masks]


DIGITS = "0123456789"


def test_every_row_has_its_own_mask(open_matcher: Open) -> None:
    """B35: each row stands behind one token more, and after the end only the stop is left."""
    expected = ["[", DIGITS, "],", " ", DIGITS, "],", "$", "$"]
    assert expected == allowed(open_matcher(LIST), "[1, 2]$")


def test_nothing_is_allowed_behind_what_is_not(open_matcher: Open) -> None:
    """B35: rows behind an illegal draft token have no law, and are the draft's own affair."""
    matcher = open_matcher(LIST)
    assert ["[", DIGITS, "],", " ", "", "", ""] == allowed(matcher, "[1,,2]")
    assert ["[", DIGITS, "", ""] == allowed(matcher, "[]$")
    assert ["[", DIGITS, "],", " "] == allowed(matcher, "[1,")


@pytest.mark.parametrize("proposed", ["1, 2]$", "1,,", "$", "9]]", ""])
def test_what_is_proposed_leaves_no_trace(open_matcher: Open, proposed: str) -> None:
    """B35: the matcher stands behind what the first row stands behind, whatever came after."""
    matcher = open_matcher(LIST)
    for committed in ("[", "[4", "[4, "):
        allowed(matcher, committed + proposed, len(proposed) + 1)
        assert len(committed) == matcher.num_tokens
        assert allowed(open_matcher(LIST, committed), committed, 1) == allowed(
            matcher, committed, 1
        )


def test_a_matcher_does_not_go_back(open_matcher: Open) -> None:
    """Committed tokens stay: a caller that wants masks before them made a mistake."""
    matcher = open_matcher(LIST)
    allowed(matcher, "[1,", 1)
    with pytest.raises(ValueError, match="3 output tokens are behind it, not 0"):
        allowed(matcher, "[1,", 4)


def test_a_fork_moves_on_by_itself(open_matcher: Open) -> None:
    """B35: and neither knows of the other."""
    matcher = open_matcher(LIST, "[1")
    fork = matcher.fork()
    fork.accept(ids("]$"))
    assert [DIGITS] == allowed(matcher, "[1, ", 1)
    assert ["$"] == allowed(fork, "[1]$", 1)


FORMS = {
    "schema": (
        Constraint(ConstraintKind.JSON_SCHEMA, '{"type": "array", "items": {"type": "integer"}}'),
        "[1, 20]",
        ["[", DIGITS + "]"],
    ),
    "regex": (Constraint(ConstraintKind.REGEX, r"\d+"), "12", [DIGITS, DIGITS + "$"]),
    "gbnf": (
        Constraint(ConstraintKind.GRAMMAR, 'root ::= "[" item ("," item)* "]"\nitem ::= [0-1]'),
        "[0,1]",
        ["[", "01"],
    ),
    "lark": (
        Constraint(ConstraintKind.GRAMMAR, 'start: "[" pair "]"\npair: /[0-1]/ | "[" pair "]"'),
        "[[1]]",
        ["[", "01["],
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_read(open_matcher: Open, name: str) -> None:
    """Each kind allows a text that meets it to its end."""
    constraint, text, begin = FORMS[name]
    rows = allowed(open_matcher(constraint), text)
    assert begin == rows[:2]
    assert all(character in row for character, row in zip(text + "$", rows, strict=True))


def test_the_stop_waits_for_the_form(open_matcher: Open) -> None:
    """Inside the form no stop is allowed, at an end that may go on it is one of several."""
    rows = allowed(open_matcher(Constraint(ConstraintKind.REGEX, "ba*")), "baa")
    assert ["b", "a$", "a$", "a$"] == rows


def test_forced_tokens(open_matcher: Open) -> None:
    """What must come next is known without any model; a choice or an end forces nothing."""
    constraint = Constraint(ConstraintKind.JSON_SCHEMA, '{"enum": ["ab", "ba"]}')
    matcher = open_matcher(constraint)
    assert ids('"') == tuple(matcher.forced())
    matcher.accept(ids('"'))
    assert [] == matcher.forced()
    matcher.accept(ids("a"))
    assert ids('b"') == tuple(matcher.forced())
    matcher.accept(ids('b"'))
    assert [] == matcher.forced()
    lost = open_matcher(constraint)
    lost.accept(ids("b"))
    assert [] == lost.forced()


# Refusals ----------------------------------------------------------------------------------------

IMPOSSIBLE = {
    "no JSON": (ConstraintKind.JSON_SCHEMA, "{"),
    "no object": (ConstraintKind.JSON_SCHEMA, "[]"),
    "deep": (ConstraintKind.JSON_SCHEMA, "[" * 60_000),
    "contradiction": (ConstraintKind.JSON_SCHEMA, '{"type":"string","minLength":5,"maxLength":2}'),
    "keyword": (ConstraintKind.JSON_SCHEMA, '{"not": {"type": "string"}}'),
    "pasted": (ConstraintKind.JSON_SCHEMA, '{}, "lark_grammar": "start: /a/"'),
    "type": (ConstraintKind.JSON_SCHEMA, '{"type": "nonsense"}'),
    "tokens": (ConstraintKind.JSON_SCHEMA, '{"type": "object"}'),
    "parenthesis": (ConstraintKind.REGEX, "("),
    "empty set": (ConstraintKind.REGEX, r"a[^\s\S]"),
    "no such token": (ConstraintKind.REGEX, "z"),
    "unknown name": (ConstraintKind.GRAMMAR, "start: nobody"),
    "no grammar": (ConstraintKind.GRAMMAR, "nonsense"),
    "no end": (ConstraintKind.GRAMMAR, "start: start"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_no_output_can_meet_is_refused(grammars: Grammars, name: str) -> None:
    """B35: malformed, contradictory, not served, or out of reach of the model's tokens."""
    kind, text = IMPOSSIBLE[name]
    with pytest.raises(InvalidArgument) as caught:
        grammars.matcher(spec(Constraint(kind, text)))
    assert f"session.sampling.constraint.{kind.value}" == caught.value.field


def test_an_output_without_any_stop_is_refused(grammars: Grammars) -> None:
    """Behind a complete form there would be nothing to say."""
    session = spec(LIST)
    endless = replace(session, sampling=replace(session.sampling, stop_token_ids=()))
    with pytest.raises(InvalidArgument, match="needs a stop token"):
        grammars.matcher(endless)


def test_an_output_that_broke_the_form_is_refused(grammars: Grammars) -> None:
    """What is resumed must have begun under the same constraint."""
    with pytest.raises(InvalidArgument) as caught:
        grammars.matcher(spec(LIST, "[1,,"))
    assert "session.token_ids" == caught.value.field


def test_no_constraint_needs_no_matcher(grammars: Grammars) -> None:
    """And nothing is made for it."""
    assert grammars.matcher(BASE) is None


# Other tokenizers --------------------------------------------------------------------------------


def identity(tokenizer: PreTrainedTokenizerFast, *eos_token_ids: int) -> ModelIdentity:
    """A model with these tokens."""
    return ModelIdentity("m", "f", "t", len(tokenizer), eos_token_ids, 64, "float32")


def test_a_byte_level_tokenizer(tiny_tokenizer: PreTrainedTokenizerFast) -> None:
    """Tokens of several bytes are matched by their bytes, and specials by none."""
    model = identity(tiny_tokenizer, 1)
    made = Grammars(tokenizer_archive.pack(tiny_tokenizer), model)
    constraint = Constraint(ConstraintKind.REGEX, "[a-z]{1,3}")
    session = replace(
        BASE, sampling=SamplingParams(constraint=constraint, stop_token_ids=(1,)), token_ids=(0,)
    )
    matcher = made.matcher(session)
    assert matcher is not None
    mask = matcher.mask()
    texts = [tiny_tokenizer.decode([token_id]) for token_id in range(len(tiny_tokenizer))]
    fits = [1 <= len(t) <= 3 and t.isascii() and t.isalpha() and t.islower() for t in texts]
    assert fits == mask.tolist()
    assert any(len(text) > 1 for text, ok in zip(texts, mask, strict=True) if ok)


def test_a_model_without_an_end_is_told_of(tiny_tokenizer: PreTrainedTokenizerFast) -> None:
    """It serves everything else; a constraint is refused with the cause."""
    made = Grammars(tokenizer_archive.pack(tiny_tokenizer), identity(tiny_tokenizer))
    with pytest.raises(InvalidArgument, match="no end-of-sequence id") as caught:
        made.matcher(spec(LIST))
    assert "UNSUPPORTED_PARAMETER" == caught.value.reason
