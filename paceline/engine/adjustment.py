"""What acts on logits before the temperature: penalties, then bias, then masks.

One row at a time, as a function of the row, the parameters and the text it stands behind. It keeps
nothing and knows no model, no proposal and no law.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paceline.engine.history import History
from paceline.records import SamplingParams

Row = npt.NDArray[np.float32]


def adjusted(row: Row, params: SamplingParams, history: History) -> Row:
    """Returns a new row [V]. Tokens at -inf stay there; if all are, the masks left none.

    Args:
        row: Raw logits [V].
        params: All ids in them are in [0, V).
        history: The text before the token that the row is for.
    """
    row = row.copy()
    _penalize(row, params, history)
    if params.logit_bias:
        ids, biases = zip(*params.logit_bias, strict=True)
        row[list(ids)] += np.array(biases, dtype=np.float32)
    row[_masked_ids(params, history)] = -np.inf
    if history.allowed is not None:
        row[~history.allowed] = -np.inf
    return row


def _penalize(row: Row, params: SamplingParams, history: History) -> None:
    """Repetition counts prompt and output; presence and frequency count the output alone."""
    if params.repetition_penalty != 1.0:
        seen = history.token_ids  # with repeats, each of which writes the same value again
        values, penalty = row[seen], np.float32(params.repetition_penalty)
        row[seen] = np.where(values > 0.0, values / penalty, values * penalty)
    if params.presence_penalty != 0.0 or params.frequency_penalty != 0.0:
        seen, counts = np.unique(history.output, return_counts=True)
        penalties = params.presence_penalty + params.frequency_penalty * counts
        row[seen] -= penalties.astype(np.float32)


def _masked_ids(params: SamplingParams, history: History) -> list[int]:
    """Returns the stop tokens up to min_tokens, and the last ids of banned sequences begun."""
    output = history.output
    masked = list(params.stop_token_ids) if len(output) < params.min_tokens else []
    longest = max(map(len, params.banned_sequences), default=0)
    tail = tuple(output[max(0, len(output) - longest) :].tolist())
    for *begun, last in params.banned_sequences:
        if len(begun) <= len(tail) and tail[len(tail) - len(begun) :] == tuple(begun):
            masked.append(last)
    return masked
