"""The shared noise, the race on it, and what the coupled rule makes of a proposal."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from scipy import stats

from paceline.engine.coupling import NOISE_VERSION, Noise, exponentials, verify
from paceline.engine.draws import Draws, Role
from paceline.engine.law import Ids, Law
from paceline.records import VerdictKind

SOME_IDS = np.array([0, 1, 5, 49_151])


def law(*probabilities: float) -> Law:
    """A law over 0 .. n-1."""
    return Law(np.arange(len(probabilities)), np.array(probabilities))


def ids(*token_ids: int) -> Ids:
    """Token ids."""
    return np.array(token_ids, dtype=np.int64)


# Noise -------------------------------------------------------------------------------------------


def test_pinned_values() -> None:
    """The same bits on every machine: changing them changes what every seed gives.

    Whoever does raises NOISE_VERSION.
    """
    assert 1 == NOISE_VERSION
    first, second = Noise(2**64 - 1, 0).bits(1, SOME_IDS), Noise(0, 3).bits(70_000, SOME_IDS)
    assert [
        262223166652293584,
        11512110262717800409,
        10041949745738813318,
        208889509394326106,
    ] == first.tolist()
    assert [
        3814809973465178587,
        17377795703578403467,
        8995982841515705756,
        17520248537731717117,
    ] == second.tolist()
    assert [
        1.575996994972229,
        0.059694599360227585,
        0.7181097269058228,
        0.051530610769987106,
    ] == exponentials(second).tolist()


def test_bits_are_splitmix() -> None:
    """By the generator's own definition, in Python's integers, from the state at a position."""
    token_ids = [0, 1, 7, 2**31]
    mask = 2**64 - 1
    first, *rest = (int(bits) for bits in Noise(3, 2).bits(11, ids(*token_ids)))
    state = _unmix(first) - 0x9E3779B97F4A7C15
    for token_id, bits in zip(token_ids[1:], rest, strict=True):
        z = (state + (token_id + 1) * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        assert z ^ (z >> 31) == bits


def _unmix(z: int) -> int:
    """The state behind an output: each step of the mix, backwards."""
    for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)):
        undone = z
        for _ in range(64 // shift):
            undone = z ^ (undone >> shift)
        z = undone * pow(factor, -1, 2**64) % 2**64
    return z


def test_each_part_of_the_key_counts() -> None:
    """Seed, sample index, position and id all change the bits; no two keys share them."""
    keys = itertools.product((0, 1, 2**64 - 1), (0, 1, 7), (0, 1, 300, 70_000))
    token_ids = np.arange(1000)
    bits = [Noise(seed, sample).bits(position, token_ids) for seed, sample, position in keys]
    assert 3 * 3 * 4 * 1000 == len(np.unique(np.concatenate(bits)))


def test_noise_belongs_to_ids_and_not_to_places() -> None:
    """A truncated support sees the same noise as the whole vocabulary, in any order."""
    noise, whole = Noise(5, 0), np.arange(50_000)
    for chosen in (SOME_IDS, SOME_IDS[::-1], ids(1), whole[::7]):
        assert (noise.bits(9, whole)[chosen] == noise.bits(9, chosen)).all()


def test_order_and_number_of_calls_change_nothing() -> None:
    """B37: no state is left behind by a call, and both tiers see the same."""
    noise = Noise(7, 1)
    before = noise.bits(10, SOME_IDS)
    for position in range(100):
        noise.bits(position, SOME_IDS)
    assert (before == noise.bits(10, SOME_IDS)).all()
    assert (before == Noise(7, 1).bits(10, SOME_IDS)).all()


def test_the_rejection_rules_have_other_noise() -> None:
    """B04: no draw of the rejection rules is keyed into the noise of the coupled one."""
    draws, noise = Draws(7), Noise(7, 0)
    drawn = {draws.bits(a, b, role) for a in range(40) for b in range(40) for role in Role}
    shared = {int(bits) for position in range(80) for bits in noise.bits(position, np.arange(40))}
    assert set() == drawn & shared


@pytest.mark.parametrize("along", ["ids", "positions", "seeds", "samples"])
def test_noise_is_uniform_and_independent(along: str) -> None:
    """Kolmogorov-Smirnov, neighbours' correlation and every bit, along each part of the key."""
    n = 20_000
    one = ids(17)
    match along:
        case "ids":
            bits = Noise(1, 0).bits(40, np.arange(n))
        case "positions":
            bits = np.concatenate([Noise(1, 0).bits(i, one) for i in range(n)])
        case "seeds":
            bits = np.concatenate([Noise(i, 0).bits(40, one) for i in range(n)])
        case _:
            bits = np.concatenate([Noise(1, i).bits(40, one) for i in range(n)])
    uniforms = bits.astype(np.float64) / 2.0**64
    assert stats.kstest(uniforms, "uniform").pvalue > 1e-3
    for lag in (1, 2, 64):
        assert abs(np.corrcoef(uniforms[lag:], uniforms[:-lag])[0, 1]) < 5.0 / np.sqrt(n)
    shares = [((bits >> np.uint64(place)) & np.uint64(1)).mean() for place in range(64)]
    assert max(abs(share - 0.5) for share in shares) < 5.0 / (2.0 * np.sqrt(n))


