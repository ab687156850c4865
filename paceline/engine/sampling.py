"""Logits to laws: penalties, bias, masks; temperature, top-k, top-p, min-p; softmax.

The one place where sampling parameters meet logits, for plain and speculative rows alike, one row
at a time: a row's law cannot depend on the rows beside it. It knows no session, no draft and no
randomness. The order of tokens is total everywhere: by logit, then by lowest id. What comes before
the temperature, and may depend on the text so far, is in `adjustment.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import isfinite

import numpy as np
import torch

from paceline.engine.adjustment import Row, adjusted
from paceline.engine.history import History
from paceline.engine.law import Floats, Ids, Law
from paceline.errors import InvalidArgument
from paceline.records import SamplingParams

_MIN_CUT_TEMPERATURE = 1e-30
"""Least temperature that decides a top-p cut, which is float32; the law uses the true one."""

_LARGE = 1e-3
"""Share of the likeliest token that a token needs to be looked at first for a top-p cut."""

_NOTHING_LEFT = (
    "min_tokens, banned_sequences, the constraint and the model's own law leave no token at this "
    "place"
)


def target_laws(
    logits: torch.Tensor,
    params: Sequence[SamplingParams],
    histories: Sequence[History | None] | None = None,
) -> list[Law]:
    """Returns the law of each row.

    Args:
        logits: Float32 [R, V], on any device; -inf masks a token.
        params: Sampling parameters [R].
        histories: The text before each row [R]; read only where `params` adjust the logits.

    Returns:
        R laws. A row that is all -inf, or holds NaN or inf, becomes `Law.void()`, which raises
        RuntimeError where it is read: behind an impossible draft token nobody does. Where the
        client's own masks left nothing, it raises InvalidArgument instead.
    """
    if all(wanted.is_greedy and not wanted.adjusts_logits for wanted in params):
        tokens, finite = _argmax(logits)
        return [Law.point(t) if ok else Law.void() for t, ok in zip(tokens, finite, strict=True)]
    all_ids = _first_ids(logits.shape[1])
    behind = histories or [None] * len(params)
    with np.errstate(over="ignore"):  # a far token divided by a tiny temperature: -inf is meant
        rows = logits.detach().cpu().numpy()
        return [
            _law(row, all_ids, wanted, history)
            for row, wanted, history in zip(rows, params, behind, strict=True)
        ]


@cache
def _first_ids(count: int) -> Ids:
    """Returns 0 .. count-1; there are as many counts as vocabularies."""
    ids = np.arange(count)
    ids.setflags(write=False)
    return ids


def greedy_tokens(logits: torch.Tensor) -> list[int]:
    """Returns the likeliest token of each row [R, V], the lowest id among equals.

    Raises:
        RuntimeError: A row is all -inf, or holds NaN or inf.
    """
    tokens, finite = _argmax(logits)
    if not all(finite):
        raise RuntimeError(f"row {finite.index(False)}: logits are all -inf or not finite")
    return tokens


def _argmax(logits: torch.Tensor) -> tuple[list[int], list[bool]]:
    """Returns the first argmax of each row, and whether its logit is finite (NaN is a maximum)."""
    if logits.is_cuda:
        found = argmax_on_device(logits).tolist()  # the one thing that a greedy step waits for
        return found, [token >= 0 for token in found]
    rows = logits.detach().numpy()
    peaks = rows.argmax(axis=1).tolist()
    return peaks, [isfinite(row[peak]) for row, peak in zip(rows, peaks, strict=True)]


def argmax_on_device(logits: torch.Tensor) -> torch.Tensor:
    """Returns the first argmax of each row on its own device, -1 where its logit is not finite."""
    values, tokens = logits.max(dim=1)
    return torch.where(values.isfinite(), tokens, -1)


def _law(row: Row, ids: Ids, params: SamplingParams, history: History | None) -> Law:
    """Returns the law of one row [V]; `ids` is 0 .. V-1, shared by all rows that keep them all."""
    peak = row[row.argmax()]
    if not isfinite(peak):
        return Law.void()
    if params.adjusts_logits:
        if history is None:
            raise ValueError("these parameters depend on a history, and there is none")
        if params.constraint is not None and history.allowed is None:
            raise ValueError("a constraint needs a matcher, and there is none")
        row = adjusted(row, params, history)
        peak = row[row.argmax()]
        if peak == -np.inf:
            return Law.void(InvalidArgument("sampling", _NOTHING_LEFT, reason="NO_TOKEN_LEFT"))
    if params.is_greedy:
        return Law.point(int(row.argmax()))
    values = row
    if row[row.argmin()] == -np.inf:  # masked, or not scored by a reduced head: mostly many
        ids = (row > -np.inf).nonzero()[0]
        values = row[ids]
    if 0 < params.top_k < len(values):
        kept = top_k_ids(values, params.top_k)
        ids, values = ids[kept], values[kept]
    if params.top_p < 1.0:
        kept = _top_p(values, peak, params.temperature, params.top_p)
        ids, values = ids[kept], values[kept]
    weights = _weights(values, peak, params.temperature)
    if params.min_p > 0.0:
        kept = (weights >= params.min_p).nonzero()[0]
        ids, weights = ids[kept], weights[kept]
    weights /= np.add.reduce(weights)
    return Law(ids, weights)


def _weights(values: Row, peak: np.float32, temperature: float) -> Floats:
    """Returns shares of the largest probability in float64.

    The peak goes before the division, so nothing overflows.
    """
    weights = values.astype(np.float64)
    weights -= peak
    if temperature != 1.0:  # a division of a vocabulary is as dear as its exponentials
        weights /= temperature
    np.exp(weights, out=weights)
    return weights


def top_k_ids(row: Row, count: int) -> Ids:
    """Returns the ascending ids of the `count` likeliest tokens."""
    return _likeliest(row, count, np.partition(row, -count)[-count])


def _top_p(values: Row, peak: np.float32, temperature: float, top_p: float) -> Ids:
    """Returns the ascending places in `values` of the fewest likeliest tokens that hold `top_p`.

    Mostly a few large ones hold it. Otherwise, tokens under (1 - top_p) / n of the whole hold less
    than 1 - top_p together, so the cut is among the others. Only those are sorted.
    """
    weights = (values - peak) / np.float32(max(temperature, _MIN_CUT_TEMPERATURE))
    np.exp(weights, out=weights)
    total = float(weights.sum())
    for floor in (_LARGE, 0.5 * (1.0 - top_p) * total / len(weights)):  # half: room for rounding
        places = (weights >= floor).nonzero()[0]
        descending = np.sort(weights[places])[::-1]
        held = np.cumsum(descending, dtype=np.float64)
        if held[-1] >= top_p * total:
            break
    count = min(int(held.searchsorted(top_p * total)) + 1, len(held))
    return places[_likeliest(weights[places], count, descending[count - 1])]


def _likeliest(values: Row, count: int, boundary: np.float32) -> Ids:
    """Returns the ascending places of the `count` largest, whose smallest value is `boundary`."""
    kept = (values >= boundary).nonzero()[0]
    surplus = len(kept) - count
    if surplus:  # equals at the boundary: the lowest places stay
        equals = (values[kept] == boundary).nonzero()[0]
        kept = np.delete(kept, equals[-surplus:])
    return kept
