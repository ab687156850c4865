"""Threads that meet: none goes on before all have come, meeting after meeting."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from paceline.engine.native.barrier import wait
from paceline.engine.native.compiled import compiled, integers

NUM_MEETINGS = 500


@compiled()  # type: ignore[untyped-decorator]  # numba has no types
def _work(share: Any, num_threads: Any, counter_at: Any, seen_at: Any) -> Any:
    """Counts in its own place, and how often another place was behind after a meeting."""
    seen = integers(seen_at)
    behind = 0
    meeting = 1
    for round_number in range(1, NUM_MEETINGS + 1):
        seen[share] = round_number
        meeting = wait(counter_at, num_threads, meeting)
        for other in range(num_threads):
            if seen[other] != round_number:
                behind += 1
        meeting = wait(counter_at, num_threads, meeting)
    return behind


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_meetings(num_threads: int) -> None:
    """More threads than cores, too."""
    counter, seen = torch.zeros(1, dtype=torch.int64), torch.zeros(num_threads, dtype=torch.int64)
    with ThreadPoolExecutor(num_threads) as pool:
        works = [
            pool.submit(_work, share, num_threads, counter.data_ptr(), seen.data_ptr())
            for share in range(num_threads)
        ]
        assert [0] * num_threads == [work.result() for work in works]
    expected = 2 * NUM_MEETINGS * num_threads if num_threads > 1 else 0
    assert expected == counter.item()
