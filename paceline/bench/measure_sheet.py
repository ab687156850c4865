"""Fills in the sheet that predictions are made from, through a running system.

Plain decoding, every source with the longest proposals, and the first source with the shorter ones
too, for the target's step by its number of rows; all interleaved. It predicts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from paceline.bench.prompts import Question
from paceline.bench.sheet import Sheet, SourceSheet
from paceline.bench.trials import Trial, plainly, run_interleaved
from paceline.cli.client import GenerationOptions, Stub
from paceline.v1 import gateway_pb2

LENGTHS = (1, 2, 4, 8)
"""Draft tokens of the proposals that are run; the last is run with every source."""
_LEAST_S = 1e-6
"""A step takes this long at least, so that noise makes no ratio infinite."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A sheet with the runs behind it."""

    sheet: Sheet
    plain: Trial
    runs: tuple[Trial, ...]

    def speedup(self, run: Trial) -> float:
        """What one run really gained over plain decoding."""
        rate = self.plain.tokens_per_second
        return run.tokens_per_second / rate if rate else 0.0


def num_runs(num_sources: int) -> int:
    """How often `measure_sheet` runs every question."""
    return 1 + num_sources + (len(LENGTHS) - 1 if num_sources else 0)


async def measure_sheet(
    gateway: Stub,
    questions: Sequence[Question],
    options: GenerationOptions,
    sources: Sequence[str],
    replicas: Sequence[gateway_pb2.Replica],
    on_done: Callable[[], None],
) -> Measured:
    """Measures the target that the options name, with the draft sources that fit it.

    Its replicas tell how many steps' work was waiting before.
    """
    wanted = [plainly(options)]
    wanted += [_drafting(options, source, LENGTHS[-1]) for source in sources]
    wanted += [_drafting(options, source, k) for source in sources[:1] for k in LENGTHS[:-1]]
    plain, *runs = await run_interleaved(gateway, questions, wanted, on_done)
    queued = sum(r.load.queued_count for r in replicas if r.tier == gateway_pb2.TIER_VERIFY)
    return Measured(make_sheet(plain, runs, queued), plain, tuple(runs))


def make_sheet(plain: Trial, runs: Sequence[Trial], queued: int) -> Sheet:
    """Reads the sheet off the runs."""
    longest = max((run.num_draft_tokens for run in runs), default=0)
    full = [run for run in runs if run.num_draft_tokens == longest]
    busiest = max(full, key=lambda run: run.num_rounds).source if full else ""
    verify = {0: max(_LEAST_S, plain.round_s(has_proposal=False) - plain.overhead_s)}
    verify |= {
        run.num_draft_tokens: _target_s(run)
        for run in runs
        if run.source == busiest or (run.num_draft_tokens < longest and run.num_rounds)
    }
    return Sheet(
        verify_s=verify,
        round_trip_s=plain.overhead_s,
        sources=tuple(_source_sheet(run, plain) for run in full if run.num_drafted),
        output_tokens=plain.num_tokens / max(1, len(plain.generations)),
        queued=queued,
    )


def _target_s(run: Trial) -> float:
    """The target's step within a round with a proposal."""
    drafted = run.num_drafted / max(1, run.num_rounds)
    rest_s = run.draft_s_per_token * drafted + run.overhead_s
    return max(_LEAST_S, run.round_s(has_proposal=True) - rest_s)


def _source_sheet(run: Trial, plain: Trial) -> SourceSheet:
    return SourceSheet(
        name=run.source,
        draft_s=run.draft_s_per_token,
        round_trip_s=max(0.0, run.overhead_s - plain.overhead_s),
        survival=run.survival,
        reach=run.reach,
        coverage=run.coverage,
        first_wait_s=run.first_wait_s,
    )


def _drafting(options: GenerationOptions, source: str, length: int) -> GenerationOptions:
    return replace(options, draft=source, num_draft_tokens=length)
