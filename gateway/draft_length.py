"""How many draft tokens the next proposal gets: one small object per session.

A policy is pure and replayable: its answer depends on finished rounds and on nothing else, in
particular not on a drafted value (which would bias the output) and not on a clock of its own. It
does not know budgets or tier limits, which the round applies, nor how other sessions fare, from
which `watch.py` caps it. The policy that weighs costs is in `cost_length.py`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from paceline.records import Proposal, Verdict


@dataclass(frozen=True, slots=True)
class FinishedRound:
    """One round in counts and seconds: what may decide on later ones."""

    num_asked: int
    num_drafted: int = 0
    num_accepted: int = 0
    round_s: float = 0.0
    draft_s: float = 0.0
    """On the draft tier, queueing included."""
    queue_s: float = 0.0
    """Wait for the target's step."""
    forward_s: float = 0.0
    """The target's step."""
    num_rows: int = 0
    """Of the target's step, those of other sessions included; 0 where it is not told."""
    num_open_sessions: int = 0
    """Of the target's replica; 0 where it is not told."""

    @classmethod
    def of(
        cls, proposal: Proposal, verdict: Verdict, num_asked: int, round_s: float
    ) -> FinishedRound:
        """What may be known of a round, for which `num_asked` draft tokens were asked."""
        return cls(
            num_asked=num_asked,
            num_drafted=len(proposal.token_ids),
            num_accepted=verdict.num_accepted,
            round_s=round_s,
            draft_s=proposal.draft_s,
            queue_s=verdict.queue_s,
            forward_s=verdict.forward_s,
            num_rows=verdict.load.num_rows,
            num_open_sessions=verdict.load.num_open_sessions,
        )

    @property
    def num_sharing(self) -> float:
        """Sessions that shared the step, if each had as many rows; at least 1."""
        sharing = self.num_rows / (self.num_drafted + 1)
        if self.num_open_sessions:  # rows of a prompt, or of longer proposals, are no sessions
            sharing = min(sharing, self.num_open_sessions)
        return max(1.0, sharing)


class DraftLengthPolicy(Protocol):
    """Decides the length of proposals."""

    @property
    def num_draft_tokens(self) -> int:
        """Length wanted for the next proposal, at least 0."""

    def observe(self, finished: FinishedRound) -> None:
        """Takes in one round that is not the first of its generation."""


class FixedLength:
    """Always the same length; 0 is plain decoding."""

    def __init__(self, num_draft_tokens: int) -> None:
        self._num_draft_tokens = num_draft_tokens

    @property
    def num_draft_tokens(self) -> int:
        """The pinned length."""
        return self._num_draft_tokens

    def observe(self, finished: FinishedRound) -> None:
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

    def observe(self, finished: FinishedRound) -> None:
        """Takes in one round, and moves the length by at most one."""
        if not finished.num_drafted:
            return
        self._outcomes.append((finished.num_drafted, finished.num_accepted))
        if len(self._outcomes) < self.ENOUGH:
            return
        drafted = sum(outcome[0] for outcome in self._outcomes)
        rate = sum(outcome[1] for outcome in self._outcomes) / drafted
        step = (rate > self.HIGH) - (rate < self.LOW)
        length = min(self._longest, max(self._shortest, self._length + step))
        if length != self._length:
            self._length = length
            self._outcomes.clear()
