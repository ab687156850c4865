"""Several samples of one call: side by side on one replica, interleaved, and one end for all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from gateway.samples import interleave


class Runs:
    """Scripted generators that note when they start and how they end."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.ended: list[str] = []
        self.failing: set[str] = set()

    async def run(
        self, name: str, count: int, gate: asyncio.Event | None = None
    ) -> AsyncGenerator[tuple[str, int], None]:
        """Yields its name with a number; where there is a gate it waits behind the first."""
        self.started.append(name)
        try:
            for number in range(count):
                yield name, number
                if gate is not None:
                    await gate.wait()
                if name in self.failing:
                    raise ValueError(name)
        finally:
            self.ended.append(name)


async def test_all_events_come_in_their_own_order() -> None:
    """Nothing is lost and nothing is swapped, whatever the lengths."""
    runs, lengths = Runs(), {"a": 3, "b": 7, "c": 1, "d": 0}
    events = [e async for e in interleave([runs.run(n, k) for n, k in lengths.items()])]
    for name, length in lengths.items():
        assert list(range(length)) == [number for found, number in events if found == name]
    assert sum(lengths.values()) == len(events)
    assert sorted(lengths) == sorted(runs.ended)


async def test_the_first_runs_alone_until_it_yields() -> None:
    """The others find the prompt in the cache; they do not wait for the first one's end."""
    runs, gate = Runs(), asyncio.Event()
    async with aclosing(
        interleave([runs.run("a", 2, gate), runs.run("b", 2), runs.run("c", 2)])
    ) as events:
        assert ("a", 0) == await anext(events)
        assert ["a"] == runs.started
        others = [await anext(events) for _ in range(4)]
        assert {"b", "c"} == {name for name, _ in others}
        gate.set()
        assert [("a", 1)] == [event async for event in events]


async def test_one_that_fails_ends_all() -> None:
    """Its error is the call's; the others are ended where they stand."""
    runs, gate = Runs(), asyncio.Event()
    runs.failing.add("b")
    events = interleave([runs.run("a", 9, gate), runs.run("b", 9), runs.run("c", 9, gate)])
    with pytest.raises(ValueError, match="b"):
        async for _ in events:
            pass
    assert ["a", "b", "c"] == sorted(runs.ended)


async def test_closing_ends_all() -> None:
    """A client that goes away leaves none of them behind, started or not."""
    for num_events in (0, 1, 4):
        runs, gate = Runs(), asyncio.Event()
        events = interleave([runs.run(name, 9, gate) for name in "abc"])
        for _ in range(min(num_events, 3)):
            await anext(events)
        await events.aclose()
        assert sorted(runs.started) == sorted(runs.ended)
