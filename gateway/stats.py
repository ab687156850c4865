"""What speculation did in one generation, counted as in the verdicts, before any trimming.

It knows durations, not clocks: whoever measures passes seconds in.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from paceline.records import Proposal, Verdict


class SpeculationStats:
    """Counts and times of the rounds of one generation."""

    def __init__(self) -> None:
        self.num_rounds = 0
        """Rounds with at least one draft token."""
        self.num_plain_rounds = 0
        self.num_asked = 0
        """Draft tokens that were asked for; fewer come where the draft is absent or at its end."""
        self.num_drafted = 0
        self.num_accepted = 0
        self.drafted_by_position: list[int] = []
        """Entry i: proposals of more than i tokens."""
        self.accepted_by_position: list[int] = []
        """Entry i: proposals of which more than i tokens were accepted."""
        self.draft_s = 0.0
        self.queue_s = 0.0
        self.verify_s = 0.0
        self._round_s: list[float] = []
        self._overhead_s: list[float] = []

    def observe(self, proposal: Proposal, verdict: Verdict, num_asked: int, round_s: float) -> None:
        """Takes in one round that took `round_s` seconds as the gateway saw it."""
        self.num_asked += num_asked
        num_drafted = len(proposal.token_ids)
        if num_drafted:
            self.num_rounds += 1
            self.num_drafted += num_drafted
            self.num_accepted += verdict.num_accepted
            self._count_positions(num_drafted, verdict.num_accepted)
        else:
            self.num_plain_rounds += 1
        self.draft_s += proposal.draft_s
        self.queue_s += verdict.queue_s
        self.verify_s += verdict.forward_s
        self._round_s.append(round_s)
        on_tiers_s = proposal.draft_s + verdict.queue_s + verdict.forward_s
        self._overhead_s.append(max(0.0, round_s - on_tiers_s))

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted tokens; 0 without any."""
        return self.num_accepted / self.num_drafted if self.num_drafted else 0.0

    @property
    def acceptance_length(self) -> float:
        """Tokens that a round commits, the next token included."""
        return 1.0 + (self.num_accepted / self.num_rounds if self.num_rounds else 0.0)

    @property
    def overhead_s(self) -> float:
        """Seconds of all rounds outside drafting, verifying and the wait for a step."""
        return sum(self._overhead_s)

    @property
    def round_p50_s(self) -> float:
        """Median of a round in seconds."""
        return _median_after_first(self._round_s)

    @property
    def overhead_p50_s(self) -> float:
        """Median of a round outside drafting, verifying and the wait for a step, in seconds."""
        return _median_after_first(self._overhead_s)

    def _count_positions(self, num_drafted: int, num_accepted: int) -> None:
        missing = num_drafted - len(self.drafted_by_position)
        self.drafted_by_position.extend([0] * missing)
        self.accepted_by_position.extend([0] * missing)
        for position in range(num_drafted):
            self.drafted_by_position[position] += 1
            self.accepted_by_position[position] += position < num_accepted


def _median_after_first(durations: Sequence[float]) -> float:
    # The first round opens the streams and prefills the prompt: it is another thing than a round.
    measured = durations[1:] or durations
    return statistics.median(measured) if measured else 0.0
