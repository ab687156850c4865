"""The judge of the law: its numbers, and that it lets a wrong law through nowhere."""

from __future__ import annotations

import json
from pathlib import Path

import click
import numpy as np
import pytest
from scipy import stats

from paceline.bench.law import (
    Case,
    Finding,
    cases,
    judge,
    match,
    overlap,
    pairs_p_value,
    read_law,
    table_of,
)
from paceline.cli.client import Generation
from paceline.v1 import gateway_pb2

P, Q = [0.5, 0.3, 0.2], [0.4, 0.4, 0.2]
ONE = Case("rejection-token", 1)


def text(p: list[float], length: int, seed: int = 0) -> tuple[int, ...]:
    """Independent tokens."""
    return tuple(np.random.default_rng(seed).choice(len(p), length, p=p).tolist())


def generation(drafted: list[int], accepted: list[int], num_tokens: int = 4000) -> Generation:
    """A generation of the right law with these counts by position."""
    told = gateway_pb2.GenerationStats(
        round_count=drafted[0] if drafted else 0,
        drafted_count_by_position=drafted,
        accepted_count_by_position=accepted,
        fallbacks={"lost": 2},
    )
    return Generation(
        "", text(P, num_tokens), (), gateway_pb2.Started(), gateway_pb2.Finished(stats=told)
    )


def test_right_law_passes_and_wrong_ones_do_not() -> None:
    """A shift of 0.03 in single tokens, and a bond between neighbours, are both far off."""
    assert pairs_p_value(P, [text(P, 20_000)]) > 1e-3
    assert pairs_p_value(P, [text([0.53, 0.27, 0.2], 20_000)]) < 1e-9
    bound = [token for token in text(P, 10_000) for _ in range(2)]
    assert pairs_p_value(P, [bound]) < 1e-9
    assert 0.0 == pairs_p_value([0.5, 0.5, 0.0], [(0, 1, 2, 0)])


def test_p_value_is_the_library_s() -> None:
    """Over all pairs, each token in one."""
    tokens = text(P, 3000, seed=5)
    counts = np.zeros((3, 3))
    np.add.at(counts, (tokens[::2], tokens[1::2]), 1)
    expected = stats.chisquare(counts.ravel(), np.outer(P, P).ravel() * 1500).pvalue
    assert expected == pytest.approx(pairs_p_value(P, [tokens]), rel=1e-9)


def test_chances_by_hand() -> None:
    """B01: 0.9 of the draft tokens overlap; two races meet less often, within their bounds."""
    assert 0.9 == pytest.approx(overlap(P, Q))
    distance = 1.0 - overlap(P, Q)
    assert (1 - distance) / (1 + distance) <= match(P, Q) < 1 - distance
    assert 1.0 == pytest.approx(match(P, P))
    assert 0.0 == match([1.0, 0.0], [0.0, 1.0])


@pytest.mark.parametrize(
    ("case", "accepted", "holds"),
    [
        (ONE, 0.9, True),
        (ONE, 0.86, False),
        (ONE, 0.94, False),
        (Case("rejection-block", 1), 0.94, True),
        (Case("rejection-block", 1), 0.86, False),
        (Case("coupled", 1), match(P, Q), True),
        (Case("coupled", 1), 0.93, False),
    ],
)
def test_acceptance_is_judged_by_the_rule(case: Case, accepted: float, holds: bool) -> None:
    """Both ways under the token rule and the coupled one, from below under the block rule."""
    num_accepted = round(2000 * accepted)
    assert holds is judge(case, (P, Q), [generation([2000], [num_accepted])]).holds


def test_a_chain_counts_every_position() -> None:
    """0.9 + 0.81 of two draft tokens, whatever proposals were cut short at the end."""
    counts = [generation([1000, 900], [900, 729]), generation([1000, 1000], [900, 810])]
    finding = judge(Case("rejection-token", 2), (P, Q), counts)
    assert (8000, 2000, 4) == (finding.num_tokens, finding.num_rounds, finding.num_fallbacks)
    assert 0.9 + 0.81 == pytest.approx(finding.expected)
    assert 0.0 == pytest.approx(finding.sigmas, abs=1e-9)
    # N is 0, 1 or 2 with 0.1, 0.09 and 0.81.
    assert np.sqrt((0.09 + 4 * 0.81 - 1.71**2) / 2000) == pytest.approx(finding.sigma)


def test_nothing_drafted_proves_nothing() -> None:
    """The right law without one draft token does not hold."""
    assert not judge(ONE, (P, Q), [generation([], [])]).holds


def test_the_table_tells_what_does_not_hold() -> None:
    """Every case has its line."""
    assert 6 == len(cases())
    findings = [Finding(ONE, 10, p_value, 5, 0.9, 0.1, 0.9, 0) for p_value in (0.5, 1e-4)]
    assert ["yes", "NO"] == list(table_of(findings).columns[-1].cells)


def test_read_law(tmp_path: Path) -> None:
    """One law for every place, or a wrong use."""
    path = tmp_path / "table.json"
    path.write_text(json.dumps({"alphabet": "abc", "default": P}))
    assert P == read_law(path)
    path.write_text(json.dumps({"alphabet": "abc", "default": P, "suffixes": {"a": P}}))
    with pytest.raises(click.UsageError, match="other laws"):
        read_law(path)
