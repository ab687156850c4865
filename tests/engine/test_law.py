"""Laws, integer laws, and both on the wire."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from paceline.engine.law import IntegerLaw, Law, decode_laws, encode_sparse, truncate
from paceline.errors import InvalidArgument
from paceline.records import LawEncoding, Proposal

VOCABULARY_SIZE = 100


def law(token_ids: list[int], probabilities: list[float]) -> Law:
    """A law from lists."""
    return Law(np.array(token_ids), np.array(probabilities))


def integer_law(token_ids: list[int], weights: list[int]) -> IntegerLaw:
    """An integer law from lists."""
    return IntegerLaw(np.array(token_ids), np.array(weights))


def proposal(token_ids: tuple[int, ...], encoding: LawEncoding, data: bytes = b"") -> Proposal:
    """A first proposal."""
    return Proposal(1, 1, token_ids, encoding, data)


def words(*values: int) -> bytes:
    """Little-endian uint32."""
    return struct.pack(f"<{len(values)}I", *values)


@pytest.mark.parametrize(
    ("size", "ids", "probabilities"),
    [(10, [3, 5, 9], [0.2, 0.2, 0.6]), (9, [3, 5], [0.5, 0.5]), (5, [3], [1.0])],
)
def test_below(size: int, ids: list[int], probabilities: list[float]) -> None:
    """B44: the law given that the id is one of the first ones."""
    below = law([3, 5, 9], [0.2, 0.2, 0.6]).below(size)
    assert (ids, probabilities) == (below.token_ids.tolist(), below.probabilities.tolist())


def test_nothing_below() -> None:
    """Void with its reason where no mass is left; a law that is void keeps its own reason."""
    for some in (law([3, 5], [0.0, 1.0]), law([5], [1.0])):
        assert isinstance(some.below(4).error, RuntimeError)
    error = InvalidArgument("x", "y")
    assert error is Law.void(error).below(4).error


def test_probability_is_0_off_the_support() -> None:
    """Under, between and over the named ids; named ids give their own."""
    some = law([3, 5, 9], [0.2, 0.0, 0.8])
    assert [0.0, 0.2, 0.0, 0.0, 0.8, 0.0] == [some.probability(i) for i in (0, 3, 4, 5, 9, 10)]


def test_locate_says_what_is_there() -> None:
    """Places are usable as indices also where nothing was found."""
    places, found = law([3, 5, 9], [0.2, 0.3, 0.5]).locate(np.array([0, 5, 9, 99]))
    assert [False, True, True, False] == found.tolist()
    assert [1, 2] == places[found].tolist()
    assert places.max() < 3


def test_draw_is_the_inverse_distribution_function() -> None:
    """Each token gets an interval [start, end) of its own probability's length."""
    some = law([2, 4, 7], [0.25, 0.5, 0.25])
    uniforms = (0.0, 0.2499, 0.25, 0.7499, 0.75, 1.0 - 2.0**-53)
    assert [2, 2, 4, 4, 7, 7] == [some.draw(uniform) for uniform in uniforms]


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1.0 - 2.0**-53])
@pytest.mark.parametrize("scale", [1.0, 1.0 - 1e-9, 1.0 + 1e-9])
def test_draw_never_gives_probability_0(uniform: float, scale: float) -> None:
    """B05: zeros at both ends and in the middle, also where the sum is off 1 by rounding."""
    some = law([0, 1, 2, 3, 4], [0.0, 0.5 * scale, 0.0, 0.5 * scale, 0.0])
    assert some.draw(uniform) in (1, 3)


def test_point_mass() -> None:
    """All of the mass on one id."""
    point = Law.point(7)
    assert (1.0, 0.0, 7) == (point.probability(7), point.probability(6), point.draw(0.99))


@pytest.mark.parametrize(
    "read",
    [
        lambda void: void.probability(0),
        lambda void: void.draw(0.5),
        lambda void: void.locate(np.array([0])),
    ],
)
def test_reading_a_void_law_is_our_bug(read: object) -> None:
    """A row of NaN or -inf may exist where nobody reads; reading it is an error."""
    assert callable(read)
    with pytest.raises(RuntimeError, match="row without a law"):
        read(Law.void())


def test_truncate_keeps_the_likeliest_that_hold_the_mass() -> None:
    """0.5 + 0.25 reach 0.7; weights are integers over exactly the total; ids ascend."""
    cut = truncate(law([1, 2, 3, 4], [0.125, 0.25, 0.125, 0.5]), mass=0.7, total=3 * 2**8)
    assert [2, 4] == cut.token_ids.tolist()
    assert [256, 512] == cut.weights.tolist()


