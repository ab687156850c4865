"""Predictions from a sheet of numbers that can be checked by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paceline.bench.sheet import (
    Prices,
    Sheet,
    SourceSheet,
    acceptance_rate,
    break_even,
    plain_cost_per_million,
    plain_s,
    predict,
    predictions,
    verify_s,
    warnings,
)

DRAFT = SourceSheet("small", draft_s=0.01, round_trip_s=0.002, survival=(0.8, 0.5, 0.2, 0.1))
SHEET = Sheet(
    verify_s={0: 0.08, 2: 0.1, 4: 0.11}, round_trip_s=0.02, sources=(DRAFT,), output_tokens=50
)


@pytest.mark.parametrize(
    ("k", "expected"), [(0, 0.08), (1, 0.09), (2, 0.1), (3, 0.105), (4, 0.11), (6, 0.12)]
)
def test_a_step_between_and_beyond_what_was_measured(k: int, expected: float) -> None:
    """On the line through the two lengths next to it."""
    assert expected == pytest.approx(verify_s(SHEET, k))
    assert 0.08 == verify_s(replace(SHEET, verify_s={0: 0.08}), k)


def test_a_round() -> None:
    """It takes k td + R_d + R_v + tv(k) for 1 + the survivals, against R_v + t1 for one token."""
    one = predict(SHEET, DRAFT, 2)
    assert 2.3 == pytest.approx(one.tokens_per_round)
    assert 0.02 + 0.002 + 0.02 + 0.1 == pytest.approx(one.round_s)
    assert 0.1 == pytest.approx(plain_s(SHEET))
    assert 2.3 * 0.1 / 0.142 == pytest.approx(one.speedup)
    assert 0.2 == pytest.approx(one.drafts_per_target)


@pytest.mark.parametrize(("draft_s", "expected_s"), [(0.001, 0.12), (0.02, 0.002 + 3 * 2 * 0.02)])
def test_overlap_hides_the_draft_or_the_target(draft_s: float, expected_s: float) -> None:
    """The longer of the target's half and of the table's, never the target's own hop."""
    one = predict(SHEET, replace(DRAFT, draft_s=draft_s), 2)
    assert 2.3 * 0.1 / expected_s == pytest.approx(one.overlapped_speedup)


def test_a_source_that_is_mostly_silent() -> None:
    """A silent round waits for an answer: half of 2.3 tokens in 0.142 s, half of one in 0.102 s.

    With the draft ahead, what is hidden is the answer of 0.002 s, or the plain round of 0.1 s.
    """
    one = predict(SHEET, replace(DRAFT, coverage=0.5), 2)
    assert 1.65 * 0.1 / 0.122 == pytest.approx(one.speedup)
    assert 1.65 * 0.1 / 0.11 == pytest.approx(one.overlapped_speedup)
    far = predict(SHEET, replace(DRAFT, coverage=0.5, round_trip_s=0.2), 2)
    assert 1.65 * 0.1 / (0.5 * 0.26 + 0.5 * 0.2) == pytest.approx(far.overlapped_speedup)


def test_a_source_of_short_proposals() -> None:
    """Half of them have a second token: 0.8 + 0.5 * 0.5 survive, and 1.5 are drafted."""
    short = replace(DRAFT, reach=(1.0, 0.5, 0.5))
    one = predict(SHEET, short, 2)
    assert 2.05 == pytest.approx(one.tokens_per_round)
    assert 0.015 + 0.002 + 0.02 + 0.1 == pytest.approx(one.round_s)
    assert 2.05 * 0.1 / 0.137 == pytest.approx(one.speedup)
    assert 1.05 / 1.5 == pytest.approx(acceptance_rate(short, 2))
    assert break_even((1.0, 0.5), 1.37) == one.break_even
    assert 2.15 == pytest.approx(predict(SHEET, short, 3).tokens_per_round)
    assert 2.15 == pytest.approx(predict(SHEET, short, 8).tokens_per_round)  # none is longer


def test_the_drafts_prompt_is_spread_over_the_output() -> None:
    """98 ms once for the 49 tokens behind the first; not counted where no output is known."""
    waiting = replace(DRAFT, first_wait_s=0.098)
    assert 0.1 / (0.142 / 2.3 + 0.002) == pytest.approx(predict(SHEET, waiting, 2).speedup)
    unknown = replace(SHEET, output_tokens=0.0)
    assert predict(SHEET, DRAFT, 2).speedup == predict(unknown, waiting, 2).speedup


