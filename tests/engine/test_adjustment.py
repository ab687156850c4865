"""Penalties, bias and masks, against a reference that goes token by token."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from paceline.engine.adjustment import adjusted
from paceline.engine.history import History
from paceline.records import SamplingParams

INF = float("inf")
PROMPT, OUTPUT = [1, 2, 2, 5], [2, 3, 3, 3]


def history(prompt: list[int], output: list[int]) -> History:
    """A text."""
    return History(np.array([*prompt, *output], dtype=np.int64), len(prompt))


def adjust(row: list[float], output: list[int] | None = None, **params: Any) -> list[float]:
    """The row behind the prompt and an output."""
    text = history(PROMPT, OUTPUT if output is None else output)
    values: list[float] = adjusted(
        np.array(row, dtype=np.float32), SamplingParams(**params), text
    ).tolist()
    return values


def reference(
    row: npt.NDArray[np.float32], params: SamplingParams, prompt: list[int], output: list[int]
) -> list[float]:
    """The documented order, written for reading."""
    values = []
    for token_id, logit in enumerate(row.tolist()):
        if token_id in prompt or token_id in output:
            penalty = params.repetition_penalty
            logit = logit / penalty if logit > 0 else logit * penalty
        count = output.count(token_id)
        logit -= params.presence_penalty * (count > 0) + params.frequency_penalty * count
        logit += dict(params.logit_bias).get(token_id, 0.0)
        is_stop = token_id in params.stop_token_ids and len(output) < params.min_tokens
        is_banned = any(
            banned[-1] == token_id and output[len(output) - len(banned) + 1 :] == list(banned[:-1])
            for banned in params.banned_sequences
            if len(banned) <= len(output) + 1
        )
        values.append(-INF if is_stop or is_banned else logit)
    return values


@pytest.mark.parametrize("seed", range(20))
def test_everything_together_equals_the_reference(seed: int) -> None:
    """B30: random texts and parameters, every one of them at work."""
    generator = np.random.default_rng(seed)
    row = (generator.standard_normal(9) * 3).astype(np.float32)
    prompt, output = (generator.integers(0, 6, size).tolist() for size in (4, seed % 7))
    params = SamplingParams(
        stop_token_ids=(7, 8),
        repetition_penalty=float(generator.uniform(0.5, 2.0)),
        presence_penalty=float(generator.uniform(-2, 2)),
        frequency_penalty=float(generator.uniform(-2, 2)),
        logit_bias=((0, 1.5), (3, -100.0)),
        min_tokens=4,
        banned_sequences=((6,), *(tuple(generator.integers(0, 6, 2).tolist()) for _ in range(9))),
    )
    text = history(prompt, output)
    assert reference(row, params, prompt, output) == pytest.approx(
        adjusted(row, params, text).tolist(), rel=1e-6, abs=1e-5
    )


def test_repetition_counts_prompt_and_output_once() -> None:
    """Seen once or often: divided where positive, multiplied where negative; -inf stays."""
    assert [4.0, 2.0, -8.0, -INF, 4.0, 0.0] == adjust(
        [4.0, 4.0, -4.0, -INF, 4.0, 0.0], repetition_penalty=2.0
    )


def test_presence_and_frequency_count_the_output_alone() -> None:
    """Once for being there, once per occurrence; what is only in the prompt is free."""
    zeros = [0.0] * 6
    assert [0.0, 0.0, -1.0, -1.0, 0.0, 0.0] == adjust(zeros, presence_penalty=1.0)
    assert [0.0, 0.0, -0.5, -1.5, 0.0, 0.0] == adjust(zeros, frequency_penalty=0.5)
    assert [0.0, 0.0, 0.5, 1.5, 0.0, 0.0] == adjust(zeros, frequency_penalty=-0.5)
    assert zeros == adjust(zeros, output=[], presence_penalty=1.0, frequency_penalty=1.0)


def test_bias_comes_after_the_penalties() -> None:
    """A bias is never divided by the repetition penalty."""
    assert 3.0 == adjust([0.0, 4.0] * 3, repetition_penalty=2.0, logit_bias=((1, 1.0),))[1]


@pytest.mark.parametrize("num_output", range(12))
def test_stop_tokens_are_masked_up_to_min_tokens(num_output: int) -> None:
    """B27: the tenth token may not be a stop, the eleventh may: tokens are counted, not steps."""
    row = adjust([0.0] * 4, output=[0] * num_output, stop_token_ids=(1, 3), min_tokens=10)
    assert ([0.0, -INF, 0.0, -INF] if num_output < 10 else [0.0] * 4) == row


@pytest.mark.parametrize(
    ("banned", "output", "masked"),
    [
        ((4,), [], [4]),
        ((3, 4), OUTPUT, [4]),
        ((3, 3, 3), OUTPUT, [3]),
        ((2, 4), OUTPUT, []),
        ((2, 3, 3, 3, 0), OUTPUT, [0]),
        ((5, 2), [], []),
        ((5, 2, 4), [2], []),
        ((0, 0, 0, 0, 0, 4), [0], []),
    ],
)
def test_banned_sequences_end_where_they_would_be_complete(
    banned: tuple[int, ...], output: list[int], masked: list[int]
) -> None:
    """Only the last id is masked, and only behind the others; the prompt begins no sequence."""
    row = adjust([0.0] * 6, output=output, banned_sequences=(banned,))
    assert masked == [token_id for token_id, logit in enumerate(row) if logit == -INF]


def test_a_mask_beats_a_bias() -> None:
    """What is banned stays banned."""
    row = adjust([0.0, 0.0], logit_bias=((1, 100.0),), banned_sequences=((1,),))
    assert [0.0, -INF] == row


def test_the_raw_row_is_left_alone() -> None:
    """Log-probabilities are read from it afterwards."""
    row = np.zeros(6, dtype=np.float32)
    text = history(PROMPT, OUTPUT)
    adjusted(row, SamplingParams(logit_bias=((0, 1.0),), banned_sequences=((1,),)), text)
    assert [0.0] * 6 == row.tolist()
