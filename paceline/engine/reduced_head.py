"""A head over some of a vocabulary: the tokens that it does not score have no probability.

What comes out is a row over the whole vocabulary all the same, so nobody behind it needs to know.
Knows no model and no sampling.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


class ReducedHead(nn.Module):
    """A product that scores the tokens of a list."""

    token_ids: torch.Tensor

    def __init__(
        self,
        product: Callable[[torch.Tensor], torch.Tensor],
        token_ids: torch.Tensor,
        vocabulary_size: int,
    ) -> None:
        """Takes what scores, [T, E] -> [T, n], and what it scores: int64 [n], distinct."""
        super().__init__()
        self.product = product
        self.out_features = vocabulary_size
        self.register_buffer("token_ids", token_ids, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., E] -> logits [..., V], -inf where a token is not scored."""
        scores = self.product(x)
        logits = scores.new_full((*scores.shape[:-1], self.out_features), float("-inf"))
        return logits.index_copy_(-1, self.token_ids, scores)
