"""Exact enumeration of what a whole generation emits, through the verifier's own functions.

Nothing is sampled: every draft chain, every pattern of passed tests and every next token is walked
with its probability, over as many rounds as the length asked for takes.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from paceline.engine import rejection
from paceline.engine.law import IntegerLaw, Law, decode_laws, encode_sparse, truncate
from paceline.records import LawEncoding, Proposal, VerificationRule

Prefix = tuple[int, ...]
Model = Callable[[Prefix], Law]
Rows = Callable[[Prefix, Prefix], list[Law]]
"""From a prefix and draft tokens to the k+1 laws of one forward pass."""
Proposer = Callable[[Prefix], tuple[Law, Law]]
"""From a prefix to the law that is drawn from and the law that is shipped; equal where honest."""


def plain_law(target: Model, length: int) -> dict[Prefix, float]:
    """Returns the law of the first `length` tokens of plain decoding."""
    laws: dict[Prefix, float] = {(): 1.0}
    for _ in range(length):
        laws = {
            (*prefix, int(token)): mass * float(p)
            for prefix, mass in laws.items()
            for token, p in _support(target(prefix))
        }
    return laws


def distance(a: dict[Prefix, float], b: dict[Prefix, float]) -> float:
    """Returns the total variation distance."""
    return 0.5 * sum(abs(a.get(key, 0.0) - b.get(key, 0.0)) for key in a.keys() | b.keys())


@dataclass(frozen=True)
class Enumeration:
    """One target, one draft, one rule, and how many tokens a round drafts."""

    rule: VerificationRule
    target: Model
    proposer: Proposer
    num_draft_tokens: int
    rows: Rows | None = None
    """How the rows of a proposal come about; where unset, each from the target by itself."""

    def emitted_law(self, length: int) -> dict[Prefix, float]:
        """Returns the law of the first `length` tokens of rounds from an empty prefix."""
        reached: dict[Prefix, float] = {(): 1.0}
        emitted: dict[Prefix, float] = defaultdict(float)
        while reached:  # shortest first, so that every prefix is expanded once
            prefix = min(reached, key=len)
            mass = reached.pop(prefix)
            if len(prefix) >= length:
                emitted[prefix[:length]] += mass
                continue
            for weight, num_accepted, chain, token in self.round_outcomes(prefix):
                after = (*prefix, *chain[:num_accepted], token)[:length]
                reached[after] = reached.get(after, 0.0) + mass * weight
        return emitted

    def accepted_law(self, prefix: Prefix = ()) -> dict[int, float]:
        """Returns the law of the number of accepted tokens of one round."""
        law: dict[int, float] = defaultdict(float)
        for weight, num_accepted, _, _ in self.round_outcomes(prefix):
            law[num_accepted] += weight
        return law

    def mean_accepted(self, prefix: Prefix = ()) -> float:
        """Returns the expected number of accepted tokens of one round."""
        return sum(count * mass for count, mass in self.accepted_law(prefix).items())

    def round_outcomes(self, prefix: Prefix) -> Iterator[tuple[float, int, Prefix, int]]:
        """Yields (probability, accepted, chain, next token) of one round."""
        for weight, chain, shipped in self._chains(prefix):
            rows = self._rows(prefix, chain)
            tests = rejection.acceptance(self.rule, rows, shipped, chain)
            for chance, uniforms in _patterns(tests.probabilities):
                count = rejection.accepted_length(self.rule, tests.probabilities, uniforms)
                for token, p in _support(rejection.next_law(tests, rows, shipped, count)):
                    yield weight * chance * p, count, chain, token

    def _rows(self, prefix: Prefix, chain: Prefix) -> list[Law]:
        if self.rows is not None:
            return self.rows(prefix, chain)
        return [self.target((*prefix, *chain[:i])) for i in range(len(chain) + 1)]

    def _chains(self, prefix: Prefix) -> Iterator[tuple[float, Prefix, list[Law]]]:
        """Yields (probability, draft tokens, shipped laws) of one proposal."""
        chains: list[tuple[float, Prefix, list[Law]]] = [(1.0, (), [])]
        for _ in range(self.num_draft_tokens):
            longer = []
            for weight, chain, laws in chains:
                drawn, shipped = self.proposer((*prefix, *chain))
                for token, q in _support(drawn):
                    longer.append((weight * q, (*chain, token), [*laws, shipped]))
            chains = longer
        yield from chains


def _patterns(probabilities: tuple[float, ...]) -> Iterator[tuple[float, list[float]]]:
    """Yields each pattern of passed tests as uniforms that give it, with its probability.

    A uniform of 0 passes every test that can pass; one of h fails it, the comparison being strict.
    """
    for pattern in itertools.product((True, False), repeat=len(probabilities)):
        pairs = list(zip(pattern, probabilities, strict=True))
        chance = float(np.prod([h if passes else 1.0 - h for passes, h in pairs]))
        if chance > 0.0:
            yield chance, [0.0 if passes else h for passes, h in pairs]


def _support(law: Law) -> list[tuple[int, float]]:
    pairs = zip(law.token_ids.tolist(), law.probabilities.tolist(), strict=True)
    return [(token, p) for token, p in pairs if p > 0.0]


def random_tables(seed: int, size: int, zeros: float) -> Model:
    """Returns a model with its own random row per prefix, each entry 0 with chance `zeros`."""

    def law(prefix: Prefix) -> Law:
        generator = np.random.default_rng([seed, len(prefix), *prefix])
        weights = generator.dirichlet(np.ones(size)) * (generator.random(size) >= zeros)
        weights[generator.integers(size)] += 0.1
        return Law(np.arange(size), weights / weights.sum())

    return law


def guarded(target: Model) -> Model:
    """Returns the target with no law at all behind an impossible token, as a grammar leaves it."""

    def law(prefix: Prefix) -> Law:
        for i, token in enumerate(prefix):
            if target(prefix[:i]).probability(token) == 0.0:
                return Law.void()
        return target(prefix)

    return law


def sparse_proposer(draft: Model, point_every: int = 0) -> Proposer:
    """Draws from a truncated integer law and ships its bytes; every n-th position is one id."""

    def propose(prefix: Prefix) -> tuple[Law, Law]:
        is_point = bool(point_every) and len(prefix) % point_every == 0
        law = truncate(draft(prefix), mass=0.9, max_ids=1 if is_point else 2)
        return exact(law), _shipped(law)

    return propose


def exact(law: IntegerLaw) -> Law:
    """Returns what `law` draws from, by its own integers."""
    return Law(law.token_ids, law.weights / float(law.weights.sum()))


def _shipped(law: IntegerLaw) -> Law:
    proposal = Proposal(1, 1, (int(law.token_ids[0]),), LawEncoding.SPARSE, encode_sparse([law]))
    return decode_laws(proposal, vocabulary_size=64)[0]


def dense_proposer(draft: Model) -> Proposer:
    """Draws from float32 rows and ships them whole."""

    def propose(prefix: Prefix) -> tuple[Law, Law]:
        law = draft(prefix)
        row = law.probabilities.astype("<f4")
        drawn = Law(law.token_ids, row.astype(np.float64) / row.astype(np.float64).sum())
        proposal = Proposal(1, 1, (int(row.argmax()),), LawEncoding.DENSE, row.tobytes())
        return drawn, decode_laws(proposal, len(row))[0]

    return propose


def point_proposer(draft: Model) -> Proposer:
    """Takes the likeliest token and ships a point mass."""

    def propose(prefix: Prefix) -> tuple[Law, Law]:
        law = Law.point(int(draft(prefix).probabilities.argmax()))
        return law, law

    return propose


PROPOSERS: dict[str, Callable[[Model], Proposer]] = {
    "sparse": sparse_proposer,
    "dense": dense_proposer,
    "point_mass": point_proposer,
    "mixed": lambda draft: sparse_proposer(draft, point_every=2),
}


@dataclass(frozen=True)
class Toolbox:
    """What the tests of this folder share, in one fixture."""

    enumeration: type[Enumeration] = Enumeration
    plain_law: Callable[[Model, int], dict[Prefix, float]] = plain_law
    distance: Callable[[dict[Prefix, float], dict[Prefix, float]], float] = distance
    random_tables: Callable[[int, int, float], Model] = random_tables
    guarded: Callable[[Model], Model] = guarded

    def proposer(self, kind: str, draft: Model) -> Proposer:
        """Returns an honest proposer: sparse, dense, point_mass or mixed."""
        return PROPOSERS[kind](draft)


@pytest.fixture
def tools() -> Toolbox:
    """The enumeration and its models."""
    return Toolbox()


@pytest.fixture(params=[VerificationRule.REJECTION_TOKEN, VerificationRule.REJECTION_BLOCK])
def rule(request: pytest.FixtureRequest) -> VerificationRule:
    """Each of the two rejection rules."""
    value = request.param
    assert isinstance(value, VerificationRule)
    return value