def test_neighbouring_positions_and_ids_together() -> None:
    """A table of positions by ids: pairs along either side fill a grid of 16 x 16 evenly."""
    noise = Noise(3, 0)
    cells = np.array([noise.bits(i, np.arange(300)) >> np.uint64(60) for i in range(300)])
    for before, after in ((cells[:-1], cells[1:]), (cells[:, :-1], cells[:, 1:])):
        counts = np.zeros((16, 16))
        np.add.at(counts, (before.ravel(), after.ravel()), 1)
        assert stats.chisquare(counts.ravel()).pvalue > 1e-3


def test_exponentials_at_the_ends() -> None:
    """Midpoints of 2**52 cells: never 0, never infinite, and float32 to the last bit."""
    bits = np.array([0, 2**12 - 1, 2**63, 2**64 - 1], dtype=np.uint64)
    expected = [53 * np.log(2.0), 53 * np.log(2.0), np.log(2.0), 2.0**-53]
    found = exponentials(bits)
    assert [float(np.float32(e)) for e in expected] == pytest.approx(found.tolist(), rel=1e-7)
    assert (found == found.astype(np.float32)).all()
    assert found.min() > 0.0


# The race ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["peaked", "flat", "equal", "few", "one"])
def test_only_losers_are_spared_a_logarithm(shape: str) -> None:
    """The winner of the whole race, to the last bit, whether it is likely or one of thousands."""
    generator, size = np.random.default_rng(6), 20_000
    for position in range(30):
        noise = Noise(11, 0)
        logits = generator.standard_normal(size) * {"peaked": 6.0, "flat": 0.1}.get(shape, 0.0)
        weights = np.exp(logits)
        if shape == "few":
            weights[generator.permutation(size)[3:]] = 0.0
        if shape == "one":
            weights[generator.permutation(size)[1:]] = 0.0
        whole = Law(np.arange(size), weights / weights.sum())
        expected = whole.race(exponentials(noise.bits(position, whole.token_ids)))
        assert expected == noise.draw(whole, position)


def test_an_unlikely_token_with_the_least_noise_wins() -> None:
    """One id of thousands, under a millionth as likely as another, when its noise is that small."""
    size, position = 20_000, 3
    noise = Noise(2, 0)
    running = exponentials(noise.bits(position, np.arange(size)))
    least, likeliest = int(running.argmin()), int(running.argmax())
    probabilities = np.zeros(size)
    probabilities[likeliest] = 1.0
    for share, winner in ((1.0 + 1e-9, least), (1.0 - 1e-9, likeliest)):
        probabilities[least] = share * running[least] / running[likeliest]
        assert winner == noise.draw(Law(np.arange(size), probabilities), position)


def test_winners_follow_the_law() -> None:
    """The emitted token is p's: one chi-square over seeds, one over positions."""
    p = law(0.5, 0.25, 0.15, 0.07, 0.03)
    n = 20_000
    expected = p.probabilities * n
    for tokens in (
        [Noise(seed, 0).draw(p, 30) for seed in range(n)],
        [Noise(4, 0).draw(p, position) for position in range(n)],
        [Noise(4, sample).draw(p, 30) for sample in range(n)],
    ):
        assert stats.chisquare(np.bincount(tokens, minlength=5), expected).pvalue > 1e-3


def test_flat_law_over_a_vocabulary() -> None:
    """An untruncated law: thirds of 50,000 equal tokens win alike."""
    size, n = 49_152, 1500
    flat = Law(np.arange(size), np.full(size, 1.0 / size))
    thirds = np.array([Noise(seed, 0).draw(flat, 3) for seed in range(n)]) * 3 // size
    assert stats.chisquare(np.bincount(thirds, minlength=3)).pvalue > 1e-3


