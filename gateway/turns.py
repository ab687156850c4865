"""Whether generations that begin beside others draft at all, found out by taking turns.

A draft on the target's own cores takes their time from every generation, and no round tells: its
neighbours are slowed as much as it is, its prompt is run twice, and a plain round among rounds that
draft is slow too. So for a while all that begin draft, then for a while none does, and what they
took either way is compared, prompts included. Only finished rounds are looked at, and a generation
is of one kind from before its first token, so the law of its output is not touched. One that is
alone always drafts: there is nobody to take time from. It stops while others have come, if that was
found to slow them. It does not know how long proposals are.
"""

from __future__ import annotations

import structlog

from gateway.draft_length import DraftLengthPolicy, FinishedRound

ENOUGH = 16
"""Generations that a turn rests on, and as many tokens of each."""
ALIKE = 0.75
"""Share of the running generations that must be of one kind for a round to count."""
LOST = 0.02
"""Share of the time that turns of the slower kind may cost, once it was found out."""
SHORTEST_HOLD, LONGEST_HOLD = 8 * ENOUGH, 128 * ENOUGH
"""Generations that begin as was found best before the other kind has a turn again."""
_log = structlog.get_logger(__name__)


class Turns:
    """Of a gateway's generations: how many run, whose turn it is, and what either kind took."""

    def __init__(self) -> None:
        self.drafts = True
        """The kind that has its turn: whether generations that begin now draft."""
        self._best: bool | None = None
        """The kind that was found faster; None before the first comparison."""
        self._sums = {True: _Sums(), False: _Sums()}
        self._num_running = {True: 0, False: 0}
        self._hold = SHORTEST_HOLD
        self._num_begun = 0
        """Generations of this turn."""
        self._has_company = False
        """Whether the last generation to begin began beside others."""

    def begin(self) -> Place:
        """Begins a generation that may be of either kind."""
        # The first of many that come at once is not alone, though nobody runs yet.
        if not self.num_running and not self._has_company:
            return Place(self, True, is_compared=True, gives_way=True)
        has_held = self.drafts == self._best and self._num_begun >= self._hold
        if has_held and self._sums[self.drafts].is_enough:
            self._hand_over()
        self._num_begun += 1
        return Place(self, self.drafts, is_compared=True)

    def begin_pinned(self, drafts: bool) -> Place:
        """Begins a generation whose kind is decided: it is a neighbour and is not compared."""
        return Place(self, drafts, is_compared=False)

    @property
    def num_running(self) -> int:
        """Generations that have begun and not ended."""
        return sum(self._num_running.values())

    def count(self, drafts: bool, change: int) -> None:
        """Notes that a generation of a kind begins or ends."""
        self._num_running[drafts] += change
        if change > 0:
            self._has_company = self.num_running > 1

    def observe(self, drafts: bool, num_tokens: int, round_s: float, *, is_first: bool) -> None:
        """Takes in a round, if there were several generations and nearly all of its kind."""
        running = self.num_running
        if running < 2 or self._num_running[drafts] < ALIKE * running:
            return
        self._sums[drafts].observe(num_tokens, round_s, is_first=is_first)
        if drafts != self.drafts or drafts == self._best or not self._sums[drafts].is_enough:
            return
        if self._sums[not drafts].is_enough:
            self._compare()
        else:
            self._hand_over()

    def _hand_over(self) -> None:
        """Gives the other kind a turn, which starts from no evidence."""
        self.drafts = not self.drafts
        self._sums[self.drafts] = _Sums()
        self._num_begun = 0

    def _compare(self) -> None:
        # For as many tokens either way: longer outputs are no merit of the kind that had them.
        drafted, plain = self._sums[True], self._sums[False]
        num_tokens = (drafted.num_tokens + plain.num_tokens) / (drafted.num_first + plain.num_first)
        drafted_s, plain_s = drafted.generation_s(num_tokens), plain.generation_s(num_tokens)
        best = drafted_s < plain_s
        excess = max(drafted_s, plain_s) / min(drafted_s, plain_s) - 1
        hold = int(self._num_begun * excess / LOST)
        self._hold = min(max(hold, SHORTEST_HOLD), LONGEST_HOLD)
        if best != self._best:
            _log.info("speculation_beside_others", drafts=best, gain=round(plain_s / drafted_s, 3))
        self._best = self.drafts = best
        self._sums[best] = _Sums()
        self._num_begun = 0


class Place:
    """One generation among those that run."""

    def __init__(
        self, turns: Turns, drafts: bool, *, is_compared: bool, gives_way: bool = False
    ) -> None:
        self._turns = turns
        self._is_compared = is_compared
        self._gives_way = gives_way
        self._is_first = True
        self.drafts = drafts
        """Whether it drafts."""
        turns.count(drafts, 1)

    def observe(self, num_tokens: int, round_s: float) -> None:
        """Takes in one round, which committed so many tokens."""
        if self._is_compared:
            self._turns.observe(self.drafts, num_tokens, round_s, is_first=self._is_first)
        self._is_first = False

    def leave(self) -> None:
        """Ends the generation."""
        self._turns.count(self.drafts, -1)

    def shared(self, policy: DraftLengthPolicy) -> DraftLengthPolicy:
        """The policy of a generation that began alone, which asks for nothing beside others."""
        return _SharedLength(policy, self) if self._gives_way else policy

    @property
    def waits(self) -> bool:
        """Whether there are others now, and drafting was found to slow them."""
        return self._turns.num_running > 1 and not self._turns.drafts


class _SharedLength:
    """A session's own policy, where it has the cores for itself."""

    def __init__(self, policy: DraftLengthPolicy, place: Place) -> None:
        self._policy = policy
        self._place = place

    @property
    def num_draft_tokens(self) -> int:
        """What the session wants, or nothing."""
        return 0 if self._place.waits else self._policy.num_draft_tokens

    def observe(self, finished: FinishedRound) -> None:
        """Takes in one round."""
        self._policy.observe(finished)


class _Sums:
    """What the rounds of one kind took: first ones, which run the prompt, and later ones."""

    def __init__(self) -> None:
        self.num_first = self.num_tokens = 0
        self._first_s = self._later_s = 0.0

    def observe(self, num_tokens: int, round_s: float, *, is_first: bool) -> None:
        if is_first:
            self.num_first += 1
            self._first_s += round_s
        else:
            self.num_tokens += num_tokens
            self._later_s += round_s

    @property
    def is_enough(self) -> bool:
        return self.num_first >= ENOUGH and self.num_tokens >= ENOUGH * ENOUGH

    def generation_s(self, num_later_tokens: float) -> float:
        """Seconds of a generation with so many tokens behind those of its first round."""
        return self._first_s / self.num_first + num_later_tokens * self._later_s / self.num_tokens
