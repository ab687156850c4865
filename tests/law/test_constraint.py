"""A constraint at every row of a proposal, by exact enumeration; known mistakes are seen."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from paceline.engine.constraint import Grammars, Mask, Matcher
from paceline.engine.history import History
from paceline.engine.law import Law
from paceline.engine.models import LoadOptions, load
from paceline.engine.sampling import target_laws
from paceline.records import (
    Constraint,
    ConstraintKind,
    SamplingParams,
    SessionSpec,
    VerificationRule,
)

Prefix = tuple[int, ...]
Rows = Callable[[Matcher, Prefix, Prefix], list[Mask]]

STOP = 3
SIZE = 4
LENGTH = 5
SEEN = 1e-3
FORM = Constraint(ConstraintKind.REGEX, "(ab|ba|ca?)+")
PARAMS = SamplingParams(temperature=0.8, top_p=0.9, stop_token_ids=(STOP,), constraint=FORM)


@pytest.fixture(scope="module")
def matcher(tmp_path_factory: pytest.TempPathFactory) -> Matcher:
    """Of FORM over a, b, c and the end."""
    path = tmp_path_factory.mktemp("table") / "table.json"
    path.write_text(json.dumps({"alphabet": "abc$", "eos": "$", "default": [1, 0, 0, 0]}))
    loaded = load(f"table:{path}", LoadOptions(path.parent), lambda _: None)
    spec = SessionSpec((0,), 1, PARAMS, VerificationRule.REJECTION_BLOCK, 0)
    made = Grammars(loaded.tokenizer_archive, loaded.identity).matcher(spec)
    assert made is not None
    return made


def right(matcher: Matcher, prefix: Prefix, chain: Prefix) -> list[Mask]:
    """As the engine does."""
    return matcher.fork().row_masks([*prefix, *chain], len(chain) + 1)


class Target:
    """Random tables, without zeros, under the constraint."""

    def __init__(self, tables: Callable[[Prefix], Law], matcher: Matcher) -> None:
        self._tables = tables
        self._matcher = matcher

    def rows(self, prefix: Prefix, chain: Prefix, masks: Rows = right) -> list[Law]:
        """The laws of one forward pass over the draft tokens."""
        tables = [self._tables((*prefix, *chain[:i])) for i in range(len(chain) + 1)]
        logits = torch.from_numpy(np.log(np.stack([law.probabilities for law in tables])))
        ids = np.array([0, *prefix, *chain], dtype=np.int64)
        histories = [
            History(ids[: 1 + len(prefix) + i], 1, mask)
            for i, mask in enumerate(masks(self._matcher, prefix, chain))
        ]
        return target_laws(logits.float(), [PARAMS] * len(tables), histories)

    def plain(self, prefix: Prefix) -> Law:
        """The law of plain decoding."""
        return self.rows(prefix, ())[0]


@pytest.fixture
def target(tools: Any, matcher: Matcher) -> Target:
    """The target."""
    return Target(tools.random_tables(71, SIZE, 0.0), matcher)


def test_plain_outputs_meet_the_form(tools: Any, target: Target) -> None:
    """Every output of the plain law that ended meets the form, and others go on."""
    outputs = ["".join("abc$"[t] for t in ids) for ids in tools.plain_law(target.plain, LENGTH)]
    ended = [output for output in outputs if "$" in output]
    assert 0 < len(ended) < len(outputs)
    assert all(re.fullmatch(r"(ab|ba|ca?)+\$+", output) for output in ended)


@pytest.mark.parametrize("num_draft_tokens", [1, 2, 3])
@pytest.mark.parametrize("kind", ["sparse", "point_mass", "mixed"])
def test_output_is_the_constrained_law(
    tools: Any, target: Target, rule: VerificationRule, kind: str, num_draft_tokens: int
) -> None:
    """B35: legal, illegal and half-legal proposals leave the law of plain constrained decoding."""
    proposer = tools.proposer(kind, tools.random_tables(72, SIZE, 0.0))
    rounds = tools.enumeration(rule, target.plain, proposer, num_draft_tokens, target.rows)
    emitted, plain = rounds.emitted_law(LENGTH), tools.plain_law(target.plain, LENGTH)
    assert tools.distance(plain, emitted) < 1e-12
    assert rounds.mean_accepted() > 0.0


# Mistakes ----------------------------------------------------------------------------------------

EVERYTHING = np.ones(SIZE, dtype=np.bool_)


def free_bonus_row(matcher: Matcher, prefix: Prefix, chain: Prefix) -> list[Mask]:
    """The bonus row without a mask."""
    rows = right(matcher, prefix, chain)
    return [*rows[:-1], EVERYTHING] if chain else rows


def free_draft_rows(matcher: Matcher, prefix: Prefix, chain: Prefix) -> list[Mask]:
    """Only the bonus row masked."""
    return [EVERYTHING] * len(chain) + right(matcher, prefix, chain)[-1:]


def first_for_all(matcher: Matcher, prefix: Prefix, chain: Prefix) -> list[Mask]:
    """Every row with the mask of the committed text."""
    return right(matcher, prefix, chain)[:1] * (len(chain) + 1)


def one_behind(matcher: Matcher, prefix: Prefix, chain: Prefix) -> list[Mask]:
    """Each row but the first with the mask of the one before it."""
    rows = right(matcher, prefix, chain)
    return [rows[0], *rows[:-1]]


def rejected_kept(matcher: Matcher, prefix: Prefix, chain: Prefix) -> list[Mask]:
    """A proposal's first token still counted where it was not the one that came."""
    if not chain or not prefix or chain[0] == prefix[-1]:
        return right(matcher, prefix, chain)
    return right(matcher, (*prefix[:-1], chain[0]), chain)


@pytest.mark.parametrize(
    "mistake", [free_bonus_row, free_draft_rows, first_for_all, one_behind, rejected_kept]
)
def test_a_wrong_mask_is_seen(
    tools: Any, target: Target, rule: VerificationRule, mistake: Rows
) -> None:
    """B35: the enumeration fails masks that are missing, late, or of what was rejected."""

    def rows(prefix: Prefix, chain: Prefix) -> list[Law]:
        return [
            law if len(law.token_ids) else Law.point(0)
            for law in target.rows(prefix, chain, mistake)
        ]

    proposer = tools.proposer("sparse", tools.random_tables(72, SIZE, 0.0))
    rounds = tools.enumeration(rule, target.plain, proposer, 2, rows)
    plain = tools.plain_law(target.plain, LENGTH)
    assert tools.distance(plain, rounds.emitted_law(LENGTH)) > SEEN


def test_masks_do_not_depend_on_the_way(matcher: Matcher) -> None:
    """B35: a matcher made anew behind an output gives what the one that walked there gives."""
    walked = matcher.fork()
    for length, output in enumerate(((), (0,), (0, 1), (0, 1, 2), (0, 1, 2, 0))):
        assert length == len(output)
        (walked_mask,) = walked.row_masks(output, 1)
        (fresh_mask,) = matcher.fork().row_masks(output, 1)
        assert fresh_mask.tolist() == walked_mask.tolist()
