"""The decoder alone: which rows reach the head, and rotation without transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedModel

from paceline.engine.lean.decoder import Decoder, normalize, normalize_fused
from paceline.engine.lean.weights import take_decoder

BuildNetwork = Callable[..., PreTrainedModel]


class Recorder:
    """A head, and an attention, that note what reaches them."""

    def __init__(self) -> None:
        self.head_rows: list[int] = []
        self.heads: list[torch.Tensor] = []

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Notes how many rows the head was given."""
        self.head_rows.append(len(x))
        return x

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """No head has a residual."""
        raise AssertionError

    def attend(self, layer: int, heads: torch.Tensor) -> torch.Tensor:
        """Notes the heads; every row attends to nothing."""
        self.heads.append(heads.clone())
        return torch.zeros(len(heads), 64)


@pytest.fixture
def recorder() -> Recorder:
    """A recorder that has seen nothing."""
    return Recorder()


@pytest.fixture
def decoder(tiny_network: BuildNetwork, recorder: Recorder) -> Decoder:
    """A tiny decoder under the recorder."""
    network = tiny_network("llama").requires_grad_(False)
    return replace(take_decoder(network), head=recorder)


@torch.inference_mode()
def run(decoder: Decoder, recorder: Recorder, position: int, wanted: list[int]) -> torch.Tensor:
    """Runs three rows of one token at three positions from `position` on."""
    return decoder.forward(
        torch.full((3,), 7),
        torch.arange(position, position + 3),
        torch.tensor(wanted, dtype=torch.int64),
        recorder,
    )


@pytest.mark.parametrize("wanted", [[], [1], [0, 2], [0, 1, 2]])
def test_only_wanted_rows_reach_the_head(
    decoder: Decoder, recorder: Recorder, wanted: list[int]
) -> None:
    """A prompt's rows cost no head; those that are wanted come in their order."""
    logits = run(decoder, recorder, 0, wanted)
    assert [len(wanted)] == recorder.head_rows
    everything = run(decoder, recorder, 0, [0, 1, 2])
    torch.testing.assert_close(everything[wanted], logits)


def test_rotation_depends_on_distance_alone(decoder: Decoder, recorder: Recorder) -> None:
    """The products of queries and keys are those of two rows as far apart, anywhere."""
    run(decoder, recorder, 0, [])
    run(decoder, recorder, 90, [])
    near, far = recorder.heads[0], recorder.heads[2]
    assert not torch.allclose(near, far)
    for row, other in ((2, 0), (1, 1), (0, 2)):
        products = [(heads[row, 0] * heads[other, 4]).sum() for heads in (near, far)]
        torch.testing.assert_close(products[0], products[1], atol=1e-5, rtol=1e-4)


def test_values_are_not_rotated(decoder: Decoder, recorder: Recorder) -> None:
    """One token has one value, wherever it stands; its key differs."""
    run(decoder, recorder, 5, [])
    values, keys = recorder.heads[0][:, 6:], recorder.heads[0][:, 4:6]
    torch.testing.assert_close(values[0], values[2])
    assert not torch.allclose(keys[0], keys[2])


def test_longer_turns(decoder: Decoder, recorder: Recorder) -> None:
    """The scale of rotation lengthens queries and keys, and no values."""
    run(decoder, recorder, 0, [])
    run(replace(decoder, turn_scale=2.0), recorder, 0, [])
    once, twice = recorder.heads[0], recorder.heads[2]
    torch.testing.assert_close(2.0 * once[:, :6], twice[:, :6])
    torch.testing.assert_close(once[:, 6:], twice[:, 6:])


@pytest.mark.parametrize("per_head", [False, True])
def test_norms_in_one_kernel_are_the_same(per_head: bool) -> None:
    """CUDA's norm of rows, and of heads with a scale each."""
    generator = torch.Generator().manual_seed(0)
    size = (3, 4, 8) if per_head else (3, 8)
    x = torch.randn(size, generator=generator, dtype=torch.float64)
    weight = torch.randn(size[1:], generator=generator, dtype=torch.float64)
    expected = x / (x.square().mean(-1, keepdim=True) + 0.3).sqrt() * weight
    torch.testing.assert_close(expected, normalize_fused(x, weight, 0.3))
    torch.testing.assert_close(expected.float(), normalize(x.float(), weight.float(), 0.3))
