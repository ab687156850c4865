"""The enumeration is worth something: known mistakes, made on purpose, are all seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paceline.engine import rejection
from paceline.engine.law import Law, truncate
from paceline.engine.residual import residual_law, residual_mass
from paceline.records import VerificationRule

TOKEN, BLOCK = VerificationRule.REJECTION_TOKEN, VerificationRule.REJECTION_BLOCK
SEEN = 1e-2
RATIOS = rejection._ratios
ACCEPTANCE = rejection.acceptance
ACCEPTED_LENGTH = rejection.accepted_length
NEXT_LAW = rejection.next_law


def inverted_ratio(*args: Any) -> list[float]:
    """The ratio upside down: q / p."""
    return [1.0 / ratio if ratio else 0.0 for ratio in RATIOS(*args)]


def residual_from_target(target: Law, draft: Law, scale: float) -> Law:
    """The recovered token from p itself."""
    return target


def residual_softmaxed(target: Law, draft: Law, scale: float) -> Law:
    """exp(max(p - q, 0)), normalised."""
    places, found = draft.locate(target.token_ids)
    taken = np.where(found, draft.probabilities[places], 0.0)
    weights = np.exp(np.maximum(scale * target.probabilities - taken, 0.0))
    return Law(target.token_ids, weights / weights.sum())


def residual_not_clipped(target: Law, draft: Law, scale: float) -> Law:
    """|p - q| for max(p - q, 0)."""
    places, found = draft.locate(target.token_ids)
    taken = np.where(found, draft.probabilities[places], 0.0)
    weights = np.abs(scale * target.probabilities - taken)
    return Law(target.token_ids, weights / weights.sum()) if weights.any() else target


def residual_without_scale(target: Law, draft: Law, scale: float) -> Law:
    """The block rule's a forgotten in the recovered token."""
    return residual_law(target, draft, 1.0)


def mass_without_scale(target: Law, draft: Law, scale: float) -> float:
    """The block rule's a forgotten in Z."""
    return residual_mass(target, draft, 1.0)


def mass_without_outside(target: Law, draft: Law, scale: float) -> float:
    """What the target holds outside the draft's support forgotten in Z."""
    places, found = target.locate(draft.token_ids)
    inside = np.where(found, target.probabilities[places], 0.0)
    return float(np.maximum(scale * inside - draft.probabilities, 0.0).sum())


def bonus_from_residual(tests: Any, rows: list[Law], drafts: list[Law], count: int) -> Law:
    """The bonus token from a residual against the last draft law."""
    if count < len(drafts):
        return NEXT_LAW(tests, rows, drafts, count)
    return residual_law(rows[count], drafts[-1], 1.0)


def shifted_rows(rule: Any, rows: list[Law], drafts: list[Law], chain: Any) -> Any:
    """Each draft token tested against the row behind its own."""
    return ACCEPTANCE(rule, [*rows[1:], rows[-1]], drafts, chain)


def first_never_verified(rule: Any, rows: list[Law], drafts: list[Law], chain: Any) -> Any:
    """The first draft token stands unchecked."""
    tests = ACCEPTANCE(rule, rows, drafts, chain)
    return rejection.Acceptance((1.0, *tests.probabilities[1:]), tests.scales)


def stops_at_first_failure(rule: Any, probabilities: Any, uniforms: Any) -> int:
    """The token rule's stopping whatever the rule."""
    return ACCEPTED_LENGTH(TOKEN, probabilities, uniforms)


def takes_last_pass(rule: Any, probabilities: Any, uniforms: Any) -> int:
    """The block rule's stopping whatever the rule."""
    return ACCEPTED_LENGTH(BLOCK, probabilities, uniforms)


@pytest.mark.parametrize(
    ("rule", "name", "mutant"),
    [
        (TOKEN, "_ratios", inverted_ratio),
        (BLOCK, "_ratios", inverted_ratio),
        (TOKEN, "residual_law", residual_from_target),
        (BLOCK, "residual_law", residual_from_target),
        (TOKEN, "residual_law", residual_softmaxed),
        (BLOCK, "residual_law", residual_softmaxed),
        (TOKEN, "residual_law", residual_not_clipped),
        (BLOCK, "residual_law", residual_without_scale),
        (BLOCK, "residual_mass", mass_without_scale),
        (BLOCK, "residual_mass", mass_without_outside),
        (TOKEN, "next_law", bonus_from_residual),
        (BLOCK, "next_law", bonus_from_residual),
        (TOKEN, "acceptance", shifted_rows),
        (BLOCK, "acceptance", shifted_rows),
        (TOKEN, "acceptance", first_never_verified),
        (BLOCK, "acceptance", first_never_verified),
        (BLOCK, "accepted_length", stops_at_first_failure),
        (TOKEN, "accepted_length", takes_last_pass),
    ],
)
def test_mutant_is_seen(
    tools: Any,
    monkeypatch: pytest.MonkeyPatch,
    rule: VerificationRule,
    name: str,
    mutant: Callable[..., Any],
) -> None:
    """B01, B05, B09: the same enumeration passes the right code and fails the mistake."""
    target = tools.random_tables(31, 4, 0.0)
    proposer = tools.proposer("sparse", tools.random_tables(131, 4, 0.0))
    rounds = tools.enumeration(rule, target, proposer, 2)
    plain = tools.plain_law(target, 3)
    assert tools.distance(plain, rounds.emitted_law(3)) < 1e-12
    monkeypatch.setattr(rejection, name, mutant)
    assert tools.distance(plain, rounds.emitted_law(3)) > SEEN


def test_truncating_what_is_drawn_and_shipping_it_whole_is_seen(
    tools: Any, rule: VerificationRule
) -> None:
    """B02: the law that is shipped must be the law after the draft's own truncation."""
    target, draft = tools.random_tables(41, 4, 0.0), tools.random_tables(42, 4, 0.0)

    def liar(prefix: tuple[int, ...]) -> tuple[Law, Law]:
        return truncate(draft(prefix), mass=0.8).as_law(), draft(prefix)

    emitted = tools.enumeration(rule, target, liar, 2).emitted_law(3)
    assert tools.distance(tools.plain_law(target, 3), emitted) > SEEN


def test_argmax_shipped_with_its_softmax_is_seen(tools: Any, rule: VerificationRule) -> None:
    """B06: a token taken by argmax is a point mass, whatever its softmax says."""
    target = tools.random_tables(43, 3, 0.0)
    draft = Law(np.arange(3), np.array([0.6, 0.2, 0.2]))
    emitted = tools.enumeration(rule, target, lambda _: (Law.point(0), draft), 1).emitted_law(2)
    assert tools.distance(tools.plain_law(target, 2), emitted) > SEEN
