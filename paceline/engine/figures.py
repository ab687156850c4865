"""What an engine counts of itself, for whoever asks. It knows no metrics and no scraper."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field

# In rows and in seconds; the last bucket has no bound.
ROW_BOUNDS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)
SECOND_BOUNDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0),
)


class Tally:
    """Counts values by size. One thread writes; others may read, a value late at worst."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Entry i: values of at most bounds[i] and above the bound before; the last is the rest."""
        self.total = 0.0

    def add(self, value: float) -> None:
        """Takes in one value."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass(slots=True)
class EngineFigures:
    """Counts since the engine's start. Written by its thread alone."""

    rows: Tally = field(default_factory=lambda: Tally(ROW_BOUNDS))
    """Rows of each step."""
    step_s: Tally = field(default_factory=lambda: Tally(SECOND_BOUNDS))
    """Seconds of each step, sampling included."""
    num_prefix_tokens: int = 0
    """Tokens of sequences as they were opened."""
    num_prefix_hits: int = 0
    """Those of them that were in the cache already."""

    def add_step(self, num_rows: int, duration_s: float) -> None:
        """Takes in one step."""
        self.rows.add(num_rows)
        self.step_s.add(duration_s)

    def add_opened(self, num_tokens: int, num_cached: int) -> None:
        """Takes in one sequence as it was opened."""
        self.num_prefix_tokens += num_tokens
        self.num_prefix_hits += num_cached
