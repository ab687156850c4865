"""How many generations run, and whether more may: the only count that drain waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from paceline.errors import Exhausted


class Admission:
    """Lets a limited number of generations in."""

    def __init__(self, max_generations: int) -> None:
        self._max_generations = max_generations
        self._num_running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def num_running(self) -> int:
        """Generations that run now."""
        return self._num_running

    @property
    def is_busy(self) -> bool:
        """Whether more than half of what may run does."""
        return 2 * self._num_running > self._max_generations

    @contextmanager
    def enter(self, count: int = 1) -> Iterator[None]:
        """Counts generations for as long as the block runs.

        Raises:
            Exhausted: with these there would be more than are allowed.
        """
        if self._num_running + count > self._max_generations:
            raise Exhausted(
                f"{self._num_running} generations are running and {count} more are asked for; this "
                f"gateway takes {self._max_generations}",
                reason="TOO_MANY_GENERATIONS",
            )
        self._num_running += count
        self._idle.clear()
        try:
            yield
        finally:
            self._num_running -= count
            if self._num_running == 0:
                self._idle.set()

    async def wait_idle(self) -> None:
        """Returns once nothing runs."""
        await self._idle.wait()
