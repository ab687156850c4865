"""Randomness as a function of a key: who asks when, and how often, changes nothing.

Every draw of a session is keyed by its seed and the index of its sample, and by (base length,
position, role). Position alone is not
enough: the block rule spends draws behind the last accepted token, and the next round would meet
them again. It knows no law and no model.
"""

from __future__ import annotations

import enum
import hashlib
import struct

_KEY = struct.Struct("<QIB")
_DOMAIN = b"paceline.draws"


class Role(enum.IntEnum):
    """What a draw decides. Two roles never share noise, even under one seed on both tiers."""

    DRAFT = 1
    """The draft token at a position."""
    ACCEPT = 2
    """Whether the test at a position passes."""
    NEXT = 3
    """The token that a verdict adds."""
    AUDIT = 4
    """Whether a round is audited."""


class Draws:
    """The draws of one session.

    BLAKE2b keyed with the seed and salted with the sample: integer arithmetic only, so the same on
    every machine.
    """

    def __init__(self, seed: int, sample_index: int = 0) -> None:
        """Args: seed: Any unsigned 64-bit integer. sample_index: Among the samples of a request."""
        self._keyed = hashlib.blake2b(
            digest_size=8,
            key=struct.pack("<Q", seed),
            salt=struct.pack("<Q", sample_index),
            person=_DOMAIN,
        )

    def bits(self, base_length: int, position: int, role: Role) -> int:
        """Returns 64 uniform bits.

        Args:
            base_length: Number of tokens, prompt and committed, that the round continues.
            position: Index in the proposal, from 0; for `Role.NEXT` the number accepted.
            role: What is decided.
        """
        keyed = self._keyed.copy()
        keyed.update(_KEY.pack(base_length, position, role))
        return int.from_bytes(keyed.digest(), "little")

    def uniform(self, base_length: int, position: int, role: Role) -> float:
        """Returns a multiple of 2**-53 in [0, 1); arguments as for `bits`."""
        return (self.bits(base_length, position, role) >> 11) * 2.0**-53
