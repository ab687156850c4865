"""How many draft tokens the next proposal gets: one small object per session.

A policy is pure and replayable: its answer depends on the verdicts it was shown and on nothing
else, in particular not on a drafted value that was not yet verified (which would bias the output)
and not on time. It does not know budgets or tier limits, which the round applies, nor how other
sessions fare, from which `watch.py` caps it.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol


class DraftLengthPolicy(Protocol):
    """Decides the length of proposals."""

    @property
    def num_draft_tokens(self) -> int:
        """Length wanted for the next proposal, at least 0."""

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Takes in the outcome of one round with `num_drafted` >= 1 draft tokens."""


class FixedLength:
    """Always the same length; 0 is plain decoding."""

    def __init__(self, num_draft_tokens: int) -> None:
        self._num_draft_tokens = num_draft_tokens

    @property
    def num_draft_tokens(self) -> int:
        """The pinned length."""
        return self._num_draft_tokens

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Learns nothing."""


class WindowLength:
    """Keeps the acceptance rate of the last rounds inside a dead band around a target rate.

    Above the band the length grows by one, below it shrinks by one. A change empties the window,
    so that the next decision rests on rounds of the new length alone; deciding on rounds of the
    old one overshoots and swings.
    """

    START = 4
    SHORTEST = 2
    LONGEST = 10
    WINDOW = 10
    """Rounds remembered."""
    ENOUGH = 5
    """Rounds needed for a decision."""
    LOW, HIGH = 0.6, 0.8
    """The dead band: 0.7 plus and minus 0.1."""

    def __init__(self, max_draft_tokens: int = LONGEST) -> None:
        self._longest = min(self.LONGEST, max_draft_tokens)
        self._shortest = min(self.SHORTEST, self._longest)
        self._length = min(self.START, self._longest)
        self._outcomes: deque[tuple[int, int]] = deque(maxlen=self.WINDOW)

    @property
    def num_draft_tokens(self) -> int:
        """The length decided on."""
        return self._length

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Takes in one round, and moves the length by at most one."""
        self._outcomes.append((num_drafted, num_accepted))
        if len(self._outcomes) < self.ENOUGH:
            return
        drafted = sum(outcome[0] for outcome in self._outcomes)
        rate = sum(outcome[1] for outcome in self._outcomes) / drafted
        step = (rate > self.HIGH) - (rate < self.LOW)
        length = min(self._longest, max(self._shortest, self._length + step))
        if length != self._length:
            self._length = length
            self._outcomes.clear()
