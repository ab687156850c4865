"""The reference of the equality check, and how rounds are told apart by how they end."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.bench import equality
from paceline.bench.prompts import Question
from paceline.v1 import gateway_pb2

DRAFT = gateway_pb2.TOKEN_ORIGIN_DRAFT
BONUS = gateway_pb2.TOKEN_ORIGIN_BONUS
RECOVERED = gateway_pb2.TOKEN_ORIGIN_RECOVERED
PLAIN = gateway_pb2.TOKEN_ORIGIN_PLAIN


@pytest.mark.parametrize(
    ("origins", "outcome"),
    [
        ([DRAFT, BONUS], {"full": 1}),
        ([DRAFT, DRAFT], {"full": 1}),  # the end token was accepted
        ([DRAFT, RECOVERED], {"partial": 1}),
        ([RECOVERED], {"none": 1}),
        ([PLAIN], {}),
    ],
)
def test_outcomes(origins: list[Any], outcome: dict[str, int]) -> None:
    """A round without a proposal has none."""
    counted: Counter[str] = Counter()
    equality._count(gateway_pb2.Tokens(origins=origins), counted)
    assert outcome == counted


class Letters:
    """The tokenizer as far as a reference needs it."""

    def apply_chat_template(self, messages: Any, **options: Any) -> dict[str, Any]:
        """The same prompt whatever is said."""
        ids = torch.tensor([[3, 4, 5]])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def test_a_models_own_penalty_is_not_applied(networks: Any, tmp_path: Path) -> None:
    """The services are asked for none, and transformers would apply it to greedy ids too."""
    target = equality.Target(networks.find(), 1, tmp_path)
    target._tokenizer = Letters()
    questions = [Question("1", "a", "?")]
    expected = list(target.references(questions, 8))
    assert ((3, 4, 5), 8) == (expected[0].prompt_token_ids, len(expected[0].token_ids))
    target._network.generation_config.repetition_penalty = 9.0
    assert expected == list(target.references(questions, 8))
