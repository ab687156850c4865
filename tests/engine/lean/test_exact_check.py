"""The check at load: own kernels pass it, stock ones are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from paceline.engine.lean import exact_check
from paceline.engine.lean.attention import StockAttention
from paceline.engine.lean.exact_check import check_exact
from paceline.engine.lean.kernels import WIDE, Kernels
from paceline.engine.lean.linear import Linear, Matrix, StockLinear
from paceline.engine.lean.runner import LeanRunner
from paceline.engine.lean.weights import take_decoder
from paceline.engine.step import Step
from paceline.errors import FailedPrecondition

BuildNetwork = Callable[..., PreTrainedModel]
VOCABULARY = 500


def check(network: PreTrainedModel, kernels: Kernels) -> None:
    """Checks a network in some kernels."""
    decoder = take_decoder(network, kernels)
    check_exact(LeanRunner(decoder, VOCABULARY), decoder, VOCABULARY)


def build_stock(matrix: Matrix) -> Linear:
    """A matrix in the hands of a library."""
    return StockLinear(lambda x: x @ matrix.weight.T)


@pytest.mark.parametrize("model_type", ["llama", "mistral"])
def test_own_kernels_pass(tiny_network: BuildNetwork, model_type: str) -> None:
    """With a window and without."""
    check(tiny_network(model_type), WIDE)


def test_stock_attention_is_refused(
    tiny_network: BuildNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding by the number of rows is seen over many keys."""
    monkeypatch.setattr(exact_check, "read_rows", StockAttention)
    with pytest.raises(FailedPrecondition, match="exact mode does not hold"):
        check(tiny_network("llama"), WIDE)


def test_stock_products_are_refused(tiny_network: BuildNetwork) -> None:
    """Rounding by the number of rows is seen in wide products."""
    network = tiny_network("llama", intermediate_size=1200)
    with pytest.raises(FailedPrecondition, match="exact mode does not hold"):
        check(network, Kernels(build_stock, build_stock))


def test_company_is_seen(tiny_network: BuildNetwork) -> None:
    """One bit, and only where another sequence shares the step."""
    decoder = take_decoder(tiny_network("llama"), WIDE)

    class Crowded(LeanRunner):
        def run(self, step: Step) -> torch.Tensor:
            logits = super().run(step)
            return torch.nextafter(logits, logits + 1) if len(step.spans) > 1 else logits

    with pytest.raises(FailedPrecondition, match="exact mode does not hold") as raised:
        check_exact(Crowded(decoder, VOCABULARY), decoder, VOCABULARY)
    assert "NOT_EXACT_HERE" == raised.value.reason
