"""Logits to laws, against a reference that sorts everything in float64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from paceline.engine.history import History
from paceline.engine.law import Law
from paceline.engine.sampling import argmax_on_device, greedy_tokens, target_laws
from paceline.errors import InvalidArgument
from paceline.records import SamplingParams

INF, NAN = float("inf"), float("nan")


def one_law(logits: list[float], **params: float) -> Law:
    """The law of one row."""
    sampling_params = SamplingParams(**params)  # type: ignore[arg-type]  # ints and floats mixed
    return target_laws(torch.tensor([logits]), [sampling_params])[0]


def dense(law: Law, size: int) -> npt.NDArray[np.float64]:
    """All probabilities by id."""
    row = np.zeros(size)
    row[law.token_ids] = law.probabilities
    return row


def reference(logits: npt.NDArray[np.float32], params: SamplingParams) -> npt.NDArray[np.float64]:
    """The documented order, written for reading: a full stable sort and a running sum."""
    order = np.argsort(-logits.astype(np.float64), kind="stable")
    if params.top_k:
        order = order[: params.top_k]
    scaled = logits[order].astype(np.float64) / (params.temperature or 1.0)
    weights = np.exp(scaled - scaled[0])
    held, count = 0.0, 0
    while count < len(order) and held < params.top_p * weights.sum():
        held, count = held + weights[count], count + 1
    count = min(count, int((weights >= params.min_p).sum()))
    if params.temperature == 0.0:
        count = 1
    row = np.zeros(len(logits))
    row[order[:count]] = weights[:count] / weights[:count].sum()
    return row


ALL_PARAMS = [
    SamplingParams(),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.0, top_k=3, top_p=0.5),
    SamplingParams(temperature=0.5),
    SamplingParams(temperature=7.0, top_p=0.95),
    SamplingParams(top_k=1),
    SamplingParams(top_k=5),
    SamplingParams(top_p=0.01),
    SamplingParams(top_p=0.6),
    SamplingParams(temperature=0.7, top_k=4, top_p=0.8),
    SamplingParams(top_k=10**6, top_p=0.9),
    SamplingParams(min_p=0.3),
    SamplingParams(min_p=1.0),
    SamplingParams(temperature=0.7, top_k=5, top_p=0.9, min_p=0.1),
]


@pytest.mark.parametrize("size", [6, 700, 9_000])
@pytest.mark.parametrize("spread", [0.2, 3.0])
def test_laws_equal_the_reference(size: int, spread: float) -> None:
    """B33: every combination, peaked and flat, short rows and rows longer than what is sorted."""
    generator = np.random.default_rng(size)
    logits = (generator.standard_normal((len(ALL_PARAMS), size)) * spread).astype(np.float32)
    laws = target_laws(torch.from_numpy(logits), ALL_PARAMS)
    for row, params, law in zip(logits, ALL_PARAMS, laws, strict=True):
        assert dense(law, size) == pytest.approx(reference(row, params), abs=1e-12)
        assert (np.diff(law.token_ids) > 0).all()


@pytest.mark.parametrize("top_p", [1e-9, 0.3, 0.9, 0.999, 1.0 - 1e-9])
def test_few_rows_are_sorted_whole_and_none_is_cut_wrong(top_p: float) -> None:
    """Peaked and flat rows at every mass: the cut lies among the tokens that are sorted."""
    generator = np.random.default_rng(4)
    for spread in (0.0, 0.01, 1.0, 5.0):
        logits = (generator.standard_normal(2_000) * spread).astype(np.float32)
        params = SamplingParams(top_p=top_p)
        (law,) = target_laws(torch.from_numpy(logits[None]), [params])
        assert dense(law, 2_000) == pytest.approx(reference(logits, params), abs=1e-8)


def test_a_row_does_not_depend_on_its_company() -> None:
    """Bit for bit the same law alone, among others, and among others with other parameters."""
    logits = torch.randn(8, 5_000, generator=torch.Generator().manual_seed(2))
    params = [ALL_PARAMS[i % len(ALL_PARAMS)] for i in range(8)]
    together = target_laws(logits, params)
    for i in range(8):
        (alone,) = target_laws(logits[i : i + 1], params[i : i + 1])
        assert alone.token_ids.tolist() == together[i].token_ids.tolist()
        assert alone.probabilities.tolist() == together[i].probabilities.tolist()


def test_ties_at_the_top_k_boundary_go_to_the_lowest_ids() -> None:
    """Four equal tokens compete for two places behind the first."""
    law = one_law([0.0, 1.0, 1.0, 2.0, 1.0, 1.0], top_k=3)
    assert [1, 2, 3] == law.token_ids.tolist()


def test_ties_at_the_top_p_boundary_go_to_the_lowest_ids() -> None:
    """Of four equal tokens half the mass is exactly two."""
    assert [0, 1] == one_law([0.5, 0.5, 0.5, 0.5], top_p=0.5).token_ids.tolist()
    assert [1, 2] == one_law([-INF, 1.0, 1.0, 1.0], top_p=0.5).token_ids.tolist()


def test_top_p_is_taken_of_what_top_k_left() -> None:
    """0.6 of (.5, .3) renormalised is the first token alone; of the whole it would be two."""
    logits = np.log([0.5, 0.3, 0.2]).tolist()
    assert [0] == one_law(logits, top_k=2, top_p=0.6).token_ids.tolist()
    assert [0, 1] == one_law(logits, top_p=0.6).token_ids.tolist()


def test_top_p_comes_after_temperature() -> None:
    """At temperature 0.5 the first of (.5, .3, .2) holds 0.66, so 0.6 needs no second."""
    logits = np.log([0.5, 0.3, 0.2]).tolist()
    assert [0] == one_law(logits, temperature=0.5, top_p=0.6).token_ids.tolist()


def test_masked_tokens_get_no_mass() -> None:
    """-inf is probability 0 under every setting, also where top-k asks for more than is left."""
    logits = [-INF, 1.0, -INF, 0.0]
    for params in ({}, {"top_k": 3}, {"top_p": 0.999}, {"temperature": 100.0}):
        row = dense(one_law(logits, **params), 4)
        assert [0.0, 0.0] == [row[0], row[2]]
        assert 1.0 == pytest.approx(row[1] + row[3], abs=1e-15)


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-40, 1e-300, 5e-324])
@pytest.mark.parametrize("top_p", [1.0, 0.5])
def test_tiny_temperatures_do_not_overflow(temperature: float, top_p: float) -> None:
    """The limit is the argmax, ties included, without a NaN on the way there."""
    logits = [1e30, -1e30, 88.0, 1e30]
    row = dense(one_law(logits, temperature=temperature, top_p=top_p), 4)
    assert ([0.5, 0.0, 0.0, 0.5] if top_p == 1.0 else [1.0, 0.0, 0.0, 0.0]) == row.tolist()


@pytest.mark.parametrize("bad", [[-INF, -INF, -INF], [0.0, NAN, 1.0], [0.0, INF, 1.0]])
@pytest.mark.parametrize("params", ALL_PARAMS)
def test_rows_without_a_law_fail_only_where_read(bad: list[float], params: SamplingParams) -> None:
    """Behind an impossible draft token rows may be masked whole; elsewhere it is our bug."""
    fine, void = target_laws(torch.tensor([[0.0, 1.0, 2.0], bad]), [params] * 2)
    assert fine.draw(0.0) in (0, 1, 2)
    with pytest.raises(RuntimeError, match="row without a law"):
        void.draw(0.0)


def test_greedy_is_the_lowest_id_among_equals() -> None:
    """B14: one tie rule on every path."""
    logits = torch.tensor([[0.0, 3.0, 3.0], [5.0, 1.0, 5.0], [-INF, -INF, 0.0]])
    laws = target_laws(logits, [SamplingParams(temperature=0.0)] * 3)
    mixed = target_laws(
        logits, [SamplingParams(temperature=0.0), SamplingParams(), SamplingParams(temperature=0.0)]
    )
    assert [1, 0, 2] == greedy_tokens(logits)
    assert [1, 0, 2] == [law.draw(0.5) for law in laws]
    assert [1, 2] == [mixed[0].draw(0.5), mixed[2].draw(0.5)]


def test_greedy_on_a_device_is_one_number_a_row() -> None:
    """The lowest id among equals, and -1 where there is no likeliest token."""
    rows = torch.tensor(
        [[1.0, 3.0, 3.0], [-INF, 0.0, -INF], [-INF] * 3, [0.0, NAN, 1.0], [INF, 0, 0]]
    )
    assert [1, 1, -1, -1, -1] == argmax_on_device(rows).tolist()


@pytest.mark.parametrize("bad", [[-INF, -INF], [NAN, 1.0], [INF, 1.0]])
def test_greedy_tokens_of_no_logits_is_our_bug(bad: list[float]) -> None:
    """No token is made up for a row that names none."""
    with pytest.raises(RuntimeError, match="row 1"):
        greedy_tokens(torch.tensor([[0.0, 1.0], bad]))


def test_no_rows_no_laws() -> None:
    """A step may want no logits at all."""
    assert [] == target_laws(torch.empty(0, 5), [])


def test_min_p_is_a_share_of_the_largest_after_temperature() -> None:
    """B34: of (.5, .3, .2) 0.3 is 0.6 of the largest; at temperature 0.5 it is 0.36 of it."""
    logits = np.log([0.5, 0.3, 0.2]).tolist()
    assert [0, 1] == one_law(logits, min_p=0.5).token_ids.tolist()
    assert [0] == one_law(logits, min_p=0.5, temperature=0.5).token_ids.tolist()
    assert [0, 1, 2] == one_law(logits, min_p=0.5, temperature=2.0).token_ids.tolist()


NOTHING = History(np.array([0]), 1)
BANNED = SamplingParams(banned_sequences=((0,), (2,)))


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1.0])
def test_adjustments_come_before_the_rest(temperature: float) -> None:
    """B30: greedy too; what a bias lifts is what top-k keeps."""
    params = SamplingParams(temperature, top_k=1, logit_bias=((0, 5.0),))
    (law,) = target_laws(torch.tensor([[0.0, 3.0, 1.0]]), [params], [NOTHING])
    assert ([0], [1.0]) == (law.token_ids.tolist(), law.probabilities.tolist())


def test_rows_with_and_without_adjustments_do_not_meet() -> None:
    """One row's mask is nobody else's, and a row without one needs no history."""
    logits = torch.tensor([[3.0, 2.0, 1.0]] * 3)
    laws = target_laws(
        logits, [SamplingParams(0.0), BANNED, SamplingParams(0.0)], [None, NOTHING, None]
    )
    assert [[0], [1], [0]] == [
        [t for t, p in zip(law.token_ids.tolist(), law.probabilities, strict=True) if p > 0]
        for law in laws
    ]
    assert [[3.0, 2.0, 1.0]] * 3 == logits.tolist()


def test_a_missing_history_is_our_bug() -> None:
    """Never silently the law of an empty text."""
    with pytest.raises(ValueError, match="history"):
        target_laws(torch.zeros(1, 3), [BANNED])


def test_masks_that_leave_nothing_are_the_clients() -> None:
    """The row fails where it is read, as the client's mistake; a row with NaN stays ours."""
    logits = torch.tensor([[1.0, -INF, 0.0], [NAN, 0.0, 0.0]])
    masked, broken = target_laws(logits, [BANNED] * 2, [NOTHING] * 2)
    with pytest.raises(InvalidArgument, match="leave no token") as refused:
        masked.probability(0)
    assert "NO_TOKEN_LEFT" == refused.value.reason
    with pytest.raises(RuntimeError, match="row without a law"):
        broken.probability(0)
