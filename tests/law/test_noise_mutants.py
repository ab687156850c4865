"""Known mistakes with noise, made on purpose, are all seen; the right noise passes each test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy.stats import chisquare

from paceline.engine import coupling
from paceline.engine.coupling import Noise, exponentials
from paceline.engine.draws import Draws, Role
from paceline.engine.law import Floats, Ids, Law, truncate
from paceline.engine.rejection import verify
from paceline.records import VerificationRule

P, Q = np.array([0.15, 0.55, 0.30]), np.array([0.35, 0.25, 0.40])
PASSES, FAILS = 1e-3, 1e-9
BITS = Noise.bits
DRAW = Noise.draw
DRAWS_BITS = Draws.bits


def law(probabilities: Floats) -> Law:
    """A law over 0 .. n-1."""
    return Law(np.arange(len(probabilities)), probabilities)


# The coupled rule: one text, and it follows the target's law --------------------------------------


def coupled_text(k: int, length: int, reopened_at: int = -1) -> list[int]:
    """Rounds of draft and verify from a prompt of one token, in sessions that may be reopened."""
    text: list[int] = []
    ours, theirs = Noise(3, 0), Noise(3, 0)
    while len(text) < length:
        if 0 <= reopened_at <= len(text):
            ours, theirs, reopened_at = Noise(3, 0), Noise(3, 0), -1
        base_length = 1 + len(text)
        chain = [theirs.draw(law(Q), base_length + i) for i in range(k)]
        outcome = coupling.verify([law(P)] * (k + 1), chain, ours, base_length)
        text += [*chain[: outcome.num_accepted], outcome.next_token_id]
    return text[:length]


def keyed_by_count(self: Noise, law: Law, position: int) -> int:
    """The n-th draw of a session, wherever it stands."""
    self._sample_index += 1
    return DRAW(self, law, 0)


def keyed_by_round(self: Noise, law: Law, position: int) -> int:
    """One noise for four positions, as if a round had its own."""
    return DRAW(self, law, position // 4)


def keyed_by_place(self: Noise, position: int, token_ids: Ids) -> coupling.Bits:
    """The noise of the n-th id of a support, whichever id it is."""
    return BITS(self, position, np.arange(len(token_ids)))


def races_the_wrong_way(law: Law, noise: Floats) -> int:
    """The slowest wins."""
    return int(law.token_ids[(law.probabilities / noise).argmin()])


def ignores_the_law(law: Law, noise: Floats) -> int:
    """The least noise wins, whatever its probability."""
    return int(law.token_ids[noise.argmin()])


def follows_p(text: Sequence[int]) -> float:
    """The p-value of tokens and of their neighbours."""
    pairs = Counter(zip(text[::2], text[1::2], strict=False))
    expected = [P[a] * P[b] * (len(text) // 2) for a in range(3) for b in range(3)]
    return float(chisquare([pairs[a, b] for a in range(3) for b in range(3)], expected).pvalue)


@pytest.mark.parametrize(
    ("owner", "name", "mutant"),
    [
        (Noise, "draw", keyed_by_round),
        (Law, "race", races_the_wrong_way),
        (Law, "race", ignores_the_law),
    ],
)
def test_mutant_of_the_law_is_seen(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, mutant: Callable[..., int]
) -> None:
    """B01, B39: 6,000 tokens follow the target one by one and in pairs, and not with a mistake."""
    assert follows_p(coupled_text(2, 6000)) > PASSES
    monkeypatch.setattr(owner, name, mutant)
    assert follows_p(coupled_text(2, 6000)) < FAILS


def test_noise_keyed_by_count_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """B37: the text is the same for every k and after reopening, where nothing is counted."""
    ways = [(0, -1), (1, -1), (4, -1), (0, 13), (4, 30)]
    assert 1 == len({tuple(coupled_text(k, 60, at)) for k, at in ways})
    monkeypatch.setattr(Noise, "draw", keyed_by_count)
    assert 3 == len({tuple(coupled_text(k, 60, at)) for k, at in ways})


def matches(n: int) -> int:
    """How often a draft on half of the ids meets a target that gives them nearly all."""
    target = Law(np.arange(10), np.tile([0.001, 0.199], 5))
    draft = truncate(target, mass=0.99, max_ids=5).as_law()
    assert [1, 3, 5, 7, 9] == draft.token_ids.tolist()
    return sum(Noise(7, 0).draw(target, i) == Noise(7, 0).draw(draft, i) for i in range(n))


def test_noise_keyed_by_place_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Truncated supports couple by id: 0.995 of the draws agree, by place about a fifth."""
    assert matches(1000) > 980
    monkeypatch.setattr(Noise, "bits", keyed_by_place)
    assert matches(1000) < 500


# The rejection rules: roles and rounds share nothing ----------------------------------------------


def rejection_text(length: int, draw_draft: Callable[[Draws, int, int], int]) -> list[int]:
    """Rounds of the block rule, three draft tokens each, under one seed on both tiers."""
    draws, text = Draws(7), list[int]()
    target, draft = [law(P)] * 4, [truncate(law(Q), mass=1.0).as_law()] * 3
    while len(text) < length:
        base_length = 1 + len(text)
        chain = [draw_draft(draws, base_length, i) for i in range(3)]
        outcome = verify(VerificationRule.REJECTION_BLOCK, target, draft, chain, draws, base_length)
        text += [*chain[: outcome.num_accepted], outcome.next_token_id]
    return text[:length]


def own_role(draws: Draws, base_length: int, position: int) -> int:
    """What the draft does."""
    shipped = truncate(law(Q), mass=1.0)
    return shipped.draw(draws.bits(base_length, position, Role.DRAFT))


def the_targets_role(draws: Draws, base_length: int, position: int) -> int:
    """The draft draws with what decides whether its token stands."""
    shipped = truncate(law(Q), mass=1.0)
    return shipped.draw(draws.bits(base_length, position, Role.ACCEPT))


def test_noise_shared_between_roles_is_seen() -> None:
    """B04: the tests of a block are independent of what was drafted."""
    assert follows_p(rejection_text(6000, own_role)) > PASSES
    assert follows_p(rejection_text(6000, the_targets_role)) < FAILS


def test_one_noise_for_all_roles_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """B04: neither is the added token drawn with what decided the tests."""
    monkeypatch.setattr(
        Draws, "bits", lambda self, base, i, _: DRAWS_BITS(self, base, i, Role.NEXT)
    )
    assert follows_p(rejection_text(6000, own_role)) < FAILS


def test_the_shared_noise_does_not_serve_as_acceptance(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that tests with the noise that was drawn from accepts what it should not."""

    def race(draws: Draws, base_length: int, position: int) -> int:
        return Noise(7, 0).draw(law(Q), base_length + position)

    def least_noise(self: Draws, base_length: int, position: int, role: Role) -> float:
        bits = Noise(7, 0).bits(base_length + position, np.arange(3))
        return 1.0 - float(np.exp(-exponentials(bits).min()))

    monkeypatch.setattr(Draws, "uniform", least_noise)
    assert follows_p(rejection_text(6000, race)) < FAILS
