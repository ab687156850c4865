"""Runs the lean decoder on CUDA over the rows of a step, against a paged cache.

Steps of few rows repeat recorded ones, others run kernel by kernel. A step waits for nothing: one
copy from pinned memory brings its integers, and logits stay on the device. Knows no session and no
sampling.
"""

from __future__ import annotations

import torch

from paceline.engine.lean.decoder import Decoder
from paceline.engine.lean.graphs import (
    Record,
    RecordedStep,
    Run,
    find_recorded,
    recorded_shapes,
)
from paceline.engine.lean.packed import PackedRows, PackedShape, pack
from paceline.engine.lean.paged_attention import PagedAttention, PagedKernel, attend_flash
from paceline.engine.lean.slot_cache import SlotCache
from paceline.engine.step import Step


class CudaRunner:
    """A decoder with its cache; implements `step.ModelRunner`.

    The decoder's query heads are in the model's order.
    """

    def __init__(
        self, decoder: Decoder, vocabulary_size: int, kernel: PagedKernel = attend_flash
    ) -> None:
        self._decoder = decoder
        self._vocabulary_size = vocabulary_size
        self._kernel = kernel
        self.device = decoder.embedding.device
        self._cache: SlotCache | None = None
        self._recorded: list[RecordedStep] = []

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Allocates the cache; what was recorded over another is forgotten with it."""
        self._recorded = []
        self._cache = None  # Never two at once.
        self._cache = SlotCache(
            len(self._decoder.layers),
            self._decoder.shape,
            num_blocks,
            block_size,
            self._decoder.embedding,
        )

    @property
    def cache(self) -> SlotCache:
        """What was allocated."""
        assert self._cache is not None, "allocate first"
        return self._cache

    @property
    def recorded_shapes(self) -> list[PackedShape]:
        """The shapes of the recorded steps, the largest first."""
        return [one.shape for one in self._recorded]

    @torch.inference_mode()
    def record(self, record: Record) -> None:
        """Records a step of every row count, over the cache that is allocated."""
        self._recorded = []
        nothing = Step((), self.cache.block_size)
        for shape in recorded_shapes(self.cache.spare_block):
            numbers = self._pack(nothing, shape).to(self.device, copy=True)
            run = self._static_run(PackedRows.of(numbers, shape))
            self._recorded.append(RecordedStep(shape, numbers, record(run)))

    def forget_recorded(self) -> None:
        """From now on every step runs kernel by kernel."""
        self._recorded = []

    @torch.inference_mode()
    def run(self, step: Step) -> torch.Tensor:
        """Runs one step; see `step.ModelRunner.run`."""
        recorded = find_recorded(step, self._recorded)
        if recorded is None:
            return self.run_unrecorded(step)
        recorded.numbers.copy_(self._pack(step, recorded.shape), non_blocking=True)
        logits = recorded.repeat()[:, : self._vocabulary_size]
        num_wanted = sum(span.num_logits for span in step.spans)
        if num_wanted < step.num_rows:
            logits = logits[PackedRows.of(recorded.numbers, recorded.shape).wanted[:num_wanted]]
        # A copy in any case: the next step overwrites what was recorded.
        return logits[:num_wanted].to(torch.float32, copy=True)

    @torch.inference_mode()
    def run_unrecorded(self, step: Step) -> torch.Tensor:
        """Runs one step kernel by kernel; see `step.ModelRunner.run`."""
        shape = PackedShape.of(step)
        numbers = self._pack(step, shape).to(self.device, non_blocking=True)
        rows = PackedRows.of(numbers, shape)
        num_wanted = sum(span.num_logits for span in step.spans)
        logits = self._forward(rows, rows.wanted[:num_wanted])
        return logits[:, : self._vocabulary_size].float()

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copies whole blocks, (source, destination)."""
        self.cache.copy_blocks(pairs)

    def _static_run(self, rows: PackedRows) -> Run:
        """The forward pass over rows that stay where they are, with the logits of all."""
        every_row = torch.arange(len(rows.ids), device=self.device)
        return lambda: self._forward(rows, every_row)

    def _forward(self, rows: PackedRows, wanted: torch.Tensor) -> torch.Tensor:
        decoder = self._decoder
        attention = PagedAttention(rows, self.cache, decoder.shape, decoder.windows, self._kernel)
        return decoder.forward(rows.ids, rows.positions, wanted, attention)

    def _pack(self, step: Step, shape: PackedShape) -> torch.Tensor:
        """A step in pinned memory, which is given out again only after it was copied."""
        is_pinned = self.device.type == "cuda"
        numbers = torch.empty(shape.size, dtype=torch.int64, pin_memory=is_pinned)
        pack(step, numbers, shape, self.cache.spare_block)
        return numbers
