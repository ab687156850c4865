"""Runs the lean decoder over the rows of a step, against a paged cache.

It knows no session and no sampling.
"""

from __future__ import annotations

import torch

from paceline.engine.attention import find_slots
from paceline.engine.lean.attention import find_seen, read_rows
from paceline.engine.lean.cache import StackedCache
from paceline.engine.lean.decoder import Decoder
from paceline.engine.lean.one_call import build_native_layers
from paceline.engine.model_runner import find_logit_rows
from paceline.engine.native.layers import NativeLayers, Rows
from paceline.engine.step import Step


class LeanRunner:
    """A decoder with its cache; implements `step.ModelRunner`."""

    def __init__(self, decoder: Decoder, vocabulary_size: int) -> None:
        self.decoder = decoder
        self._vocabulary_size = vocabulary_size
        self._cache: StackedCache | None = None
        self._native: NativeLayers | None = None

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Allocates the cache."""
        decoder = self.decoder
        self._cache = StackedCache(
            len(decoder.layers),
            decoder.shape,
            num_blocks,
            block_size,
            dtype=decoder.embedding.dtype,
        )
        self._native = build_native_layers(decoder, self._cache)

    @torch.inference_mode()
    def run(self, step: Step) -> torch.Tensor:
        """Runs one step; see `step.ModelRunner.run`."""
        assert self._cache is not None, "allocate first"
        decoder = self.decoder
        ids = torch.tensor([token_id for span in step.spans for token_id in span.token_ids])
        positions = torch.tensor([p for span in step.spans for p in range(span.start, span.end)])
        wanted = torch.tensor(find_logit_rows(step), dtype=torch.int64)
        if self._native is not None:
            x = decoder.embedding[ids]
            slots = find_slots(step, torch.device("cpu"))
            seen = find_seen(step, decoder.windows[0])
            self._native.run(Rows(x, decoder.find_turns(positions), slots, seen))
            logits = decoder.score(x, wanted)
        else:
            attention = read_rows(step, self._cache, decoder.shape, decoder.windows)
            logits = decoder.forward(ids, positions, wanted, attention)
        return logits[:, : self._vocabulary_size].float()

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copies whole blocks, (source, destination)."""
        assert self._cache is not None, "allocate first"
        self._cache.copy_blocks(pairs)
