"""Runs a transformers network over the rows of a step, against a paged cache.

The only place that calls a network. It knows no session and no sampling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from paceline.engine import attention
from paceline.engine.attention import CpuRows, CudaRows, ShapeObserver
from paceline.engine.paged_cache import LayerShape, PagedCache
from paceline.engine.step import Step
from paceline.errors import FailedPrecondition

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class NetworkRunner:
    """A network with its cache; implements `step.ModelRunner`."""

    def __init__(self, network: PreTrainedModel, vocabulary_size: int) -> None:
        """Switches the network over to the paged cache.

        Raises:
            FailedPrecondition: the network does not attend through the function it is given, or
                asks it for more than it does; or the dtype has no kernel on the device.
        """
        self._network = network
        self._vocabulary_size = vocabulary_size
        self._device: torch.device = network.device
        self._cache: PagedCache | None = None
        if self._device.type != "cpu" and network.dtype == torch.float32:
            raise FailedPrecondition(
                f"paged attention on {self._device.type} takes bfloat16 or float16, not float32"
            )
        attention.register()
        try:
            network.set_attn_implementation(attention.ATTENTION_NAME)
        except (ValueError, AttributeError) as error:
            raise FailedPrecondition(
                f"{type(network).__name__} does not take an attention function: {error}"
            ) from error
        self.layers = self._observe_layers()

    @torch.inference_mode()
    def _observe_layers(self) -> tuple[LayerShape, ...]:
        """What each layer stores per token, seen in a run over one token.

        Raises:
            FailedPrecondition: layers are missing: the network would attend by itself, over
                everything in the step.
        """
        observer = ShapeObserver()
        zero = torch.zeros((1, 1), dtype=torch.int64, device=self._device)
        self._network(input_ids=zero, position_ids=zero, use_cache=False, rows=observer)
        num_layers = int(self._network.config.get_text_config().num_hidden_layers)
        if sorted(observer.shapes) != list(range(num_layers)) or observer.num_calls != num_layers:
            raise FailedPrecondition(
                f"{type(self._network).__name__} called the attention function for "
                f"{len(observer.shapes)} of its {num_layers} layers"
            )
        return tuple(observer.shapes[layer] for layer in range(num_layers))

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Allocates the cache."""
        self._cache = PagedCache(
            self.layers, num_blocks, block_size, dtype=self._network.dtype, device=self._device
        )

    @torch.inference_mode()
    def run(self, step: Step) -> torch.Tensor:
        """Runs one step; see `step.ModelRunner.run`."""
        assert self._cache is not None, "allocate first"
        rows = (
            CpuRows(step, self._cache)
            if self._device.type == "cpu"
            else CudaRows(step, self._cache, self._device)
        )
        ids = [token_id for span in step.spans for token_id in span.token_ids]
        positions = [p for span in step.spans for p in range(span.start, span.end)]
        output = self._network(
            input_ids=self._upload(ids)[None],
            position_ids=self._upload(positions)[None],
            use_cache=False,
            logits_to_keep=self._upload(find_logit_rows(step)),
            rows=rows,
        )
        logits: torch.Tensor = output.logits[0, :, : self._vocabulary_size]
        return logits.float()

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copies whole blocks, (source, destination)."""
        assert self._cache is not None, "allocate first"
        self._cache.copy_blocks(pairs)

    def _upload(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64).to(self._device, non_blocking=True)


def find_logit_rows(step: Step) -> list[int]:
    """Indices of the rows of a step whose logits are wanted."""
    wanted: list[int] = []
    row = 0
    for span in step.spans:
        row += len(span.token_ids)
        wanted.extend(range(row - span.num_logits, row))
    return wanted
