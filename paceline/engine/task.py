"""A job in flight: what it asked for, since when, and what that means to a step.

It knows neither the thread that runs steps nor when a job is resumed.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from paceline.engine.history import History, row_histories
from paceline.engine.job import Extend, Job
from paceline.engine.scheduler import Demand
from paceline.engine.sequence import Sequence
from paceline.records import SamplingParams


@dataclass(slots=True, eq=False)
class Task:
    """A job in flight."""

    sequence: Sequence
    job: Job[Any]
    future: Future[Any]
    asked_at: float
    request: Extend | None = None
    started_at: float = 0.0

    @property
    def demand(self) -> Demand:
        """What the scheduler has to know of it."""
        assert self.request is not None
        return Demand(self.sequence, self.request.length, self.request.num_laws)

    def rows(self, num_rows: int) -> list[tuple[SamplingParams, History | None]]:
        """What the last rows of the request need to become laws."""
        if self.request is None or num_rows == 0:
            return []
        params, sequence = self.request.sampling, self.sequence
        if not params.adjusts_logits:
            return [(params, None)] * num_rows
        ids = sequence.token_ids[: self.request.length]
        histories = row_histories(
            ids,
            prompt_length=sequence.prompt_length,
            num_rows=num_rows,
            matcher=self.request.matcher,
        )
        return [(params, history) for history in histories]