def test_truncate_keeps_at_most_max_ids_lowest_of_equals() -> None:
    """A flat law of 1,024 ids: the first 64, in equal weights."""
    cut = truncate(law(list(range(1_024)), [2.0**-10] * 1_024))
    assert list(range(64)) == cut.token_ids.tolist()
    assert [2**24] * 64 == cut.weights.tolist()


def test_truncate_drops_zeros_and_gives_the_rest_to_the_likeliest() -> None:
    """A weight that rounds to 0 is no id; the sum stays the power of 2 that makes draws exact."""
    cut = truncate(law([0, 1, 2, 3], [1e-15, 1 / 3, 0.0, 2 / 3 - 1e-15]), mass=1.0)
    assert [1, 3] == cut.token_ids.tolist()
    assert 2**30 == cut.weights.sum()
    assert 2**30 // 3 == cut.weights[0]


@pytest.mark.parametrize("seed", range(5))
def test_truncate_is_close_to_the_law_it_cuts(seed: int) -> None:
    """Each kept id has its renormalised share to one part in 2**24."""
    generator = np.random.default_rng(seed)
    whole = Law(np.arange(500), generator.dirichlet(np.full(500, 0.02)))
    cut = truncate(whole)
    shares = whole.probabilities[cut.token_ids]
    assert len(cut.token_ids) <= 64
    assert cut.as_law().probabilities == pytest.approx(shares / shares.sum(), abs=2.0**-24)
    assert np.delete(whole.probabilities, cut.token_ids).max() <= shares.min() + 2.0**-29


def test_integer_draw_is_exact() -> None:
    """Each token owns exactly weight / total of the 2**64 points, its first and last included."""
    some = integer_law([5, 6, 8], [1, 2**30 - 3, 2])
    step = 2**34
    bits = (0, step - 1, step, (2**30 - 2) * step - 1, (2**30 - 2) * step, 2**64 - 1)
    assert [5, 5, 6, 6, 8, 8] == [some.draw(point) for point in bits]


