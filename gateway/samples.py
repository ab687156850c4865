"""The samples of one call: a generation each, side by side on one verify replica.

It knows when which of them starts and ends, and nothing of what one does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

from gateway import events
from gateway.config import GatewayConfig
from gateway.generation import Call, run_generation
from gateway.request import Generation
from gateway.tiers import Target, Tiers
from paceline.v1 import gateway_pb2

EventT = TypeVar("EventT")


async def run_samples(
    samples: Sequence[Generation], target: Target, tiers: Tiers, config: GatewayConfig, call: Call
) -> AsyncGenerator[gateway_pb2.GenerateResponse, None]:
    """Runs every sample of a call and yields their events as they come.

    Raises:
        PacelineError: one of them cannot go on; all are ended, and what was yielded is valid.
    """
    yield events.started(samples[0], target.model)
    if len(samples) == 1:
        run = run_generation(samples[0], target, tiers, config, call)
    else:
        home = tiers.targets.pick(lambda t: t.model.fingerprint == target.model.fingerprint)
        call = replace(call, home=home.address if home else "")
        run = interleave([run_generation(one, target, tiers, config, call) for one in samples])
    async with aclosing(run):
        async for event in run:
            yield event


async def interleave(
    runs: Sequence[AsyncGenerator[EventT, None]],
) -> AsyncGenerator[EventT, None]:
    """Yields what all of them yield, as it comes, until all have ended or one has failed.

    The first runs alone until it yields: then its prompt is in the cache, where the others find it.
    """
    waiting = list(runs[1:])
    pending = {asyncio.create_task(_next(runs[0])): runs[0]}
    try:
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                run = pending.pop(task)
                event = task.result()
                if event is not None:
                    yield event
                    pending |= {asyncio.create_task(_next(one)): one for one in (run, *waiting)}
                    waiting.clear()
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for run in runs:
            await run.aclose()


async def _next(run: AsyncGenerator[EventT, None]) -> EventT | None:
    """The next event, None at the end."""
    return await anext(run, None)
