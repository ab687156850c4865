"""How loops are compiled."""

from __future__ import annotations

from typing import Any

import numba
import pytest
import torch

from paceline.engine.native.compiled import compiled, find_num_shares, floats, is_native
from paceline.errors import FailedPrecondition


def _sum(numbers_at: Any, count: Any) -> Any:
    numbers = floats(numbers_at)
    total = 0.0
    for i in range(count):
        total += numbers[i]
    return total


def test_nowhere_to_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system that cannot be written a loop is compiled all the same."""

    def refuse(self: object, loop: Any) -> None:
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr("numba.core.caching.FunctionCache.__init__", refuse)
    numbers = torch.arange(5.0)
    assert 10.0 == compiled()(_sum)(numbers.data_ptr(), 5)


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (torch.zeros(3, 4), True),
        (torch.zeros(3, 4).T, False),
        (torch.zeros(3, 4, dtype=torch.bfloat16), False),
    ],
)
def test_what_loops_take(tensor: torch.Tensor, expected: bool) -> None:
    """Dense float32 numbers."""
    assert expected == is_native(tensor)


def test_loops_run_on_the_threads_of_a_step() -> None:
    """Not on every core of the machine, and not on more threads than the pool has."""
    before, most = torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS
    try:
        for wanted in (1, most, most + 1):
            torch.set_num_threads(wanted)
            assert min(wanted, most) == find_num_shares()
            assert min(wanted, most) == numba.get_num_threads()
    finally:
        torch.set_num_threads(before)


def test_pools_of_threads_are_safe() -> None:
    """Several engines of one process run loops at once; numba's own pool would end the process."""
    find_num_shares()
    assert "threadsafe" == numba.config.THREADING_LAYER
    assert numba.threading_layer() in ("omp", "tbb")


def test_a_system_without_openmp_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What to install is in the message."""

    def fail(count: int) -> None:
        raise ValueError("No threading layer could be loaded.")

    monkeypatch.setattr(numba, "set_num_threads", fail)
    with pytest.raises(FailedPrecondition, match="libgomp1"):
        find_num_shares()
