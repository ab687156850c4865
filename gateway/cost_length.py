"""The draft length policy `cost`: as many draft tokens as make the most tokens per second.

What survives is learnt from the session's own rounds, since it belongs to its text; what rounds
cost is read from what all sessions of the source have measured. Both are told finished rounds, in
counts and seconds: no token is ever looked at, so which one is dropped cannot depend on its value.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable

from gateway.draft_length import FinishedRound
from gateway.round_times import Load, RoundTimes
from paceline.speed_model import fastest_length


class Survival:
    """Per place of a proposal, whether a draft token is accepted once those before it are.

    Recent rounds weigh more. What is not tried fades, and a place of which little is known is taken
    to be like the one before it: so a length that has not been tried for a while is tried again.
    """

    FIRST = 0.7
    """What is believed of the first place before anything is known."""
    FIRMNESS = 2.0
    """Rounds that a belief weighs."""
    FORGETTING = 0.87

    def __init__(self, longest: int) -> None:
        self._tried = [0.0] * longest
        self._accepted = [0.0] * longest
        self._asked = self._drafted = 0.0

    def observe(self, finished: FinishedRound) -> None:
        """Takes in a round that asked for draft tokens; those that did not come did not survive."""
        for counts in (self._tried, self._accepted):
            counts[:] = [self.FORGETTING * count for count in counts]
        for place in range(min(finished.num_asked, finished.num_accepted + 1)):
            self._tried[place] += 1
            self._accepted[place] += finished.num_accepted > place
        self._asked = self.FORGETTING * self._asked + finished.num_asked
        self._drafted = self.FORGETTING * self._drafted + finished.num_drafted

    @property
    def coverage(self) -> float:
        """Share of the draft tokens asked for that come."""
        return self._drafted / self._asked if self._asked else 1.0

    @property
    def by_place(self) -> list[float]:
        """Entry i: probability that more than i draft tokens are accepted."""
        survives, belief, survival = 1.0, self.FIRST, []
        for tried, accepted in zip(self._tried, self._accepted, strict=True):
            belief = (self.FIRMNESS * belief + accepted) / (self.FIRMNESS + tried)
            survives *= belief
            survival.append(survives)
        return survival


class CostLength:
    """Weighs what draft tokens bring against what they cost; 0 is always a choice.

    At 0 the draft is kept warm and asked again every now and then, and at once again after a
    proposal that was accepted in full.
    """

    START = 4
    """While nothing is known of the source."""
    PROBE_PERIOD = 16
    PROBE_LENGTH = 2
    MARGIN = 1.03
    """Expected gain from which the length moves: under it, noise would decide."""
    LOADS = 8
    """Rounds over which the verifier's load is taken."""

    def __init__(self, longest: int, times: Callable[[], RoundTimes | None]) -> None:
        """Args: the longest proposal; the source's times, None while no source is in use."""
        self._longest = longest
        self._times = times
        self._survival = Survival(longest)
        self._recent: deque[FinishedRound] = deque(maxlen=self.LOADS)
        self._length: int | None = None
        """What was found best; None before the first decision."""
        self._num_idle = 0
        """Rounds since draft tokens were last asked for."""
        self._was_right = False
        """Whether the last proposal was accepted in full."""

    @property
    def num_draft_tokens(self) -> int:
        """The length decided on, or one that shows what is not known."""
        times = self._times()
        if times is None:
            return min(self.START, self._longest)
        if times.is_plain_due:
            return 0
        length = self._best(times) if self._length is None else self._length
        is_probe = self._was_right or self._num_idle >= self.PROBE_PERIOD - 1
        return min(self.PROBE_LENGTH, self._longest) if length == 0 and is_probe else length

    def observe(self, finished: FinishedRound) -> None:
        """Takes in one round, and decides."""
        times = self._times()
        if times is None:
            return
        self._recent.append(finished)
        self._num_idle += 1
        if finished.num_asked:
            self._survival.observe(finished)
            self._num_idle = 0
            self._was_right = finished.num_accepted == finished.num_asked
        self._length = self._best(times)

    def _best(self, times: RoundTimes) -> int:
        if not times.is_known:
            return min(self.START, self._longest)
        load, coverage = self._load, self._survival.coverage

        def length_s(length: int) -> float:
            if length == 0:
                return times.plain_s(load)
            return times.drafted_s(coverage * length, load)

        current = 0 if self._length is None else self._length
        return fastest_length(self._survival.by_place, length_s, current, self.MARGIN)

    @property
    def _load(self) -> Load:
        if not self._recent:
            return Load()
        forward_s = sum(finished.forward_s for finished in self._recent)
        queue_s = sum(finished.queue_s for finished in self._recent)
        return Load(
            statistics.median(finished.num_sharing for finished in self._recent),
            queue_s / forward_s if forward_s else 0.0,
        )
