"""The coupled rule: both tiers draw by one exponential race on shared noise, ids only on the wire.

A token's noise is E_v = -ln U_v, a function of (seed, sample index, absolute position, token id);
the token with the least E_v / p(v) wins, and the winner follows p. The target's winner is always
what is emitted, so the output does not depend on the draft, on the length of a proposal or on a
stream that was lost. A draft whose law is near runs the same race and mostly finds the same winner.

Position alone is right here, other than under the rejection rules (draws.py): nothing is ever drawn
behind the last token that stands. It knows no model and no session.

The generator: keyed BLAKE2b turns seed, sample index and position into the state of a SplitMix64
(Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), whose v-th
output is the noise of token v. Integers up to the logarithm, which is rounded to float32: the last
bit of a library's logarithm does not show.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from paceline.engine.law import Floats, Ids, Law
from paceline.engine.rejection import Outcome
from paceline.records import VerdictKind

NOISE_VERSION = 1
"""Changes with every change to the noise: tiers with different ones do not draw alike."""

Bits = npt.NDArray[np.uint64]

_KEY = struct.Struct("<iQ")
_DOMAIN = b"paceline.noise"
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_MASK = 2**64 - 1
_STRETCH = 8192
"""Ids that are looked at together: what is longer leaves the cache, and the heap, at each step."""
_ROUNDING = 1.0 + 1e-6
"""More than the float32 rounding of a noise, on both sides."""


class Noise:
    """The noise of one session; equal on both tiers."""

    def __init__(self, seed: int, sample_index: int) -> None:
        """Args: seed: Any unsigned 64-bit integer. sample_index: Among the samples of a request."""
        self._keyed = hashlib.blake2b(digest_size=8, key=struct.pack("<Q", seed), person=_DOMAIN)
        self._sample_index = sample_index

    def bits(self, position: int, token_ids: Ids) -> Bits:
        """Returns 64 uniform bits for each of `token_ids` [n]; `position` as for `draw`."""
        keyed = self._keyed.copy()
        keyed.update(_KEY.pack(self._sample_index, position))
        # Token v takes output v + 1 of the generator: the state moves by a step for each.
        state = (int.from_bytes(keyed.digest(), "little") + int(_STEP)) & _MASK
        bits = token_ids.astype(np.int64).view(np.uint64)  # a copy, mixed in place
        bits *= _STEP
        bits += np.uint64(state)
        bits ^= bits >> np.uint64(30)
        bits *= _MIX_1
        bits ^= bits >> np.uint64(27)
        bits *= _MIX_2
        bits ^= bits >> np.uint64(31)
        return bits

    def draw(self, law: Law, position: int) -> int:
        """Returns the token that wins the race at one position; only the law's own ids run.

        Args:
            law: What the token is drawn from.
            position: Index of the token in prompt and output together, from 0.
        """
        if len(law.token_ids) > _STRETCH:
            law = self._rivals(law, position)
        return law.race(exponentials(self.bits(position, law.token_ids)))

    def scores(self, law: Law, position: int) -> Floats:
        """Returns p(v) / E_v for the law's own ids [n]; the greatest one wins. See `draw`."""
        return law.probabilities / exponentials(self.bits(position, law.token_ids))

    def _rivals(self, law: Law, position: int) -> Law:
        """Returns the law [m] of all who can win, equals of the winner among them; not normalized.

        The likeliest token has p / E, and who beats it has E <= its own p / (p / E). Since
        1 - U <= -ln U = E, most tokens are seen to lose without a logarithm, from their integers.
        """
        place = int(law.probabilities.argmax())
        (noise,) = exponentials(self.bits(position, law.token_ids[place : place + 1]))
        scale = _ROUNDING * 2.0**52 * noise / law.probabilities[place]
        kept = []
        for start in range(0, len(law.token_ids), _STRETCH):
            stretch = slice(start, start + _STRETCH)
            bits = self.bits(position, law.token_ids[stretch])
            cells = (~bits >> np.uint64(12)).view(np.int64)  # 1 - U is half a cell more
            kept.append(start + np.flatnonzero(cells <= law.probabilities[stretch] * scale))
        places = np.concatenate(kept)
        return Law(law.token_ids[places], law.probabilities[places])


def exponentials(bits: Bits) -> Floats:
    """Returns -ln U [n], with float32 precision, for U the midpoint of one of 2**52 cells."""
    uniforms = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return -np.log(uniforms).astype(np.float32).astype(np.float64)


def verify(
    target_laws: Sequence[Law], token_ids: Sequence[int], noise: Noise, base_length: int
) -> Outcome:
    """Draws from the target until a draft token differs, or behind the last one.

    Args:
        target_laws: k+1 laws, row i behind the first i draft tokens. Rows behind a draft token
            that differs are never read.
        token_ids: The k draft tokens, however they were chosen; none is plain decoding.
        noise: The session's noise.
        base_length: Number of tokens, prompt and committed, that the proposal continues.
    """
    for i, token_id in enumerate(token_ids):
        drawn = noise.draw(target_laws[i], base_length + i)
        if drawn != token_id:
            return Outcome(i, drawn, VerdictKind.RECOVERED)
    k = len(token_ids)
    kind = VerdictKind.BONUS if k else VerdictKind.PLAIN
    return Outcome(k, noise.draw(target_laws[k], base_length + k), kind)
