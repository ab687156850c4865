"""Tokens a second over the last minutes, and what a million of them cost at that rate."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

SPAN_S = 300.0
_PIECE_S = 5.0


class TokenRate:
    """Counts tokens in pieces of a few seconds; idle time counts, since it is paid for."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started_s = clock()
        self._pieces: deque[list[float]] = deque()
        """Begin of each piece in seconds, and its tokens."""

    def add(self, num_tokens: int) -> None:
        """Counts tokens as of now."""
        now_s = self._clock()
        if not self._pieces or now_s - self._pieces[-1][0] >= _PIECE_S:
            self._pieces.append([now_s, 0.0])
            while self._pieces[0][0] < now_s - SPAN_S:
                self._pieces.popleft()
        self._pieces[-1][1] += num_tokens

    def per_second(self) -> float:
        """Tokens a second over the span, or since the start where that is shorter."""
        now_s = self._clock()
        span_s = max(_PIECE_S, min(SPAN_S, now_s - self._started_s))
        num_tokens = sum(n for begin_s, n in list(self._pieces) if begin_s >= now_s - SPAN_S)
        return num_tokens / span_s

    def cost(self, price_per_hour: float) -> float:
        """Price of a million tokens; NaN without a price or without tokens."""
        rate = self.per_second()
        return price_per_hour / 3600 / rate * 1e6 if price_per_hour and rate else math.nan
