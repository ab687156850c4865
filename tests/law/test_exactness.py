"""Both rules emit exactly the target's law, for every kind of draft law, over several rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from paceline.engine.law import Law
from paceline.engine.sampling import target_laws
from paceline.records import SamplingParams, VerificationRule

TOLERANCE = 1e-12
LENGTH = 4
KINDS = ("sparse", "dense", "point_mass", "mixed")


@pytest.mark.parametrize("num_draft_tokens", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("size", "zeros"), [(3, 0.0), (3, 0.35), (4, 0.25)])
def test_output_is_the_targets_law(
    tools: Any,
    rule: VerificationRule,
    kind: str,
    num_draft_tokens: int,
    size: int,
    zeros: float,
) -> None:
    """B02, B07, B12: whatever the draft and its length, the emitted sequence follows the target."""
    target = tools.guarded(tools.random_tables(11, size, zeros))
    proposer = tools.proposer(kind, tools.random_tables(12, size, zeros))
    rounds = tools.enumeration(rule, target, proposer, num_draft_tokens)
    emitted, plain = rounds.emitted_law(LENGTH), tools.plain_law(target, LENGTH)
    assert tools.distance(plain, emitted) < TOLERANCE
    accepted = sum(rounds.mean_accepted(prefix) for prefix in tools.plain_law(target, 1))
    assert (num_draft_tokens > 0) == (accepted > 0.0)


@pytest.mark.parametrize("seed", range(12))
def test_output_is_the_targets_law_for_many_models(
    tools: Any, rule: VerificationRule, seed: int
) -> None:
    """Random models with zeros on both sides, k = 2, all kinds of draft law."""
    target = tools.guarded(tools.random_tables(seed, 3, 0.3))
    for kind in KINDS:
        proposer = tools.proposer(kind, tools.random_tables(100 + seed, 3, 0.3))
        rounds = tools.enumeration(rule, target, proposer, 2)
        assert tools.distance(tools.plain_law(target, 3), rounds.emitted_law(3)) < TOLERANCE


def test_a_draft_equal_to_the_target_is_accepted_whole(tools: Any, rule: VerificationRule) -> None:
    """Where p = q, Z is 0 and 0/0 is 1: nothing is ever rejected, and the law still holds."""
    target = tools.random_tables(5, 3, 0.2)
    rounds = tools.enumeration(rule, target, lambda prefix: (target(prefix),) * 2, 3)
    assert rounds.accepted_law()[3] == pytest.approx(1.0, abs=TOLERANCE)
    assert tools.distance(tools.plain_law(target, 3), rounds.emitted_law(3)) < TOLERANCE


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(top_k=2),
        SamplingParams(top_p=0.6),
        SamplingParams(temperature=0.5),
        SamplingParams(temperature=0.5, top_k=3, top_p=0.6),
        SamplingParams(temperature=0.0),
    ],
)
def test_processed_target_is_what_is_emitted(
    tools: Any, rule: VerificationRule, params: SamplingParams
) -> None:
    """B33: top-p, top-k and temperature, alone and together, hold at every verified row."""
    tables = tools.random_tables(21, 8, 0.0)

    def target(prefix: tuple[int, ...]) -> Law:
        logits = torch.from_numpy(np.log(tables(prefix).probabilities)).float()
        return target_laws(logits[None], [params])[0]

    proposer = tools.proposer("sparse", tools.random_tables(22, 8, 0.0))
    emitted = tools.enumeration(rule, target, proposer, 2).emitted_law(2)
    kept = {(a, b) for a in target(()).token_ids for b in target((int(a),)).token_ids}
    assert tools.distance(tools.plain_law(target, 2), emitted) < TOLERANCE
    assert {pair for pair, mass in emitted.items() if mass > 0.0} <= kept


@pytest.mark.parametrize("seed", range(20))
def test_block_rule_accepts_at_least_as_many(tools: Any, seed: int) -> None:
    """The block rule's expected accepted length is never under the token rule's."""
    target = tools.random_tables(seed, 4, 0.1)
    proposer = tools.proposer("dense", tools.random_tables(50 + seed, 4, 0.1))
    token, block = (
        tools.enumeration(rule, target, proposer, 3).mean_accepted()
        for rule in (VerificationRule.REJECTION_TOKEN, VerificationRule.REJECTION_BLOCK)
    )
    assert block >= token - TOLERANCE


def test_block_rule_accepts_more_somewhere(tools: Any) -> None:
    """The two rules are not one: on prefix-dependent models the block rule gains over 1 %."""
    target, draft = tools.random_tables(1, 4, 0.1), tools.random_tables(51, 4, 0.1)
    token, block = (
        tools.enumeration(rule, target, tools.proposer("dense", draft), 3).mean_accepted()
        for rule in (VerificationRule.REJECTION_TOKEN, VerificationRule.REJECTION_BLOCK)
    )
    assert block > 1.01 * token
