"""Parameters that depend on the text so far, at every row of a proposal, by exact enumeration.

The rows of a proposal are made as the engine makes them, from one forward pass and its histories;
plain decoding is the same with no draft token. Known mistakes, made on purpose, are seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from paceline.engine.history import History, row_histories
from paceline.engine.law import Law
from paceline.engine.sampling import target_laws
from paceline.records import SamplingParams, VerificationRule

Prefix = tuple[int, ...]
Histories = Callable[[Prefix, Prefix], list[History]]

PROMPT = (1, 0)
LENGTH = 4
SIZE = 4
SEEN = 1e-3
ALL = SamplingParams(
    temperature=0.7,
    top_k=3,
    top_p=0.95,
    stop_token_ids=(3,),
    min_p=0.05,
    repetition_penalty=1.3,
    presence_penalty=0.4,
    frequency_penalty=0.3,
    logit_bias=((0, 0.8), (2, -0.5)),
    min_tokens=2,
    banned_sequences=((1, 2), (0, 0, 1)),
)
EACH = {
    "min_p": SamplingParams(min_p=0.5),
    "repetition": SamplingParams(repetition_penalty=2.0),
    "presence": SamplingParams(presence_penalty=1.0),
    "frequency": SamplingParams(frequency_penalty=0.7),
    "bias": SamplingParams(logit_bias=((1, 1.0), (3, -100.0))),
    "min_tokens": SamplingParams(stop_token_ids=(3, 0), min_tokens=2),
    "banned": SamplingParams(banned_sequences=((2,), (1, 0), (0, 0, 1))),
    "greedy": replace(ALL, temperature=0.0),
    "all": ALL,
}


def behind(prefix: Prefix, chain: Prefix) -> list[History]:
    """The histories of a proposal's rows, as the engine reads them off the sequence."""
    ids = [*PROMPT, *prefix, *chain]
    return row_histories(ids, prompt_length=len(PROMPT), num_rows=len(chain) + 1)


class Target:
    """Random tables under sampling parameters."""

    def __init__(self, tables: Callable[[Prefix], Law], params: SamplingParams) -> None:
        self._tables = tables
        self._params = params

    def rows(self, prefix: Prefix, chain: Prefix, histories: Histories = behind) -> list[Law]:
        """The laws of one forward pass over the draft tokens."""
        return self.laws(prefix, chain, [self._params] * (len(chain) + 1), histories)

    def laws(
        self,
        prefix: Prefix,
        chain: Prefix,
        params: Sequence[SamplingParams],
        histories: Histories = behind,
    ) -> list[Law]:
        """The same with parameters for each row."""
        tables = [self._tables((*prefix, *chain[:i])) for i in range(len(chain) + 1)]
        logits = torch.from_numpy(np.log(np.stack([law.probabilities for law in tables])))
        return target_laws(logits.float(), params, histories(prefix, chain))

    def plain(self, prefix: Prefix) -> Law:
        """The law of plain decoding."""
        return self.rows(prefix, ())[0]


@pytest.mark.parametrize("name", EACH)
def test_a_parameter_acts(tools: Any, name: str) -> None:
    """B30, B34: every one of them changes the plain law that the others are compared with."""
    tables = tools.random_tables(61, SIZE, 0.0)
    acted = tools.plain_law(Target(tables, EACH[name]).plain, LENGTH)
    assert tools.distance(tools.plain_law(tables, LENGTH), acted) > 0.1


@pytest.mark.parametrize("num_draft_tokens", [1, 2, 3])
@pytest.mark.parametrize("kind", ["sparse", "point_mass"])
@pytest.mark.parametrize("name", EACH)
def test_output_is_the_processed_law(
    tools: Any, rule: VerificationRule, name: str, kind: str, num_draft_tokens: int
) -> None:
    """B30, B31, B32, B33, B34: with each parameter and with all the law is that of plain decoding.

    The draft knows nothing of the parameters.
    """
    target = Target(tools.random_tables(61, SIZE, 0.0), EACH[name])
    proposer = tools.proposer(kind, tools.random_tables(62, SIZE, 0.0))
    rounds = tools.enumeration(rule, target.plain, proposer, num_draft_tokens, target.rows)
    emitted, plain = rounds.emitted_law(LENGTH), tools.plain_law(target.plain, LENGTH)
    assert tools.distance(plain, emitted) < 1e-12
    reached = [
        prefix for length in range(LENGTH) for prefix in tools.plain_law(target.plain, length)
    ]
    assert sum(rounds.mean_accepted(prefix) for prefix in reached) > 0.0


