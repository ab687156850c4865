"""How long rounds with one draft source take, by their proposal length and the verifier's load.

Learnt from finished rounds of all sessions, since times belong to machines. It does not know what
is accepted, which belongs to a text, and decides nothing but when a plain round is due.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass

from gateway.draft_length import FinishedRound
from paceline.speed_model import round_s

PLAIN_PERIOD = 64
"""At least one round in so many is plain, the first among them, to hold drafting against."""
_LEAST_S = 1e-9
"""No step is faster."""


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the verify tier is with others, as a session's own rounds tell."""

    num_sharing: float = 1.0
    """Sessions that share a step."""
    waiting: float = 0.0
    """Wait for a step, over the time of a step."""


class Line:
    """Seconds of the target's step over its rows: least squares, with forgetting.

    Where rows hardly vary there is no slope to be seen, and it leans to half of the step growing
    with its rows.
    """

    FORGETTING = 1 - 1 / 128
    GROWING = 0.5
    FIRMNESS = 0.04
    """Weight of that belief, in squares of the mean number of rows."""

    def __init__(self) -> None:
        self._weight = self._rows = self._seconds = self._squares = self._products = 0.0

    def observe(self, num_rows: int, seconds: float) -> None:
        """Takes in one step."""
        keep = self.FORGETTING
        self._weight = keep * self._weight + 1
        self._rows = keep * self._rows + num_rows
        self._seconds = keep * self._seconds + seconds
        self._squares = keep * self._squares + num_rows * num_rows
        self._products = keep * self._products + num_rows * seconds

    def at(self, num_rows: float) -> float:
        """Seconds of a step of so many rows; more than 0."""
        if not self._seconds:
            return _LEAST_S
        rows, seconds = self._rows / self._weight, self._seconds / self._weight
        varied = self._squares - self._weight * rows * rows
        together = self._products - self._weight * rows * seconds
        firmness = self.FIRMNESS * rows * rows
        slope = (together + firmness * self.GROWING * seconds / rows) / (varied + firmness)
        # Rows never save time, and there is no step that costs less than nothing without them.
        slope = min(max(0.0, slope), seconds / rows)
        return max(_LEAST_S, seconds + slope * (num_rows - rows))


class Typical:
    """The median of the last values, which one hiccup does not move."""

    REMEMBERED = 16

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=self.REMEMBERED)
        self.value: float | None = None
        """None without any."""

    def observe(self, value: float) -> None:
        """Takes in one value."""
        self._values.append(value)
        self.value = statistics.median(self._values)


class RoundTimes:
    """Of one draft source."""

    def __init__(self) -> None:
        self.verify = Line()
        self._num_rounds = self._num_plain = 0
        self._draft_s = Typical()
        """Per draft token."""
        self._asked_s = Typical()
        """Outside both models, of rounds that asked for draft tokens."""
        self._plain_s = Typical()
        """The same of plain rounds."""

    @property
    def is_plain_due(self) -> bool:
        """Whether the next round should be plain, to be held against those that draft."""
        return self._num_plain * PLAIN_PERIOD <= self._num_rounds

    @property
    def is_known(self) -> bool:
        """Whether any round has drafted."""
        return self._draft_s.value is not None

    def observe(self, finished: FinishedRound) -> None:
        """Takes in one round that is not the first of its generation."""
        on_tiers_s = finished.draft_s + finished.queue_s + finished.forward_s
        outside_s = max(0.0, finished.round_s - on_tiers_s)
        self._num_rounds += 1
        if finished.num_asked:
            self._asked_s.observe(outside_s)
        else:
            self._num_plain += 1
            self._plain_s.observe(outside_s)
        if finished.num_drafted:
            self._draft_s.observe(finished.draft_s / finished.num_drafted)
        # A tier that does not tell its rows is taken to run this session alone.
        self.verify.observe(finished.num_rows or finished.num_drafted + 1, finished.forward_s)

    def plain_s(self, load: Load) -> float:
        """Seconds of a plain round."""
        outside_s = self._plain_s.value
        if outside_s is None:  # until there was one, it is taken to take the same way
            outside_s = self._asked_s.value or 0.0
        return round_s(0, 0.0, outside_s, self._verify_s(0, load))

    def drafted_s(self, num_draft_tokens: float, load: Load) -> float:
        """Seconds of a round with a proposal."""
        draft_s, outside_s = self._draft_s.value or 0.0, self._asked_s.value or 0.0
        return round_s(num_draft_tokens, draft_s, outside_s, self._verify_s(num_draft_tokens, load))

    def _verify_s(self, num_draft_tokens: float, load: Load) -> float:
        """A step and the wait for it, where every session has a proposal like this one's.

        One session alone would hardly be slowed by its own rows; all of them together are.
        """
        return (1 + load.waiting) * self.verify.at(load.num_sharing * (1 + num_draft_tokens))
