"""Faults that others reported, on the smallest laws that show them."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from paceline.engine.draws import Draws, Role
from paceline.engine.law import Law, truncate
from paceline.engine.rejection import verify
from paceline.engine.sampling import greedy_tokens, target_laws
from paceline.records import SamplingParams, VerdictKind, VerificationRule


def law(*probabilities: float) -> Law:
    """A law over 0 .. n-1."""
    return Law(np.arange(len(probabilities)), np.array(probabilities))


def constant(tools: Any, rule: VerificationRule, p: Law, q: Law, k: int) -> Any:
    """The enumeration in which every position has the same two laws."""
    return tools.enumeration(rule, lambda _: p, lambda _: (q, q), k)


def first_token(rounds: Any) -> list[float]:
    """The law of the first token, by id."""
    emitted = rounds.emitted_law(1)
    return [emitted.get((token,), 0.0) for token in range(len(rounds.target(()).probabilities))]


def test_acceptance_is_the_overlap(tools: Any, rule: VerificationRule) -> None:
    """B01: acceptance is sum min(p, q) = 0.90."""
    rounds = constant(tools, rule, law(0.5, 0.3, 0.2), law(0.4, 0.4, 0.2), 1)
    assert rounds.mean_accepted() == pytest.approx(0.90, abs=1e-12)
    assert first_token(rounds) == pytest.approx([0.5, 0.3, 0.2], abs=1e-12)


def test_lost_draft_law_shows_as_low_acceptance(tools: Any, rule: VerificationRule) -> None:
    """B01: with q lost, every token a point mass, acceptance is sum pq = 0.36."""
    p, q = law(0.5, 0.3, 0.2), law(0.4, 0.4, 0.2)
    by_token = [constant(tools, rule, p, Law.point(token), 1).mean_accepted() for token in range(3)]
    assert float(np.dot(q.probabilities, by_token)) == pytest.approx(0.36, abs=1e-12)


@pytest.mark.parametrize("num_draft_tokens", [1, 3])
def test_processed_draft_is_shipped_processed(
    tools: Any, rule: VerificationRule, num_draft_tokens: int
) -> None:
    """B02: draft at temperature 0.7 with top-k 2, target at temperature 1, six tokens."""
    logits = torch.tensor([[0.3, 1.1, -0.4, 0.9, 0.0, -1.5], [0.2, 0.5, 1.0, 0.1, -0.7, 0.4]])
    params = [SamplingParams(temperature=0.7, top_k=2), SamplingParams()]
    q, p = target_laws(logits, params)
    shipped = truncate(q)
    rounds = constant(tools, rule, p, shipped.as_law(), num_draft_tokens)
    assert first_token(rounds) == pytest.approx(list(p.probabilities), abs=1e-12)
    assert q.token_ids.tolist() == shipped.token_ids.tolist()
    assert 2**30 == shipped.weights.sum()


@pytest.mark.parametrize("num_draft_tokens", [1, 3])
def test_one_seed_on_both_tiers(rule: VerificationRule, num_draft_tokens: int) -> None:
    """B04, B40: drafting and verifying under one seed leaves every depth at the target's law."""
    p, q = law(0.15, 0.55, 0.30), law(0.35, 0.25, 0.40)
    shipped, draws, length = truncate(q, mass=1.0), Draws(7), 1
    by_depth = [Counter[int]() for _ in range(num_draft_tokens + 1)]
    drafts, targets = [shipped.as_law()] * num_draft_tokens, [p] * (num_draft_tokens + 1)
    while length < 12_000:
        chain = [shipped.draw(draws.bits(length, i, Role.DRAFT)) for i in range(num_draft_tokens)]
        outcome = verify(rule, targets, drafts, chain, draws, length)
        for depth, token in enumerate((*chain[: outcome.num_accepted], outcome.next_token_id)):
            by_depth[depth][token] += 1
        length += outcome.num_accepted + 1
    tokens = sum(by_depth, Counter())
    for token, share in enumerate(p.probabilities):
        sigma = math.sqrt(share * (1.0 - share) / tokens.total())
        assert abs(tokens[token] / tokens.total() - share) < 4.0 * sigma
    first = by_depth[0]
    for token, share in enumerate(p.probabilities):
        sigma = math.sqrt(share * (1.0 - share) / first.total())
        assert abs(first[token] / first.total() - share) < 4.0 * sigma


