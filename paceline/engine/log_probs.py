"""Log-probabilities of committed tokens, from the model's raw logits.

Before penalties, bias, masks and temperature: what the model thought, not what was drawn from. It
knows no proposal; accepted, recovered, bonus and plain tokens are all one thing here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from paceline.engine.adjustment import Row
from paceline.engine.law import Ids
from paceline.engine.sampling import top_k_ids
from paceline.records import TokenLogProbs


def token_log_probs(
    logits: torch.Tensor, token_ids: Sequence[int], num_top: int
) -> tuple[TokenLogProbs, ...]:
    """Returns the log-probabilities of each token and of the likeliest ones beside it.

    Args:
        logits: Raw float32 [m, V], on any device; row i is the one that token i was drawn from.
        token_ids: The committed ids [m].
        num_top: How many of the likeliest; there are fewer where fewer are possible.
    """
    rows = logits.detach().cpu().numpy()
    return tuple(
        _one(row, token_id, num_top) for row, token_id in zip(rows, token_ids, strict=True)
    )


def _one(row: Row, token_id: int, num_top: int) -> TokenLogProbs:
    values = row.astype(np.float64)
    values -= values.max()
    log_sum = np.log(np.exp(values).sum())
    top = _likeliest(row, num_top)
    log_probs = values[top] - log_sum
    possible = np.isfinite(log_probs)
    return TokenLogProbs(
        float(values[token_id] - log_sum),
        tuple(top[possible].tolist()),
        tuple(log_probs[possible].tolist()),
    )


def _likeliest(row: Row, count: int) -> Ids:
    """Returns the ids of the `count` likeliest tokens, likeliest first, of equals the lowest."""
    if count == 0:
        return np.empty(0, dtype=np.int64)
    ids = top_k_ids(row, count) if count < len(row) else np.arange(len(row))
    return ids[np.argsort(-row[ids], kind="stable")]
