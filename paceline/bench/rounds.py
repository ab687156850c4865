"""What a round costs outside the models: rounds per second as a client counts them.

Meant for table models, whose steps cost next to nothing: then what is measured is gateways, streams
and schedulers. Prompts are ids, so that no tokenizer is in the way.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass
from typing import Any

from paceline.cli.client import GenerationOptions, Stub, generate, ids_prompt
from paceline.v1 import gateway_pb2


@dataclass(frozen=True, slots=True)
class RoundCost:
    """Rounds of several sessions at once."""

    num_sessions: int
    num_rounds: int
    num_tokens: int
    wall_s: float
    """From the first Tokens event of any session to the end of the last."""

    @property
    def rounds_per_second(self) -> float:
        """Rounds of all sessions together."""
        return self.num_rounds / self.wall_s

    def as_json(self) -> dict[str, Any]:
        """The measurement with its rate."""
        return {**asdict(self), "rounds_per_second": self.rounds_per_second}


async def measure_rounds(
    gateway: Stub, num_sessions: int, num_draft_tokens: int, max_tokens: int
) -> RoundCost:
    """Runs `num_sessions` generations of `max_tokens` at once, with proposals of one length."""
    options = GenerationOptions(
        max_tokens=max_tokens, num_draft_tokens=num_draft_tokens, ignore_eos=True
    )
    request = options.request(ids_prompt([0]))
    first: list[float] = []

    async def note(tokens: gateway_pb2.Tokens) -> None:
        if not first:
            first.append(time.perf_counter())

    runs = await asyncio.gather(*(generate(gateway, request, note) for _ in range(num_sessions)))
    wall_s = time.perf_counter() - first[0]
    rounds = sum(run.stats.round_count + run.stats.plain_round_count for run in runs)
    return RoundCost(num_sessions, rounds, sum(len(run.token_ids) for run in runs), wall_s)