@pytest.mark.parametrize(
    ("k", "ratio", "expected"),
    [(1, 1.5, 0.5), (4, 2.7731, 0.7), (2, 3.0, 1.0), (1, 1.0, 0.0), (1, 0.5, 0.0)],
)
def test_break_even(k: int, ratio: float, expected: float) -> None:
    """B88: the acceptance at which a round pays for itself."""
    assert expected == pytest.approx(break_even((1.0,) * k, ratio), abs=1e-4)


def test_break_even_of_short_proposals() -> None:
    """B88: 1 + a + a^2 / 2 = 1.625 at a half."""
    assert 0.5 == pytest.approx(break_even((1.0, 0.5), 1.625), abs=1e-4)


def test_no_acceptance_pays() -> None:
    """B88: a round of four plain ones cannot be paid by three tokens."""
    assert break_even((1.0, 1.0), 4.0) > 1.0


def test_the_fastest_comes_first() -> None:
    """Every source with every length that was measured."""
    slow = replace(DRAFT, name="slow", draft_s=0.1)
    ranked = predictions(replace(SHEET, sources=(slow, DRAFT)))
    assert 8 == len(ranked)
    assert ("small", 2) == (ranked[0].source, ranked[0].num_draft_tokens)
    assert sorted((one.speedup for one in ranked), reverse=True) == [one.speedup for one in ranked]
    assert "slow" == ranked[-1].source


def test_costs() -> None:
    """Each tier is paid while it works: 0.1 s of 36 and 0.02 s of 18 an hour for 2.3 tokens."""
    prices = Prices(target_per_hour=36, draft_per_hour=18)
    assert (0.1 * 0.01 + 0.02 * 0.005) / 2.3 * 1e6 == pytest.approx(
        predict(SHEET, DRAFT, 2, prices).cost_per_million
    )
    assert 0.08 * 0.01 * 1e6 == pytest.approx(plain_cost_per_million(SHEET, prices))
    assert 0.0 == predict(SHEET, DRAFT, 2).cost_per_million


def test_costs_of_a_source_that_is_mostly_silent() -> None:
    """A quarter of the rounds as above, three of a plain step each for one token."""
    prices = Prices(target_per_hour=36, draft_per_hour=18)
    one = predict(SHEET, replace(DRAFT, coverage=0.25), 2, prices)
    spent = 0.25 * (0.1 * 0.01 + 0.02 * 0.005) + 0.75 * 0.08 * 0.01
    assert spent / (0.25 * 2.3 + 0.75) * 1e6 == pytest.approx(one.cost_per_million)


def test_acceptance_rate() -> None:
    """Accepted over drafted tokens at one length."""
    assert 0.65 == pytest.approx(acceptance_rate(DRAFT, 2))
    assert 0.0 == acceptance_rate(DRAFT, 0)


def test_nothing_to_warn_of() -> None:
    """A fast draft that is mostly right, long outputs, an idle target."""
    assert [] == warnings(SHEET, predict(SHEET, DRAFT, 2))


@pytest.mark.parametrize(
    ("draft", "sheet", "expected"),
    [
        ({"draft_s": 0.04}, {}, "2.0 times as fast"),
        ({"survival": (0.5, 0.2)}, {}, "0.35 of its tokens accepted"),
        ({}, {"output_tokens": 15.0}, "15 tokens, fewer than 16"),
        ({}, {"queued": 3}, "saturated, 3 requests"),
        ({"survival": (0.1, 0.0)}, {}, "leave speculation off"),
    ],
)
def test_warnings(draft: dict[str, Any], sheet: dict[str, Any], expected: str) -> None:
    """Each of the reasons why speculation does not pay, by its number."""
    source = replace(DRAFT, **draft)
    measured = replace(SHEET, sources=(source,), **sheet)
    found = warnings(measured, predict(measured, source, 2))
    assert any(expected in text for text in found), found


def test_limits_are_not_warned_of() -> None:
    """Just three times as fast, just 0.4 accepted, just 16 tokens."""
    source = replace(DRAFT, draft_s=0.08 / 3, survival=(0.5, 0.3))
    measured = replace(SHEET, sources=(source,), output_tokens=16)
    texts = warnings(measured, replace(predict(measured, source, 2), speedup=1.1))
    assert [] == texts