def test_a_draft_under_the_same_parameters(tools: Any, rule: VerificationRule) -> None:
    """A draft that copies the parameters draws from another law, and more is accepted."""
    target = Target(tools.random_tables(61, SIZE, 0.0), ALL)
    tables = tools.random_tables(62, SIZE, 0.0)
    bare = tools.enumeration(rule, target.plain, tools.proposer("sparse", tables), 2, target.rows)
    copied = tools.proposer("dense", dense(Target(tables, ALL).plain))
    rounds = tools.enumeration(rule, target.plain, copied, 2, target.rows)
    plain = tools.plain_law(target.plain, LENGTH)
    assert tools.distance(plain, rounds.emitted_law(LENGTH)) < 1e-12
    assert rounds.mean_accepted() > bare.mean_accepted()


def dense(model: Callable[[Prefix], Law]) -> Callable[[Prefix], Law]:
    """The model with every id named in its laws."""

    def law(prefix: Prefix) -> Law:
        row = np.zeros(SIZE)
        found = model(prefix)
        row[found.token_ids] = found.probabilities
        return Law(np.arange(SIZE), row)

    return law


# Mistakes ----------------------------------------------------------------------------------------


def stale(prefix: Prefix, chain: Prefix) -> list[History]:
    """Every row of a proposal with the history of the first."""
    return behind(prefix, ()) * (len(chain) + 1)


def whole_proposal(prefix: Prefix, chain: Prefix) -> list[History]:
    """Every row with all draft tokens counted, those that will be rejected too."""
    return [behind(prefix, chain)[-1]] * (len(chain) + 1)


def one_behind(prefix: Prefix, chain: Prefix) -> list[History]:
    """The last draft token before a row not counted."""
    rows = behind(prefix, chain)
    return [rows[0], *rows[:-1]]


def output_as_prompt(prefix: Prefix, chain: Prefix) -> list[History]:
    """Draft tokens counted as prompt."""
    length = len(PROMPT) + len(prefix)
    return [History(row.token_ids, length) for row in behind(prefix, chain)]


@pytest.mark.parametrize("mistake", [stale, whole_proposal, one_behind, output_as_prompt])
def test_a_wrong_history_is_seen(tools: Any, rule: VerificationRule, mistake: Histories) -> None:
    """B31, B32: the enumeration passes the right histories and fails wrong ones at draft rows."""
    target = Target(tools.random_tables(61, SIZE, 0.0), ALL)

    def rows(prefix: Prefix, chain: Prefix) -> list[Law]:
        return target.rows(prefix, chain, mistake)

    proposer = tools.proposer("sparse", tools.random_tables(62, SIZE, 0.0))
    rounds = tools.enumeration(rule, target.plain, proposer, 2, rows)
    plain = tools.plain_law(target.plain, LENGTH)
    assert tools.distance(plain, rounds.emitted_law(LENGTH)) > SEEN


BARE_OF_MASKS = replace(ALL, min_tokens=0, banned_sequences=())
DEFAULTS = SamplingParams()


@pytest.mark.parametrize(
    ("of_draft_rows", "of_bonus_row"),
    [(ALL, BARE_OF_MASKS), (ALL, DEFAULTS), (BARE_OF_MASKS, ALL), (DEFAULTS, ALL)],
    ids=["bonus row unmasked", "bonus row raw", "draft rows unmasked", "draft rows raw"],
)
def test_parameters_missing_at_a_row_are_seen(
    tools: Any,
    rule: VerificationRule,
    of_draft_rows: SamplingParams,
    of_bonus_row: SamplingParams,
) -> None:
    """B30, B34: parameters that reach only the verified rows, or only the bonus row."""
    target = Target(tools.random_tables(61, SIZE, 0.0), ALL)

    def rows(prefix: Prefix, chain: Prefix) -> list[Law]:
        return target.laws(prefix, chain, [of_draft_rows] * len(chain) + [of_bonus_row])

    proposer = tools.proposer("sparse", tools.random_tables(62, SIZE, 0.0))
    rounds = tools.enumeration(rule, target.plain, proposer, 2, rows)
    plain = tools.plain_law(target.plain, LENGTH)
    assert tools.distance(plain, rounds.emitted_law(LENGTH)) > SEEN
