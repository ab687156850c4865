"""Which sequences a step is worth waiting for, since they will soon be back with more work.

A step of few rows takes as long as reading the weights, however few they are. Without a word about
it, sessions fall into groups that take turns: while one is in a step, the other's answers travel,
so every round lasts two steps. Whoever was back the last time before the shortest step would have
ended is therefore waited for, that long at most. It sees when sequences leave and come, and nothing
else.
"""

from __future__ import annotations

import math

from paceline.engine.sequence import Sequence


class Returns:
    """Owned by the engine's thread. All times are seconds of one clock."""

    def __init__(self) -> None:
        self._patience_s = math.inf
        """Duration of the shortest step so far: what one step less saves."""
        self._left_at: dict[Sequence, float] = {}
        self._absence_s: dict[Sequence, float] = {}
        """How long each was away last."""

    def add_step(self, duration_s: float) -> None:
        """Takes in one step."""
        self._patience_s = min(self._patience_s, duration_s)

    def leave(self, sequence: Sequence, now: float) -> None:
        """Notes that a sequence was given its results."""
        self._left_at[sequence] = now

    def come(self, sequence: Sequence, now: float) -> None:
        """Notes that a sequence has more work."""
        left_at = self._left_at.pop(sequence, None)
        if left_at is not None:
            self._absence_s[sequence] = now - left_at

    def forget(self, sequence: Sequence) -> None:
        """Notes that a sequence ends."""
        self._left_at.pop(sequence, None)
        self._absence_s.pop(sequence, None)

    def wait_s(self, now: float) -> float:
        """How long the next step may wait for those that are away; 0 where it should not."""
        until = (
            left_at + self._patience_s
            for sequence, left_at in self._left_at.items()
            if self._absence_s.get(sequence, math.inf) <= self._patience_s
        )
        return max(0.0, max(until, default=now) - now)
