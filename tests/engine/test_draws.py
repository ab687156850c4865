"""Draws are functions of their key and of nothing else."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from paceline.engine.draws import Draws, Role


def test_pinned_values() -> None:
    """The same bits on every machine and in every version: a seed is a promise."""
    draws = Draws(2**64 - 1)
    expected = [
        254320324533487319,
        11082990006625283442,
        1464973354402376955,
        12861537862360389325,
    ]
    assert expected == [draws.bits(1, 0, role) for role in Role]


def test_each_part_of_the_key_counts() -> None:
    """B04: seed, base length, position and role all change the bits; no two keys share them."""
    keys = itertools.product((0, 1, 2**63), (1, 2, 300, 70_000), (0, 1, 7, 300), Role)
    bits = [Draws(seed).bits(base, position, role) for seed, base, position, role in keys]
    assert len(bits) == len(set(bits))


def test_samples_share_no_draw() -> None:
    """B40: the index of a sample is part of the key, and index 0 is the seed's own."""
    keys = list(itertools.product((1, 2), (0, 1, 7), Role))
    bits = {
        Draws(seed, sample).bits(base, position, role)
        for seed, sample in itertools.product((0, 1, 2), range(8))
        for base, position, role in keys
    }
    assert 3 * 8 * len(keys) == len(bits)
    assert Draws(1).bits(2, 0, Role.ACCEPT) == Draws(1, 0).bits(2, 0, Role.ACCEPT)


def test_rounds_share_no_noise_at_one_position() -> None:
    """A position behind the last accepted token is drafted again: under other draws."""
    draws = Draws(5)
    by_round = [{draws.bits(base, 12 - base, role) for role in Role} for base in range(1, 13)]
    assert len(Role) * 12 == len(set().union(*by_round))


def test_order_and_number_of_calls_change_nothing() -> None:
    """B37: no state is left behind by a call."""
    draws = Draws(7)
    before = draws.bits(10, 2, Role.ACCEPT)
    for position in range(100):
        draws.bits(11, position, Role.NEXT)
    assert before == draws.bits(10, 2, Role.ACCEPT) == Draws(7).bits(10, 2, Role.ACCEPT)


def test_uniforms_are_uniform() -> None:
    """Mean, variance and correlation between roles and neighbours, each within 5 sigma."""
    draws, n = Draws(11), 4_000
    accept, following = (
        np.array([draws.uniform(base, position, role) for base in range(n)])
        for position, role in ((0, Role.ACCEPT), (0, Role.NEXT))
    )
    limit = 5.0 / np.sqrt(n)
    for sample in (accept, following):
        assert sample.mean() == pytest.approx(0.5, abs=limit * np.sqrt(1 / 12))
        assert sample.var() == pytest.approx(1 / 12, abs=limit * np.sqrt(1 / 180))
    assert abs(np.corrcoef(accept, following)[0, 1]) < limit
    assert abs(np.corrcoef(accept[1:], accept[:-1])[0, 1]) < limit


def test_uniform_has_53_bits_of_the_same_draw() -> None:
    """In [0, 1) also where all bits are ones: the top 53 bits, scaled, are never rounded up."""
    draws = Draws(1)
    for base in range(200):
        uniform = draws.uniform(base, 0, Role.NEXT)
        assert draws.bits(base, 0, Role.NEXT) >> 11 == uniform * 2**53
    assert (2**64 - 1 >> 11) * 2.0**-53 < 1.0
