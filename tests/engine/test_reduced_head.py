"""A head over some tokens: their scores where they belong, and no chance for the others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from paceline.engine.lean.runner import LeanRunner
from paceline.engine.lean.weights import serves, take_decoder
from paceline.engine.model_runner import NetworkRunner
from paceline.engine.quantization import quantize_int8_per_row
from paceline.engine.reduced_head import ReducedHead
from paceline.engine.self_test import check_against_stock, run_stock
from paceline.errors import FailedPrecondition

IDS = torch.tensor([1, 4, 7, 300, 499])


def reduce(network: Any, token_ids: torch.Tensor = IDS) -> None:
    """Gives a tiny network a head over some of its tokens."""
    rows = nn.Linear(64, len(token_ids), bias=False)
    rows.weight.data = network.lm_head.weight.data[token_ids].clone()
    network.lm_head = ReducedHead(rows, token_ids, 520)


@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 8)])
def test_scores_stand_at_their_tokens(shape: tuple[int, ...]) -> None:
    """Everything else is -inf, for a batch of any shape."""
    rows = nn.Linear(8, 2)
    x = torch.randn(shape)
    logits = ReducedHead(rows, torch.tensor([3, 5]), 7)(x)
    assert (*shape[:-1], 7) == logits.shape
    assert torch.equal(rows(x), logits[..., [3, 5]])
    assert (logits[..., [0, 1, 2, 4, 6]] == float("-inf")).all()


@pytest.mark.parametrize("is_quantized", [False, True])
@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_lean_and_stock_agree(tiny_network: Any, model_type: str, is_quantized: bool) -> None:
    """The self-test compares what is scored, and the runner gives rows over the vocabulary."""
    network = tiny_network(model_type)
    reduce(network)
    if is_quantized:
        quantize_int8_per_row(network)
        assert not isinstance(network.lm_head.product, nn.Linear)
    assert serves(network)
    stock = run_stock(network, 500, is_quantized=is_quantized)
    check_against_stock(NetworkRunner(network, 500), stock)
    runner = LeanRunner(take_decoder(network), 500)
    check_against_stock(runner, stock)
    assert 500 == stock.logits[0].shape[1]


@pytest.mark.parametrize("token_ids", [[1, 4, 7, 300, 498], [1, 4, 7, 300, 498, 499]])
def test_other_tokens_are_not_the_same_head(tiny_network: Any, token_ids: list[int]) -> None:
    """The self-test sees a head that scores other tokens, or more, whatever the scores."""
    network = tiny_network("llama")
    reduce(network)
    stock = run_stock(network, 500, is_quantized=False)
    reduce(tiny := tiny_network("llama"), torch.tensor(token_ids))
    with pytest.raises(FailedPrecondition, match="relative error inf"):
        check_against_stock(NetworkRunner(tiny, 500), stock)


def test_other_scores_are_not_the_same_head(tiny_network: Any) -> None:
    """The self-test sees one wrong row among those that are scored."""
    network = tiny_network("llama")
    reduce(network)
    stock = run_stock(network, 500, is_quantized=False)
    network.lm_head.product.weight.data[2] += 0.1
    with pytest.raises(FailedPrecondition, match="relative error"):
        check_against_stock(NetworkRunner(network, 500), stock)
