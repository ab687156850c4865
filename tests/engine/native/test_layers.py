"""All layers as one call against the same layers one operation at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from paceline.engine.lean import runner as lean_runner
from paceline.engine.lean.kernels import INT4, WIDE, Kernels
from paceline.engine.lean.runner import LeanRunner
from paceline.engine.lean.weights import take_decoder
from paceline.engine.native.layers import NativeLayers, Rows
from paceline.engine.quantization import round_int4_per_group
from paceline.engine.step import Span, Step

BuildNetwork = Callable[..., PreTrainedModel]

VOCABULARY = 500
BLOCK_SIZE = 4
TABLES = tuple(tuple(range(first, 60, 3)) for first in range(3))
# A prompt each; rows of all kinds; single rows; one sequence alone.
STEPS = (((0, 9), (1, 20), (2, 1)), ((0, 5), (1, 1), (2, 9)), ((0, 1), (2, 1)), ((1, 16),))


def build(network: PreTrainedModel, kernels: Kernels) -> LeanRunner:
    """A runner over rounded weights and random biases, with room for three sequences."""
    round_int4_per_group(network)
    torch.manual_seed(0)
    for name, parameter in network.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    decoder = take_decoder(network.requires_grad_(False), kernels)
    runner = LeanRunner(decoder, VOCABULARY)
    runner.allocate(60, BLOCK_SIZE)
    return runner


def run_steps(runner: LeanRunner) -> list[torch.Tensor]:
    """Logits of all rows of the steps."""
    generator = torch.Generator().manual_seed(0)
    lengths = [0, 0, 0]
    logits = []
    for counts in STEPS:
        spans = []
        for index, count in counts:
            ids = tuple(torch.randint(VOCABULARY, (count,), generator=generator).tolist())
            spans.append(Span(ids, lengths[index], TABLES[index], count, 1))
            lengths[index] += count
        logits.append(runner.run(Step(tuple(spans), BLOCK_SIZE)))
    return logits


@pytest.mark.parametrize("kernels", [WIDE, INT4], ids=["float32", "4-bit"])
@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3"])
def test_one_call_is_the_same_as_many(
    tiny_network: BuildNetwork,
    monkeypatch: pytest.MonkeyPatch,
    num_threads: int,
    model_type: str,
    kernels: Kernels,
) -> None:
    """Biases, normalized heads, a window, shared key heads; also on more threads than rows."""
    calls: list[int] = []
    run = NativeLayers.run

    def note(layers: NativeLayers, rows: Rows) -> None:
        calls.append(len(rows.x))
        run(layers, rows)

    monkeypatch.setattr(NativeLayers, "run", note)
    got = run_steps(build(tiny_network(model_type), kernels))
    assert [30, 15, 2, 16] == calls
    monkeypatch.setattr(lean_runner, "build_native_layers", lambda *_: None)
    expected = run_steps(build(tiny_network(model_type), kernels))
    assert [30, 15, 2, 16] == calls
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-5)


def test_odd_matrices_are_left_alone(
    tiny_network: BuildNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A matrix that fills no whole tiles is multiplied by stock operations, and so are all."""
    monkeypatch.setattr(NativeLayers, "run", lambda *_: pytest.fail("one call"))
    sizes = {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 12}
    run_steps(build(tiny_network("llama", **sizes), INT4))