def test_impossible_tokens_are_never_recovered(tools: Any, rule: VerificationRule) -> None:
    """B05: the residual is normalised, not softmaxed, so no mass reaches what p excludes."""
    rounds = constant(tools, rule, law(0.5, 0.5, 0.0, 0.0), law(0.9, 0.1, 0.0, 0.0), 2)
    assert first_token(rounds) == pytest.approx([0.5, 0.5, 0.0, 0.0], abs=1e-12)
    assert all(token < 2 for tokens in rounds.emitted_law(2) for token in tokens)


def test_greedy_draft_is_a_point_mass(tools: Any, rule: VerificationRule) -> None:
    """B06: an argmax draft against a sampling target."""
    rounds = constant(tools, rule, law(0.3, 0.5, 0.2), Law.point(0), 1)
    assert first_token(rounds) == pytest.approx([0.3, 0.5, 0.2], abs=1e-12)
    assert rounds.mean_accepted() == pytest.approx(0.3, abs=1e-12)


def test_acceptance_is_not_the_chance_of_a_match(tools: Any, rule: VerificationRule) -> None:
    """B08: 0.8 = sum min(p, q), not the 0.5 = sum pq of two independent draws that agree."""
    rounds = constant(tools, rule, law(0.7, 0.3), law(0.5, 0.5), 1)
    assert rounds.mean_accepted() == pytest.approx(0.8, abs=1e-12)
    assert first_token(rounds) == pytest.approx([0.7, 0.3], abs=1e-12)


@pytest.mark.parametrize("num_draft_tokens", [1, 2, 4])
def test_wrong_draft_is_never_accepted(rule: VerificationRule, num_draft_tokens: int) -> None:
    """B09: a greedy target with a draft that is always wrong accepts 0 tokens in every round."""
    targets, drafts = [Law.point(3)] * (num_draft_tokens + 1), [Law.point(1)] * num_draft_tokens
    for base_length in range(1, 65):
        outcome = verify(rule, targets, drafts, [1] * num_draft_tokens, Draws(1), base_length)
        assert (0, 3, VerdictKind.RECOVERED) == (
            outcome.num_accepted,
            outcome.next_token_id,
            outcome.kind,
        )


@pytest.mark.parametrize("num_draft_tokens", [0, 4])
def test_sampling_is_not_argmax(tools: Any, rule: VerificationRule, num_draft_tokens: int) -> None:
    """B10: the law at temperature 1 holds with and without a draft, on this backend."""
    p = target_laws(torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log(), [SamplingParams()])[0]
    rounds = constant(tools, rule, p, law(0.7, 0.3), num_draft_tokens)
    assert first_token(rounds) == pytest.approx([0.4, 0.3, 0.2, 0.1], abs=1e-7)


@pytest.mark.parametrize("num_draft_tokens", [0, 4])
def test_ties_go_to_the_lowest_id(rule: VerificationRule, num_draft_tokens: int) -> None:
    """B14: tokens 2 and 5 are equal at the top; whoever drafts 5, the output is 2."""
    logits = torch.tensor([[0.0, 1.0, 3.0, -1.0, 2.0, 3.0]]).repeat(num_draft_tokens + 1, 1)
    targets = target_laws(logits, [SamplingParams(temperature=0.0)] * (num_draft_tokens + 1))
    drafts = [Law.point(5)] * num_draft_tokens
    outcome = verify(rule, targets, drafts, [5] * num_draft_tokens, Draws(3), 9)
    assert (0, 2) == (outcome.num_accepted, outcome.next_token_id)
    assert [2] * (num_draft_tokens + 1) == greedy_tokens(logits)