def test_integer_draw_uses_all_64_bits() -> None:
    """A total that is no power of 2 is off by one point of 2**64 at most."""
    some = integer_law([5, 6], [1, 2])
    assert [5, 6] == [some.draw(2**64 // 3), some.draw(2**64 // 3 + 1)]


def test_sparse_bytes_are_as_documented() -> None:
    """Per token count, ids, weights, little-endian uint32, nothing between."""
    laws = [integer_law([3, 7], [1, 2**30 - 1]), integer_law([9], [4])]
    assert words(2, 3, 7, 1, 2**30 - 1, 1, 9, 4) == encode_sparse(laws)
    assert b"" == encode_sparse([])


def test_sparse_round_trip_is_bit_for_bit() -> None:
    """What the verify tier reads is what the draft drew from."""
    generator = np.random.default_rng(3)
    laws = [truncate(Law(np.arange(100), generator.dirichlet(np.ones(100)))) for _ in range(4)]
    tokens = tuple(int(one.token_ids[0]) for one in laws)
    decoded = decode_laws(
        proposal(tokens, LawEncoding.SPARSE, encode_sparse(laws)), VOCABULARY_SIZE
    )
    for sent, got in zip(laws, decoded, strict=True):
        assert sent.token_ids.tolist() == got.token_ids.tolist()
        assert sent.as_law().probabilities.tolist() == got.probabilities.tolist()


def test_sparse_ids_may_come_in_any_order() -> None:
    """Ids need only be distinct on the wire; weights follow their ids."""
    data = words(3, 9, 2, 5, 1, 2, 1)
    (decoded,) = decode_laws(proposal((9,), LawEncoding.SPARSE, data), VOCABULARY_SIZE)
    assert [2, 5, 9] == decoded.token_ids.tolist()
    assert [0.5, 0.25, 0.25] == decoded.probabilities.tolist()


def test_dense_round_trip_is_normalised_in_float64() -> None:
    """Rows over the whole vocabulary, in order, each summing to 1."""
    rows = np.array([[1.0, 2.0, 1.0], [0.0, 0.1, 0.3]], dtype="<f4")
    decoded = decode_laws(proposal((0, 2), LawEncoding.DENSE, rows.tobytes()), 3)
    assert [0.25, 0.5, 0.25] == decoded[0].probabilities.tolist()
    assert 1.0 == decoded[1].probabilities.sum()
    assert [0, 1, 2] == decoded[1].token_ids.tolist()


def test_point_masses_are_the_tokens() -> None:
    """No bytes: each token is certain."""
    decoded = decode_laws(proposal((4, 2), LawEncoding.POINT_MASS), VOCABULARY_SIZE)
    assert [(4, 1.0), (2, 1.0)] == [
        (one.draw(0.5), one.probability(one.draw(0.5))) for one in decoded
    ]


@pytest.mark.parametrize(
    "encoding", [LawEncoding.POINT_MASS, LawEncoding.SPARSE, LawEncoding.DENSE]
)
def test_no_tokens_no_laws(encoding: LawEncoding) -> None:
    """An empty proposal is plain decoding however its law is said to be written."""
    assert [] == decode_laws(proposal((), encoding), VOCABULARY_SIZE)
    with pytest.raises(InvalidArgument):
        decode_laws(proposal((), encoding, words(1, 2, 3)), VOCABULARY_SIZE)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "ends within draft token 0"),
        (b"\x01\x00\x00", "no whole number"),
        (words(0), "has no ids"),
        (words(2, 3, 4, 1), "ends within draft token 0"),
        (words(2**32 - 1, 3, 1), "ends within draft token 0"),
        (words(1, 3, 1, 1), "4 bytes follow"),
        (words(1, 100, 1), "not in the vocabulary"),
        (words(2, 3, 2**32 - 1, 1, 1), "not in the vocabulary"),
        (words(2, 3, 3, 1, 1), "not distinct"),
        (words(2, 3, 4, 0, 0), "sum to 0"),
        (words(1, 4, 1), "no probability"),
        (words(2, 3, 4, 0, 1), "no probability"),
    ],
)
def test_malformed_sparse_law_is_refused_by_name(data: bytes, says: str) -> None:
    """B01: never a silent fallback to another law; the field is named."""
    with pytest.raises(InvalidArgument, match=says) as caught:
        decode_laws(proposal((3,), LawEncoding.SPARSE, data), VOCABULARY_SIZE)
    assert "proposal.law" == caught.value.field


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ([0.5, 0.5], "has 8 bytes, not 12"),
        ([0.5, 0.5, 0.0, 0.0], "has 16 bytes, not 12"),
        ([0.5, float("nan"), 0.5], "not finite"),
        ([0.5, float("inf"), 0.5], "not finite"),
        ([1.5, -0.5, 0.0], "negative"),
        ([0.0, 0.0, 0.0], "sums to 0"),
        ([0.0, 0.5, 0.5], "no probability"),
    ],
)
def test_malformed_dense_law_is_refused_by_name(row: list[float], says: str) -> None:
    """Short, long, not a law, or not the law that the token was drawn from."""
    data = np.array(row, dtype="<f4").tobytes()
    with pytest.raises(InvalidArgument, match=says) as caught:
        decode_laws(proposal((0,), LawEncoding.DENSE, data), 3)
    assert "proposal.law" == caught.value.field


def test_point_mass_with_bytes_is_refused() -> None:
    """Bytes that would be ignored are a mistake of the sender."""
    with pytest.raises(InvalidArgument, match="must be empty") as caught:
        decode_laws(proposal((3,), LawEncoding.POINT_MASS, words(1, 3, 1)), VOCABULARY_SIZE)
    assert "proposal.law" == caught.value.field


def test_shared_noise_has_no_law() -> None:
    """What was drawn from shared noise cannot be verified by rejection: named, never silent."""
    with pytest.raises(InvalidArgument, match="the coupled rule alone") as caught:
        decode_laws(proposal((3,), LawEncoding.SHARED_NOISE), VOCABULARY_SIZE)
    assert "proposal.law" == caught.value.field


def test_race_is_won_by_the_least_noise_per_probability() -> None:
    """Here 2/0.5 = 4, 1/0.2 = 5 and 1/0.3 = 3.3; noise alone would give id 4."""
    law = Law(np.array([2, 4, 7]), np.array([0.5, 0.2, 0.3]))
    assert 7 == law.race(np.array([2.0, 1.0, 1.0]))
    assert 2 == law.race(np.array([1.6, 1.0, 1.0]))


def test_race_ties_go_to_the_lowest_id() -> None:
    """B14: equals are told apart by id, on both tiers alike."""
    assert 3 == Law(np.array([3, 8]), np.array([0.5, 0.5])).race(np.array([1.0, 1.0]))


def test_race_is_never_won_without_probability() -> None:
    """However little its noise, a token of probability 0 stands still; so does a void law."""
    law = Law(np.array([3, 8, 9]), np.array([0.0, 1.0, 5e-324]))
    assert 8 == law.race(np.array([1e-16, 36.0, 1e-16]))
    with pytest.raises(RuntimeError, match="without a law"):
        Law.void().race(np.empty(0))
