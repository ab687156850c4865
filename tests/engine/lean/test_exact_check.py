"""The check at load: exact kernels pass it, everything less is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from paceline.engine.lean.exact_attention import ExactAttention
from paceline.engine.lean.exact_check import check_exact
from paceline.engine.lean.kernels import EXACT, FAST, Kernels
from paceline.engine.lean.runner import LeanRunner
from paceline.engine.lean.weights import take_decoder
from paceline.engine.step import Step
from paceline.errors import FailedPrecondition

BuildNetwork = Callable[..., PreTrainedModel]
VOCABULARY = 500


def check(network: PreTrainedModel, kernels: Kernels, make_attention: Any) -> None:
    """Checks a network in some kernels; attention alone may be another one."""
    decoder = take_decoder(network, kernels)
    runner = LeanRunner(decoder, VOCABULARY, kernels.attention)
    check_exact(runner, decoder, VOCABULARY, make_attention)


@pytest.mark.parametrize("model_type", ["llama", "mistral"])
def test_exact_kernels_pass(tiny_network: BuildNetwork, model_type: str) -> None:
    """With a window and without."""
    check(tiny_network(model_type), EXACT, EXACT.attention)


@pytest.mark.parametrize("part", ["attention", "linear"])
def test_fast_kernels_are_refused(tiny_network: BuildNetwork, part: str) -> None:
    """Rounding by the number of rows is seen: over many keys, and in a wide product."""
    network = tiny_network("llama", intermediate_size=1200)
    kernels = (
        EXACT
        if part == "attention"
        else replace(EXACT, build_linear=FAST.build_linear, build_gate=FAST.build_gate)
    )
    attention = FAST.attention if part == "attention" else EXACT.attention
    with pytest.raises(FailedPrecondition, match="exact mode does not hold"):
        check(network, kernels, attention)


def test_company_is_seen(tiny_network: BuildNetwork) -> None:
    """One bit, and only where another sequence shares the step."""
    decoder = take_decoder(tiny_network("llama"), EXACT)

    class Crowded(LeanRunner):
        def run(self, step: Step) -> torch.Tensor:
            logits = super().run(step)
            return torch.nextafter(logits, logits + 1) if len(step.spans) > 1 else logits

    with pytest.raises(FailedPrecondition, match="exact mode does not hold") as raised:
        check_exact(
            Crowded(decoder, VOCABULARY, ExactAttention), decoder, VOCABULARY, ExactAttention
        )
    assert "NOT_EXACT_HERE" == raised.value.reason
