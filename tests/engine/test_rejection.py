"""The rules' numbers on laws small enough to work out by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from paceline.engine.draws import Draws, Role
from paceline.engine.law import Law
from paceline.engine.rejection import Acceptance, acceptance, accepted_length, next_law, verify
from paceline.engine.residual import residual_law, residual_mass
from paceline.records import VerdictKind, VerificationRule

TOKEN, BLOCK = VerificationRule.REJECTION_TOKEN, VerificationRule.REJECTION_BLOCK


class ScriptedDraws(Draws):
    """Gives the accept draws in order and one next draw, and records the keys asked for."""

    def __init__(self, accepts: Sequence[float], following: float) -> None:
        super().__init__(0)
        self._accepts, self._following = accepts, following
        self.keys: list[tuple[int, int, Role]] = []

    def uniform(self, base_length: int, position: int, role: Role) -> float:
        """Returns the scripted draw."""
        self.keys.append((base_length, position, role))
        return self._accepts[position] if role is Role.ACCEPT else self._following


def law(*probabilities: float) -> Law:
    """A law over 0 .. n-1."""
    return Law(np.arange(len(probabilities)), np.array(probabilities))


P1, P2, P3 = law(0.5, 0.3, 0.2), law(0.2, 0.2, 0.6), law(0.1, 0.8, 0.1)
Q1, Q2 = law(0.25, 0.5, 0.25), law(0.4, 0.4, 0.2)


def test_token_rule_by_hand() -> None:
    """Here h = (0.3 / 0.5, 0.2 / 0.4), residual scale 1 everywhere."""
    tests = acceptance(TOKEN, [P1, P2, P3], [Q1, Q2], [1, 0])
    assert [0.6, 0.5] == pytest.approx(tests.probabilities)
    assert (1.0, 1.0) == tests.scales


def test_block_rule_by_hand() -> None:
    """a_1 = 0.6, Z_1 = max(0.36 - 0.2, 0) = 0.16, h_1 = 0.16 / 0.56; h_2 = a_2 = 0.3."""
    tests = acceptance(BLOCK, [P1, P2, P3], [Q1, Q2], [1, 0])
    assert [0.16 / 0.56, 0.3] == pytest.approx(tests.probabilities)
    assert [1.0, 0.6] == pytest.approx(tests.scales)


def test_block_rule_lets_a_later_token_make_up_for_an_earlier() -> None:
    """a_2 = min(1, 0.6 * 0.6 / 0.2) = 1: both stand although the first ratio is 0.6."""
    tests = acceptance(BLOCK, [P1, P2, P3], [Q1, Q2], [1, 2])
    assert 1.0 == tests.probabilities[1]


def test_block_rule_takes_0_over_0_as_1() -> None:
    """Where p = q from some position on, Z = 0 and a = 1: the test there passes."""
    assert (1.0, 1.0) == acceptance(BLOCK, [P1, P2, P3], [P1, P2], [0, 0]).probabilities


@pytest.mark.parametrize(
    ("rule", "uniforms", "expected"),
    [
        (TOKEN, [0.4, 0.4, 0.4], 3),
        (TOKEN, [0.4, 0.6, 0.4], 1),
        (TOKEN, [0.6, 0.4, 0.4], 0),
        (BLOCK, [0.4, 0.6, 0.4], 3),
        (BLOCK, [0.6, 0.4, 0.6], 2),
        (BLOCK, [0.6, 0.6, 0.6], 0),
        (TOKEN, [0.5, 0.5, 0.5], 0),
        (BLOCK, [0.5, 0.5, 0.5], 0),
    ],
)
def test_accepted_length(rule: VerificationRule, uniforms: list[float], expected: int) -> None:
    """First failure against last pass; a draw equal to h fails."""
    assert expected == accepted_length(rule, [0.5] * 3, uniforms)


@pytest.mark.parametrize("rule", [TOKEN, BLOCK])
def test_nothing_passes_at_probability_0(rule: VerificationRule) -> None:
    """The comparison is strict, so a uniform draw of 0 does not let an impossible token through."""
    assert 0 == accepted_length(rule, [0.0, 0.0], [0.0, 0.0])


@pytest.mark.parametrize("rule", [TOKEN, BLOCK])
def test_rows_behind_an_impossible_token_are_not_read(rule: VerificationRule) -> None:
    """A terminated grammar masks them whole: no law, no NaN, no acceptance."""
    rows = [law(0.5, 0.5, 0.0), law(0.0, 0.5, 0.5), Law.void(), Law.void()]
    drafts = [law(1 / 3, 1 / 3, 1 / 3)] * 3
    tests = acceptance(rule, rows, drafts, [0, 0, 1])
    assert (0.0, 0.0) == tests.probabilities[1:]
    outcome = verify(rule, rows, drafts, [0, 0, 1], ScriptedDraws([0.0] * 3, 0.0), 5)
    assert outcome.num_accepted <= 1
    assert VerdictKind.RECOVERED is outcome.kind


@pytest.mark.parametrize("rule", [TOKEN, BLOCK])
def test_a_row_without_a_law_that_is_needed_is_an_error(rule: VerificationRule) -> None:
    """A masked row behind tokens that may stand is our bug and is not papered over."""
    with pytest.raises(RuntimeError, match="row without a law"):
        verify(rule, [P1, Law.void(), P3], [Q1, Q2], [0, 0], ScriptedDraws([0.0] * 2, 0.0), 5)


@pytest.mark.parametrize("scale", [1.0, 0.6, 0.0])
def test_residual_over_sparse_supports(scale: float) -> None:
    """Sparse against sparse equals the dense formula, mass and law alike."""
    target = Law(np.array([1, 4, 6]), np.array([0.5, 0.3, 0.2]))
    draft = Law(np.array([0, 4, 6, 9]), np.array([0.4, 0.1, 0.3, 0.2]))
    left = np.array([0.5 * scale, max(0.3 * scale - 0.1, 0.0), max(0.2 * scale - 0.3, 0.0)])
    assert left.sum() == pytest.approx(residual_mass(target, draft, scale), abs=1e-15)
    expected = left / left.sum() if scale else target.probabilities
    assert expected == pytest.approx(residual_law(target, draft, scale).probabilities, abs=1e-15)


def test_residual_of_equal_laws_is_the_target() -> None:
    """Mass that underflows to 0 means p = q: p itself, never 0 / 0."""
    assert P1 is residual_law(P1, law(0.5, 0.3, 0.2), 1.0)


def test_residual_leaves_its_arguments_alone() -> None:
    """Laws are values."""
    before = P1.probabilities.tolist()
    residual_law(P1, Q1, 1.0)
    assert before == P1.probabilities.tolist()


def test_next_law_takes_the_row_behind_the_accepted_prefix() -> None:
    """Row and scale by number accepted; the bonus row is the target's, untouched."""
    tests = Acceptance((0.6, 0.3), (1.0, 0.6))
    rows, drafts = [P1, P2, P3], [Q1, Q2]
    assert [1.0, 0.0, 0.0] == next_law(tests, rows, drafts, 0).probabilities.tolist()
    assert [0.0, 0.0, 1.0] == next_law(tests, rows, drafts, 1).probabilities.tolist()
    assert P3 is next_law(tests, rows, drafts, 2)


