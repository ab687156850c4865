"""Shows at load that no bit of a row depends on how steps are cut.

Which shapes of a product sum in the same order is the libraries' business and differs between
processors, so it is looked at instead of believed: the whole model over a short sequence, attention
alone over a long one. It runs once and serves nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

import torch

from paceline.engine.lean.attention import read_rows
from paceline.engine.lean.cache import StackedCache
from paceline.engine.lean.decoder import Decoder, HeadShape
from paceline.engine.step import ModelRunner, Span, Step
from paceline.errors import FailedPrecondition

_BLOCK_SIZE = 16
_NUM_TOKENS = 48
_ALONE = (30, 1, 1, 16)
_IN_COMPANY = (1, 2, 9, 5, 31)
"""Rows of each step over the same tokens; a step of a single row is one without company."""
_LONG = 1100
"""Two full stretches of keys of the attention kernel, and more."""
_LONG_CUTS = ((512, 512, 76), (61,) * 18 + (2,), (376, 16, 120, 5, 251, 5, 1, 250, 76))
_SINGLE_ROWS = (0, 63, 64, 200, 255, 256, 300, 383, 400, 511, 512, 600, 767, 768, 1023, 1024, 1099)


def check_exact(runner: ModelRunner, decoder: Decoder, vocabulary_size: int) -> None:
    """Runs the same rows in steps that are cut differently and in different company.

    The runner's cache is allocated for the check; allocate it again afterwards.

    Raises:
        FailedPrecondition: A bit differs.
    """
    if not (
        _model_is_exact(runner, vocabulary_size)
        and all(_attention_is_exact(decoder.shape, window) for window in set(decoder.windows))
    ):
        raise FailedPrecondition(
            "exact mode does not hold on this machine: its kernels round by the number of rows",
            reason="NOT_EXACT_HERE",
        )


def _ranges(counts: Iterable[int]) -> list[range]:
    return [range(first, last) for first, last in pairwise(accumulate(counts, initial=0))]


def _model_is_exact(runner: ModelRunner, vocabulary_size: int) -> bool:
    """Logits of one sequence, cut in several ways, once with a second one beside it."""
    num_blocks = -(-_NUM_TOKENS // _BLOCK_SIZE)
    runner.allocate(2 * num_blocks, _BLOCK_SIZE)
    generator = torch.Generator().manual_seed(0)
    ids = tuple(torch.randint(vocabulary_size, (_NUM_TOKENS,), generator=generator).tolist())
    mine, other = (tuple(range(i, 2 * num_blocks, 2)) for i in range(2))

    def run(counts: Sequence[int], *, in_company: bool) -> torch.Tensor:
        pieces = []
        for rows in _ranges(counts):
            tokens = ids[rows.start : rows.stop]
            spans = [Span(tokens, rows.start, mine, len(rows), _NUM_TOKENS)]
            if in_company:
                spans.append(Span(tokens[::-1], rows.start, other, len(rows), _NUM_TOKENS))
            pieces.append(runner.run(Step(tuple(spans), _BLOCK_SIZE))[: len(rows)])
        return torch.cat(pieces)

    whole = run((_NUM_TOKENS,), in_company=False)
    alone, shared = run(_ALONE, in_company=False), run(_IN_COMPANY, in_company=True)
    return torch.equal(whole, alone) and torch.equal(whole, shared)


@torch.inference_mode()
def _attention_is_exact(shape: HeadShape, window: int | None) -> bool:
    """Random rows over a long sequence, cut in several ways, and some rows one at a time."""
    num_blocks = -(-_LONG // _BLOCK_SIZE)
    cache = StackedCache(1, shape, num_blocks, _BLOCK_SIZE, dtype=torch.float32)
    size = (_LONG, shape.num_heads + 2 * shape.num_kv_heads, shape.dim)
    heads = torch.randn(size, generator=torch.Generator().manual_seed(0))

    def attend(rows: range) -> torch.Tensor:
        span = Span((0,) * len(rows), rows.start, tuple(range(num_blocks)), 0, 1)
        attention = read_rows(Step((span,), _BLOCK_SIZE), cache, shape, (window,))
        return attention.attend(0, heads[rows.start : rows.stop])

    expected = torch.cat([attend(rows) for rows in _ranges(_LONG_CUTS[0])])
    parts = [rows for cut in _LONG_CUTS[1:] for rows in _ranges(cut)]
    parts += [range(row, row + 1) for row in _SINGLE_ROWS]
    return all(torch.equal(expected[rows.start : rows.stop], attend(rows)) for rows in parts)
