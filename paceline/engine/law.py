"""The law that a token is drawn from, and how a draft's law is written on the wire.

A law is a value: token ids with probabilities. It knows no logits, no model and no tensor, and it
does not know which of the two models it came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.errors import InvalidArgument
from paceline.records import LawEncoding, Proposal

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

FIELD = "proposal.law"


@dataclass(frozen=True, slots=True, eq=False)
class Law:
    """A law over token ids. Ids that are not named have probability 0; named ones may have it."""

    token_ids: Ids
    """Ascending ids [n]."""
    probabilities: Floats
    """Probabilities [n], which sum to 1 up to rounding."""
    error: Exception | None = None
    """Why there is no law here, where that is not our bug."""

    @classmethod
    def point(cls, token_id: int) -> Law:
        """Returns the law that always gives `token_id`."""
        return cls(np.array([token_id], dtype=np.int64), np.array([1.0]))

    @classmethod
    def void(cls, error: Exception | None = None) -> Law:
        """Returns what stands where no law exists; reading it raises `error` or RuntimeError."""
        return cls(np.empty(0, dtype=np.int64), np.empty(0), error)

    def probability(self, token_id: int) -> float:
        """Returns the probability of one token."""
        self._require_mass()
        place = int(self.token_ids.searchsorted(token_id))
        if place == len(self.token_ids) or self.token_ids[place] != token_id:
            return 0.0
        return float(self.probabilities[place])

    def below(self, size: int) -> Law:
        """Returns the law given that the id is under `size`; void where none of the mass is."""
        count = int(self.token_ids.searchsorted(size))
        if count == len(self.token_ids):
            return self
        mass = self.probabilities[:count].sum()
        if mass == 0.0:
            return Law.void(RuntimeError(f"no id under {size} has any probability"))
        return Law(self.token_ids[:count], self.probabilities[:count] / mass)

    def locate(self, token_ids: Ids) -> tuple[Ids, npt.NDArray[np.bool_]]:
        """Returns the places [m] of `token_ids` [m] in this law, and which are there at all."""
        self._require_mass()
        places = self.token_ids.searchsorted(token_ids)
        np.minimum(places, len(self.token_ids) - 1, out=places)
        return places, self.token_ids[places] == token_ids

    def draw(self, uniform: float) -> int:
        """Returns the token at `uniform`, in [0, 1), of the inverse distribution function.

        A token of probability 0 is never returned: it adds nothing to the running sum, so it is
        never the first to exceed the point. The point stays under the total because
        `uniform <= 1 - 2**-53`.
        """
        self._require_mass()
        cumulative = self.probabilities.cumsum()
        place = cumulative.searchsorted(uniform * cumulative[-1], side="right")
        return int(self.token_ids[place])

    def race(self, noise: Floats) -> int:
        """Returns the token with the least noise [n], each over 0, per probability.

        The lowest id among equals. A token of probability 0 is never returned.
        """
        self._require_mass()
        return int(self.token_ids[(self.probabilities / noise).argmax()])

    def _require_mass(self) -> None:
        if len(self.token_ids) == 0:
            raise self.error or RuntimeError(
                "a row without a law was read: its logits are all -inf or not finite"
            )


@dataclass(frozen=True, slots=True, eq=False)
class IntegerLaw:
    """The law that a draft really draws from: what is shipped, to the last bit."""

    token_ids: Ids
    """Ascending ids [n]."""
    weights: Ids
    """Integer weights [n], each in [1, 2**32)."""

    def draw(self, bits: int) -> int:
        """Returns the token at 64 uniform `bits`; exact where the weights sum to a power of 2."""
        cumulative = self.weights.cumsum()
        point = bits * int(cumulative[-1]) >> 64
        return int(self.token_ids[cumulative.searchsorted(point, side="right")])

    def as_law(self) -> Law:
        """Returns the same law in float64, as the verify tier will read it."""
        return Law(self.token_ids, self.weights / np.add.reduce(self.weights))


def truncate(law: Law, mass: float = 0.995, max_ids: int = 64, total: int = 2**30) -> IntegerLaw:
    """Returns the likeliest ids that hold `mass`, in integer weights that sum to `total`.

    At most `max_ids` are kept, of equals the lowest. Weights are rounded down, those that become 0
    are dropped, and what is left over goes to the likeliest token.
    """
    ids, probabilities = law.token_ids, law.probabilities
    if len(ids) == 1:
        return IntegerLaw(ids, np.array([total]))
    if len(ids) > max_ids:  # select before sorting: a vocabulary is long
        floor = np.partition(probabilities, -max_ids)[-max_ids]
        kept = np.flatnonzero(probabilities >= floor)
        ids, probabilities = ids[kept], probabilities[kept]
    order = (-probabilities).argsort(kind="stable")[:max_ids]
    descending = probabilities[order]
    cumulative = descending.cumsum()
    count = int(cumulative.searchsorted(mass)) + 1
    held = cumulative[:count][-1]
    weights = (descending[:count] / held * total).astype(np.int64)  # rounded down
    weights[0] += total - np.add.reduce(weights)
    if weights[-1] == 0:  # they descend
        weights = weights[weights > 0]
    kept = order[: len(weights)]
    ascending = kept.argsort()
    return IntegerLaw(ids[kept[ascending]], weights[ascending])


def encode_sparse(laws: Sequence[IntegerLaw]) -> bytes:
    """Returns `Proposal.law` for SPARSE: per token count, ids, weights as little-endian uint32."""
    return b"".join(
        np.concatenate([[len(law.token_ids)], law.token_ids, law.weights]).astype("<u4").tobytes()
        for law in laws
    )


def decode_laws(proposal: Proposal, vocabulary_size: int) -> list[Law]:
    """Returns the law that each draft token was drawn from.

    Args:
        proposal: Its token ids are taken to be in [0, vocabulary_size).
        vocabulary_size: Number of ids that the target knows.

    Raises:
        InvalidArgument: `proposal.law` is malformed, is of a kind not served, or gives a draft
            token no probability.
    """
    num_tokens = len(proposal.token_ids)
    match proposal.encoding:
        case LawEncoding.POINT_MASS:
            if proposal.law:
                raise InvalidArgument(FIELD, "must be empty for point masses")
            return [Law.point(token_id) for token_id in proposal.token_ids]
        case LawEncoding.SPARSE:
            laws = _decode_sparse(proposal.law, num_tokens, vocabulary_size)
        case LawEncoding.DENSE:
            laws = _decode_dense(proposal.law, num_tokens, vocabulary_size)
        case LawEncoding.SHARED_NOISE:
            raise InvalidArgument(FIELD, "shared noise is verified by the coupled rule alone")
    for index, (law, token_id) in enumerate(zip(laws, proposal.token_ids, strict=True)):
        if law.probability(token_id) == 0.0:
            raise InvalidArgument(
                FIELD, f"gives draft token {index} (id {token_id}) no probability"
            )
    return laws


def _decode_sparse(law: bytes, num_tokens: int, vocabulary_size: int) -> list[Law]:
    if len(law) % 4:
        raise InvalidArgument(FIELD, f"{len(law)} bytes are no whole number of uint32")
    words = np.frombuffer(law, dtype="<u4").astype(np.int64)
    laws, start = [], 0
    for index in range(num_tokens):
        count = int(words[start]) if start < len(words) else 0
        end = start + 1 + 2 * count
        if count == 0 or end > len(words):
            raise InvalidArgument(FIELD, f"ends within draft token {index}, or it has no ids")
        ids, weights = words[start + 1 : start + 1 + count], words[start + 1 + count : end]
        laws.append(_sparse_law(index, ids, weights, vocabulary_size))
        start = end
    if start != len(words):
        raise InvalidArgument(FIELD, f"{4 * (len(words) - start)} bytes follow the last law")
    return laws


def _sparse_law(index: int, ids: Ids, weights: Ids, vocabulary_size: int) -> Law:
    if not _ascends(ids):
        order = ids.argsort()
        ids, weights = ids[order], weights[order]
        if not _ascends(ids):
            raise InvalidArgument(FIELD, f"draft token {index}: ids are not distinct")
    if ids[-1] >= vocabulary_size:
        raise InvalidArgument(FIELD, f"draft token {index}: id {ids[-1]} is not in the vocabulary")
    if weights[weights.argmax()] == 0:
        raise InvalidArgument(FIELD, f"draft token {index}: weights sum to 0")
    return IntegerLaw(ids, weights).as_law()


def _ascends(ids: Ids) -> bool:
    """Says whether each of `ids` [n] is greater than the one before it."""
    steps = ids[1:] - ids[:-1]
    return not len(steps) or bool(steps[steps.argmin()] > 0)


def _decode_dense(law: bytes, num_tokens: int, vocabulary_size: int) -> list[Law]:
    expected = 4 * num_tokens * vocabulary_size
    if len(law) != expected:
        raise InvalidArgument(FIELD, f"has {len(law)} bytes, not {expected}")
    rows = np.frombuffer(law, dtype="<f4").reshape(num_tokens, vocabulary_size).astype(np.float64)
    if not (np.isfinite(rows).all() and (rows >= 0.0).all()):
        raise InvalidArgument(FIELD, "has a probability that is negative or not finite")
    totals = rows.sum(axis=1, keepdims=True)
    if not totals.all():
        raise InvalidArgument(FIELD, "has a row that sums to 0")
    ids = np.arange(vocabulary_size)
    return [Law(ids, row) for row in rows / totals]