@pytest.mark.parametrize("rule", [TOKEN, BLOCK])
@pytest.mark.parametrize(
    ("accepts", "expected"),
    [
        ([0.0, 0.0], (2, 1, VerdictKind.BONUS)),
        ([0.0, 0.99], (1, 2, VerdictKind.RECOVERED)),
        ([0.99, 0.99], (0, 0, VerdictKind.RECOVERED)),
    ],
)
def test_verify_composes(
    rule: VerificationRule, accepts: list[float], expected: tuple[int, int, VerdictKind]
) -> None:
    """Accepted, next token and its kind, with each draw under the key that is its own."""
    draws = ScriptedDraws(accepts, 0.5)
    outcome = verify(rule, [P1, P2, P3], [Q1, Q2], [1, 0], draws, 17)
    assert expected == (outcome.num_accepted, outcome.next_token_id, outcome.kind)
    assert [
        (17, 0, Role.ACCEPT),
        (17, 1, Role.ACCEPT),
        (17, outcome.num_accepted, Role.NEXT),
    ] == draws.keys


@pytest.mark.parametrize("rule", [TOKEN, BLOCK])
def test_an_empty_proposal_is_plain_decoding(rule: VerificationRule) -> None:
    """With k = 0: one draw from the target, kind PLAIN."""
    draws = ScriptedDraws([], 0.6)
    outcome = verify(rule, [P1], [], [], draws, 4)
    assert (0, 1, VerdictKind.PLAIN) == (outcome.num_accepted, outcome.next_token_id, outcome.kind)
    assert [(4, 0, Role.NEXT)] == draws.keys


def test_verdict_is_a_function_of_its_arguments() -> None:
    """A proposal sent again after a lost stream gets the same verdict."""
    outcomes = {verify(BLOCK, [P1, P2, P3], [Q1, Q2], [1, 0], Draws(9), 30) for _ in range(5)}
    assert 1 == len(outcomes)


def test_coupled_rule_tests_nothing() -> None:
    """Named, never silent, an empty proposal included."""
    with pytest.raises(ValueError, match="coupled"):
        verify(VerificationRule.COUPLED, [P1], [], [], Draws(0), 1)


def test_as_many_draft_laws_as_tokens() -> None:
    """A law too few is an error of the caller, not a shorter proposal."""
    with pytest.raises(ValueError, match="argument 2"):
        acceptance(TOKEN, [P1, P2, P3], [Q1], [1, 0])
