"""Proves at load that a network computes the same through the paged cache as by itself.

Some architectures accept an attention function and never call it, or keep part of their attention
elsewhere (chunking in the mask, state across tokens): they would be silently wrong, one session
reading another's tokens. Two packed sequences, fed in two chunks with the blocks interleaved,
against the stock forward of each alone, catch all of these. It runs once and serves nobody. The
stock forward comes first, since a runner may use the network up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from paceline.engine.attention import CUDA_BLOCK_SIZE
from paceline.engine.step import ModelRunner, Span, Step
from paceline.errors import FailedPrecondition

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_BLOCK_SIZE = 4
_SHORT, _LONG = 7, 45
# On CUDA blocks are longer; the second sequence still has two.
_LONG_ON_CUDA = 300
# Longer than the window of a windowed model, as far as that stays cheap.
_MAX_LONG = 600

# Largest accepted ||ours - stock|| / ||stock||. A wrong attention gives 0.1 to 1
# on one of the two.
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
# Rounding activations to 8 bits amplifies differences in the last bit of attention.
# Measured 0.035 on the built-in model.
_QUANTIZED_TOLERANCE = 0.25


@dataclass(frozen=True, slots=True)
class StockRun:
    """What a network itself gave for two sequences."""

    name: str
    """The architecture."""
    sequences: tuple[tuple[int, ...], ...]
    logits: tuple[torch.Tensor, ...]
    """Float32 [T, V] of each."""
    tolerance: float
    block_size: int
    """Of the cache that serves the same device."""


@torch.inference_mode()
def run_stock(network: PreTrainedModel, vocabulary_size: int, *, is_quantized: bool) -> StockRun:
    """Runs two sequences through a network's own attention, which it is left with."""
    config = network.config.get_text_config()
    window = getattr(config, "sliding_window", None) or 0
    limit = getattr(config, "max_position_embeddings", None) or _MAX_LONG
    is_cpu = network.device.type == "cpu"
    least = _LONG if is_cpu else _LONG_ON_CUDA
    long = min(limit, max(least, min(window + 9, _MAX_LONG)))
    generator = torch.Generator().manual_seed(0)
    sequences = tuple(
        tuple(torch.randint(vocabulary_size, (length,), generator=generator).tolist())
        for length in (_SHORT, long)
    )
    network.set_attn_implementation("sdpa" if network._supports_sdpa else "eager")
    return StockRun(
        name=type(network).__name__,
        sequences=sequences,
        logits=tuple(_stock_logits(network, ids, vocabulary_size) for ids in sequences),
        tolerance=_QUANTIZED_TOLERANCE if is_quantized else _TOLERANCE[network.dtype],
        block_size=_BLOCK_SIZE if is_cpu else CUDA_BLOCK_SIZE,
    )


def check_against_stock(runner: ModelRunner, stock: StockRun) -> None:
    """Compares logits at every position of two sequences.

    The runner's cache is allocated for the test; allocate it again afterwards.

    Raises:
        FailedPrecondition: they differ; the architecture is named.
    """
    paged = _paged_logits(runner, stock.sequences, stock.block_size)
    for ours, theirs in zip(paged, stock.logits, strict=True):
        error = relative_error(ours, theirs)
        if not error <= stock.tolerance:
            raise FailedPrecondition(
                f"{stock.name} does not compute the same through the paged cache: "
                f"relative error {error:.2g} where {stock.tolerance:g} is allowed",
                reason="MODEL_NOT_SUPPORTED",
            )


def relative_error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The distance over what tokens are scored; infinite where they are not the same ones."""
    is_scored = theirs != float("-inf")
    if not torch.equal(is_scored, ours != float("-inf")):
        return float("inf")
    ours, theirs = ours[is_scored], theirs[is_scored]
    return float((ours - theirs).norm() / theirs.norm())


def _stock_logits(
    network: PreTrainedModel, ids: Sequence[int], vocabulary_size: int
) -> torch.Tensor:
    """Logits [T, V] of one sequence by the network's own attention."""
    tensor = torch.tensor([list(ids)], device=network.device)
    logits: torch.Tensor = network(input_ids=tensor, use_cache=False).logits
    return logits[0, :, :vocabulary_size].float()


def _paged_logits(
    runner: ModelRunner, sequences: Sequence[tuple[int, ...]], block_size: int
) -> list[torch.Tensor]:
    """Logits [T, V] of two sequences that share two steps and whose blocks interleave."""
    num_blocks = [-(-len(ids) // block_size) for ids in sequences]
    runner.allocate(2 * max(num_blocks), block_size)
    tables = [tuple(2 * block + i for block in range(n)) for i, n in enumerate(num_blocks)]
    # The second cuts differ, so that one-row and many-row spans share a step.
    cuts = [len(sequences[0]) - 1, len(sequences[1]) // 2]
    parts: list[list[torch.Tensor]] = [[], []]
    for chunk in range(2):
        spans = []
        for ids, table, cut in zip(sequences, tables, cuts, strict=True):
            start, end = (0, cut) if chunk == 0 else (cut, len(ids))
            spans.append(Span(ids[start:end], start, table, end - start, len(ids)))
        logits = runner.run(Step(tuple(spans), block_size))
        first = spans[0].num_logits
        parts[0].append(logits[:first])
        parts[1].append(logits[first:])
    return [torch.cat(pieces) for pieces in parts]
