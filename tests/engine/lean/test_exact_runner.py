"""Whole decoders: logits with the same bits, whatever shares a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from paceline.engine.lean.kernels import INT4, WIDE, Kernels
from paceline.engine.lean.runner import LeanRunner
from paceline.engine.lean.weights import take_decoder
from paceline.engine.quantization import quantize_int8_per_row
from paceline.engine.step import Span, Step

BuildNetwork = Callable[..., PreTrainedModel]
VOCABULARY = 500
SIZE = 4
LENGTH = 90
WINDOW = {"use_sliding_window": True, "sliding_window": 6, "layer_types": ["sliding_attention"] * 2}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "one key head": ("llama", {"num_key_value_heads": 1}),
    "odd sizes": ("llama", {"intermediate_size": 99, "hidden_size": 60}),
    "wide heads": ("llama", {"head_dim": 128}),
    "wide": ("llama", {"hidden_size": 1088, "intermediate_size": 1200}),
    "mistral": ("mistral", {"sliding_window": 7}),
    "qwen2 window": ("qwen2", WINDOW),
    "qwen3": ("qwen3", {}),
}


@pytest.fixture(params=list(VARIANTS.values()), ids=list(VARIANTS))
def network(request: pytest.FixtureRequest, tiny_network: BuildNetwork) -> PreTrainedModel:
    """Each variant in turn."""
    model_type, settings = request.param
    return tiny_network(model_type, **settings).requires_grad_(False)


class Sequences:
    """Two sequences of random tokens on one runner."""

    def __init__(self, network: PreTrainedModel, kernels: Kernels) -> None:
        self._runner = LeanRunner(take_decoder(network, kernels), VOCABULARY)
        num_blocks = -(-LENGTH // SIZE)
        self._runner.allocate(2 * num_blocks, SIZE)
        self._tables = [tuple(range(i, 2 * num_blocks, 2)) for i in range(2)]
        generator = torch.Generator().manual_seed(0)
        self._ids = torch.randint(VOCABULARY, (2, LENGTH), generator=generator).tolist()

    def step(self, *parts: tuple[int, int, int], ids: Sequence[int] | None = None) -> torch.Tensor:
        """Logits of (sequence, first, one past last) in one step; `ids` replace the tokens."""
        spans = tuple(
            Span(
                tuple(ids or self._ids[which][first:last]),
                first,
                self._tables[which],
                last - first,
                LENGTH,
            )
            for which, first, last in parts
        )
        return self._runner.run(Step(spans, SIZE))


@pytest.mark.parametrize("bits", [32, 8, 4])
def test_logits_are_the_same_bits(network: PreTrainedModel, bits: int) -> None:
    """B37, B15: all at once, in chunks, by proposals of any length, one at a time, in company."""
    if bits == 8:
        quantize_int8_per_row(network)
    sequences = Sequences(network, INT4 if bits == 4 else WIDE)
    expected = sequences.step((0, 0, LENGTH))
    for count in (1, 2, 3, 5, 9, 16, 17, 64):
        for first in (0, 20):
            last = first + count
            assert torch.equal(expected[first:last], sequences.step((0, first, last)))
    sequences.step((1, 0, 30))
    shared = sequences.step((1, 30, 35), (0, 40, 45), (1, 35, 36))
    assert torch.equal(expected[40:45], shared[5:10])


def test_rolled_back_rows_leave_no_bit(network: PreTrainedModel) -> None:
    """B34: rejected tokens that were written over change nothing behind them."""
    sequences = Sequences(network, WIDE)
    expected = sequences.step((0, 0, LENGTH))
    sequences.step((0, 30, 38), ids=[7] * 8)
    assert torch.equal(expected[30:33], sequences.step((0, 30, 33)))
    assert torch.equal(expected[33:LENGTH], sequences.step((0, 33, LENGTH)))
