"""Verification by rejection: which draft tokens stand, and which token is added.

Two rules with one output law, the target's: the token rule (arXiv:2211.17192) and block
verification (arXiv:2403.10444). In the formulas p is the target's law, q the law that a draft token
was drawn from, x_1 .. x_k the draft tokens. Pure functions of values: no model, no session.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from paceline.engine.draws import Draws, Role
from paceline.engine.law import Law
from paceline.engine.residual import residual_law, residual_mass
from paceline.records import VerdictKind, VerificationRule


@dataclass(frozen=True, slots=True)
class Outcome:
    """What verification decided."""

    num_accepted: int
    next_token_id: int
    kind: VerdictKind


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How likely each draft token passes its test, and what a recovered token is drawn from."""

    probabilities: tuple[float, ...]
    """h_1 .. h_k: test i passes where a uniform draw is under h_i."""
    scales: tuple[float, ...]
    """a for 0 .. k-1 accepted: the recovered token's law is norm(max(a p - q, 0))."""


def verify(
    rule: VerificationRule,
    target_laws: Sequence[Law],
    draft_laws: Sequence[Law],
    token_ids: Sequence[int],
    draws: Draws,
    base_length: int,
) -> Outcome:
    """Accepts a prefix of the draft tokens and draws one more token.

    Args:
        rule: Which of the two rules.
        target_laws: k+1 laws, row i behind the first i draft tokens. Rows behind a draft token
            that the target gives probability 0 are never read.
        draft_laws: k laws, each the one its draft token was drawn from, so q(x_i) > 0.
        token_ids: The k draft tokens; none is plain decoding.
        draws: The session's randomness.
        base_length: Number of tokens, prompt and committed, that the proposal continues.

    Raises:
        ValueError: The coupled rule, which is `coupling.verify`.
    """
    k = len(token_ids)
    tests = acceptance(rule, target_laws, draft_laws, token_ids)
    uniforms = [draws.uniform(base_length, i, Role.ACCEPT) for i in range(k)]
    num_accepted = accepted_length(rule, tests.probabilities, uniforms)
    kind = VerdictKind.RECOVERED if num_accepted < k else VerdictKind.BONUS
    law = next_law(tests, target_laws, draft_laws, num_accepted)
    token_id = law.draw(draws.uniform(base_length, num_accepted, Role.NEXT))
    return Outcome(num_accepted, token_id, kind if k else VerdictKind.PLAIN)


def acceptance(
    rule: VerificationRule,
    target_laws: Sequence[Law],
    draft_laws: Sequence[Law],
    token_ids: Sequence[int],
) -> Acceptance:
    """Returns h and a of one proposal; arguments and errors as for `verify`."""
    match rule:
        case VerificationRule.REJECTION_TOKEN:
            return _token_rule(_ratios(target_laws, draft_laws, token_ids))
        case VerificationRule.REJECTION_BLOCK:
            return _block_rule(_ratios(target_laws, draft_laws, token_ids), target_laws, draft_laws)
        case VerificationRule.COUPLED:
            raise ValueError("the coupled rule has no tests")


def _ratios(
    target_laws: Sequence[Law], draft_laws: Sequence[Law], token_ids: Sequence[int]
) -> list[float]:
    """Returns p(x_i) / q(x_i); 0 behind an impossible token, without reading those rows."""
    ratios = [0.0] * len(token_ids)
    for i, (draft, token_id) in enumerate(zip(draft_laws, token_ids, strict=True)):
        ratios[i] = target_laws[i].probability(token_id) / draft.probability(token_id)
        if ratios[i] == 0.0:
            break
    return ratios


def _token_rule(ratios: Sequence[float]) -> Acceptance:
    """h_i = min(1, p(x_i) / q(x_i)); a = 1."""
    return Acceptance(tuple(min(1.0, ratio) for ratio in ratios), (1.0,) * len(ratios))


def _block_rule(
    ratios: Sequence[float], target_laws: Sequence[Law], draft_laws: Sequence[Law]
) -> Acceptance:
    """a_i = min(1, a_{i-1} p(x_i) / q(x_i)) from a_0 = 1; h_i = Z_i / (Z_i + 1 - a_i), h_k = a_k.

    Z_i = sum max(a_i p - q, 0) in the laws behind x_i. 0/0 is 1: p = q there, and all stands.
    """
    scales = list(accumulate(ratios, lambda a, ratio: min(1.0, a * ratio), initial=1.0))
    probabilities = scales[1:]
    for i in range(1, len(ratios)):
        if scales[i] > 0.0:
            mass = residual_mass(target_laws[i], draft_laws[i], scales[i])
            slack = mass + 1.0 - scales[i]
            probabilities[i - 1] = mass / slack if slack > 0.0 else 1.0
    return Acceptance(tuple(probabilities), tuple(scales[:-1]))


def accepted_length(
    rule: VerificationRule, probabilities: Sequence[float], uniforms: Sequence[float]
) -> int:
    """Returns how many draft tokens stand, given one uniform draw in [0, 1) per test.

    The token rule stops at the first failure; the block rule takes the last test that passes,
    whatever failed before it. Strictly under: where h = 0 nothing passes.
    """
    passed = [u < h for u, h in zip(uniforms, probabilities, strict=True)]
    if rule is VerificationRule.REJECTION_TOKEN:
        return [*passed, False].index(False)
    return max((i for i, is_passed in enumerate(passed, start=1) if is_passed), default=0)


def next_law(
    tests: Acceptance, target_laws: Sequence[Law], draft_laws: Sequence[Law], num_accepted: int
) -> Law:
    """Returns the law of the token behind the accepted prefix: residual, or p if all stands."""
    i = num_accepted
    if i == len(draft_laws):
        return target_laws[i]
    return residual_law(target_laws[i], draft_laws[i], tests.scales[i])