def test_race_over_every_pair_of_uniforms() -> None:
    """No sampling: over a grid of all pairs of midpoints the share of wins is p, to the grid."""
    p, cells = 0.3, 1500
    grid = exponentials(((np.arange(cells) * 2 + 1) * (2**63 // cells)).astype(np.uint64))
    wins = (grid[:, None] / p < grid[None, :] / (1.0 - p)).mean()
    assert wins == pytest.approx(p, abs=1.0 / cells)


@pytest.mark.parametrize(
    ("p", "q"),
    [
        ((0.5, 0.3, 0.2), (0.4, 0.4, 0.2)),
        ((0.15, 0.55, 0.30), (0.35, 0.25, 0.40)),
        ((0.6, 0.3, 0.1, 0.0), (0.0, 0.3, 0.3, 0.4)),
        ((0.25, 0.25, 0.25, 0.25), (0.25, 0.25, 0.25, 0.25)),
    ],
)
def test_match_probability(p: tuple[float, ...], q: tuple[float, ...]) -> None:
    """Both races win at v with 1 / sum_w max(p_w / p_v, q_w / q_v): between (1-d)/(1+d) and 1-d.

    d is the total variation distance. The draft's law is on fewer ids where q is 0.
    """
    n, kept = 8000, np.flatnonzero(q)
    draft = Law(kept, np.array(q)[kept])
    seeds = [Noise(seed, 0) for seed in range(n)]
    matched = np.mean([noise.draw(law(*p), 9) == noise.draw(draft, 9) for noise in seeds])
    exact = sum(
        1.0 / sum(max(p[w] / p[v], q[w] / q[v]) for w in range(len(p)))
        for v in range(len(p))
        if p[v] > 0.0 and q[v] > 0.0
    )
    distance = 1.0 - sum(map(min, p, q))
    assert matched == pytest.approx(exact, abs=4.0 * np.sqrt(exact * (1.0 - exact) / n) + 1e-12)
    assert (1.0 - distance) / (1.0 + distance) <= exact + 1e-12
    assert exact <= 1.0 - distance + 1e-12


# Verification ------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [0, 1, 3, 6])
def test_what_is_emitted_is_the_targets_own_draw(k: int) -> None:
    """Whatever is drafted: accepted while equal, recovered at the first difference, then bonus."""
    rows = [law(0.4, 0.3, 0.3)] * (k + 1)
    noise = Noise(6, 0)
    own = [noise.draw(rows[i], 20 + i) for i in range(k + 1)]
    for num_right in range(k + 1):
        drafted = [*own[:num_right], *((token + 1) % 3 for token in own[num_right:k])]
        outcome = verify(rows, drafted, noise, 20)
        assert (num_right, own[num_right]) == (outcome.num_accepted, outcome.next_token_id)
        expected = VerdictKind.PLAIN if not k else VerdictKind.BONUS
        assert (expected if num_right == k else VerdictKind.RECOVERED) is outcome.kind


def test_rows_behind_a_difference_are_never_read() -> None:
    """A row without a law behind an impossible token feeds nothing."""
    outcome = verify([Law.point(2), Law.void(), Law.void()], [1, 0], Noise(0, 0), 5)
    assert (0, 2, VerdictKind.RECOVERED) == (
        outcome.num_accepted,
        outcome.next_token_id,
        outcome.kind,
    )
    with pytest.raises(RuntimeError, match="without a law"):
        verify([Law.void()], [], Noise(0, 0), 5)


def test_temperature_0_is_argmax() -> None:
    """A point law has one runner: no noise can change it."""
    assert {9} == {Noise(seed, 0).draw(Law.point(9), seed) for seed in range(50)}


def test_the_round_does_not_matter() -> None:
    """One text, cut into rounds in every way, with drafts right and wrong: the same tokens."""
    rows, noise = [law(0.3, 0.3, 0.2, 0.2)] * 9, Noise(12, 3)
    whole = [noise.draw(rows[0], 1 + i) for i in range(8)]
    for k, drafted in itertools.product(range(5), (0, 1, 2, 3)):
        text: list[Any] = []
        while len(text) < 8:
            chain = [drafted] * k
            outcome = verify(rows[: k + 1], chain, noise, 1 + len(text))
            text += [*chain[: outcome.num_accepted], outcome.next_token_id]
        assert whole == text[:8]
