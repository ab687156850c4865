"""Records steps at load, and shows that they compute what unrecorded ones do.

What cannot be recorded, or computes something else, is not served from: steps run kernel by kernel
then, which is right and several times slower. It runs once and serves nobody.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from paceline.engine.lean.cuda_runner import CudaRunner
from paceline.engine.lean.graphs import Record
from paceline.engine.self_test import relative_error
from paceline.engine.step import Span, Step

_TOLERANCE = 0.05
"""Largest accepted ||recorded - unrecorded|| / ||unrecorded||: other kernels serve other row
counts, which 16-bit numbers show in the third digit."""
_MAX_CONTEXT = 8
_NUM_IDS = 64
"""Every vocabulary has more."""


def record_steps(runner: CudaRunner, record: Record, progress: Callable[[str], None]) -> None:
    """Records steps, and forgets them again where they fail or differ.

    The cache is overwritten, so this comes before the first sequence.
    """
    progress("recording steps of few rows")
    try:
        runner.record(record)
        error = find_largest_error(runner)
    except RuntimeError as failure:  # What the device refuses; a step kernel by kernel is no worse.
        found = str(failure)
    else:
        if error <= _TOLERANCE:
            return
        found = f"a relative error of {error:.2g} where {_TOLERANCE:g} is allowed"
    runner.forget_recorded()
    progress(f"WARNING: steps are not recorded and will be several times slower: {found}")


def find_largest_error(runner: CudaRunner) -> float:
    """Runs a step in every recorded shape, once recorded and once kernel by kernel."""
    cache = runner.cache
    errors = []
    for shape in runner.recorded_shapes:
        context, step = _steps(shape.num_rows, cache.spare_block, cache.block_size)
        runner.run_unrecorded(context)
        error = relative_error(runner.run(step), runner.run_unrecorded(step))
        errors.append(error if math.isfinite(error) else math.inf)
    return max(errors)


def _steps(num_rows: int, num_blocks: int, block_size: int) -> tuple[Step, Step]:
    """Some sequences of a block each, and a step behind them that leaves a row to fill up.

    The first sequence has about half of the rows, the others one each. Where there are two rows it
    has both, since a step of one row repeats another record.
    """
    num_sequences = min(max(1, num_rows // 2), num_blocks)
    contexts, spans = [], []
    for block in range(num_sequences):
        start = 1 + block % min(_MAX_CONTEXT, block_size - 1)
        wanted = max(num_rows - num_sequences, min(2, num_rows)) if block == 0 else 1
        count = min(wanted, block_size - start)
        ids = tuple((7 * place + block) % _NUM_IDS for place in range(start + max(1, count)))
        contexts.append(Span(ids[:start], 0, (block,), 0, 1))
        spans.append(Span(ids[start:], start, (block,), len(ids) - start, 1))
    return Step(tuple(contexts), block_size), Step(tuple(spans), block_size)
