"""Steps of few rows, recorded once and repeated.

A step of a decoder is hundreds of small kernels, and launching them one by one takes longer than
they run. So steps are recorded as CUDA graphs, one for each of a few row counts; a step is filled
up to the next one. Knows no model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from paceline.engine.lean.packed import PackedShape
from paceline.engine.step import Step

ROW_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)
"""While weights are what a step reads a few surplus rows cost nothing."""
MAX_TABLE_WIDTH = 128
"""Blocks of a sequence in a recorded step: 32,768 tokens in blocks of 256."""

Run = Callable[[], torch.Tensor]
"""Computes from buffers that stay where they are; gives the output."""
Record = Callable[[Run], Run]
"""Takes a computation and gives what repeats it. The output may be the same memory every time."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A step of a fixed shape."""

    shape: PackedShape
    numbers: torch.Tensor
    """What it reads, int64 [shape.size] on the device; see `packed`."""
    repeat: Run
    """Gives the logits [R, V] of all rows, until it is called again."""


def recorded_shapes(num_blocks: int) -> list[PackedShape]:
    """The shapes to record over a cache of so many blocks, the largest first.

    Any row may be a sequence of its own, so a shape has as many sequences as rows.
    """
    width = min(num_blocks, MAX_TABLE_WIDTH)
    return [PackedShape(count, count, width) for count in reversed(ROW_COUNTS)]


def find_recorded(step: Step, recorded: list[RecordedStep]) -> RecordedStep | None:
    """The least recorded step with room for a step; None where there is none.

    Args:
        step: What is to run.
        recorded: Recorded steps, the largest first.
    """
    needed = PackedShape.of(step)
    for one in reversed(recorded):
        if needed.num_rows <= one.shape.num_rows:
            return one if needed.table_width <= one.shape.table_width else None
    return None


def find_recorder(device: torch.device) -> Record:
    """What records on a device; on the CPU nothing is recorded, every run computes anew."""
    return GraphRecorder(device) if device.type == "cuda" else lambda run: run


class GraphRecorder:
    """Records computations as CUDA graphs.

    They share a pool of memory, since no two run at once and each output is read before the next.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Run) -> Run:
        """Records; the first runs find kernels and workspaces, on the stream of the recording."""
        with torch.cuda.device(self._device):
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                for _ in range(2):
                    run()
            torch.cuda.current_stream().wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            # Other threads of the process may go on with what they do.
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                output = run()

        def repeat() -> torch.Tensor:
            graph.replay()
            return output

        return repeat
