"""Log-probabilities against torch's own log-softmax."""

from __future__ import annotations

import math

import pytest
import torch

from paceline.engine.log_probs import token_log_probs

INF = float("inf")


@pytest.mark.parametrize("num_top", [0, 1, 5, 50, 60])
def test_they_are_the_log_softmax(num_top: int) -> None:
    """B41: of the chosen token and of the likeliest, in order; no more than there are."""
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(1)) * 5
    expected = torch.log_softmax(logits.double(), dim=1)
    answers = token_log_probs(logits, [0, 7, 49, 7], num_top)
    for row, token_id, answer in zip(expected, [0, 7, 49, 7], answers, strict=True):
        top = row.topk(min(num_top, 50))
        assert float(row[token_id]) == pytest.approx(answer.chosen, abs=1e-6)
        assert tuple(top.indices.tolist()) == answer.top_token_ids
        assert top.values.tolist() == pytest.approx(answer.top_log_probs, abs=1e-6)


def test_equals_are_named_lowest_first() -> None:
    """One order everywhere."""
    (answer,) = token_log_probs(torch.tensor([[1.0, 2.0, 2.0, 1.0]]), [0], 3)
    assert (1, 2, 0) == answer.top_token_ids


def test_impossible_tokens_are_not_named() -> None:
    """-inf has no place in JSON, and says nothing."""
    (answer,) = token_log_probs(torch.tensor([[-INF, 0.0, -INF, 0.0]]), [3], 4)
    assert (1, 3) == answer.top_token_ids
    assert math.log(0.5) == pytest.approx(answer.chosen, abs=1e-12)


def test_large_logits_do_not_overflow() -> None:
    """The peak goes first."""
    (answer,) = token_log_probs(torch.tensor([[1e30, -1e30, 88.0]]), [0], 1)
    assert (0.0, (0,)) == (answer.chosen, answer.top_token_ids)
