"""Stop strings: the cut is the same however the text arrives, and nothing shows too early."""

from __future__ import annotations

import random

import pytest

from gateway.stop_strings import StopStrings

TEXT = "abcSTOPxyz0123456789"


def feed(stops: list[str], pieces: list[str], *, include_stop: bool = False) -> tuple[str, bool]:
    """What is shown of pieces, and whether a stop string ended it."""
    matcher = StopStrings(stops, include_stop=include_stop)
    shown = ""
    for piece in pieces:
        text, is_stopped = matcher.feed(piece)
        shown += text
        if is_stopped:
            return shown, True
    return shown + matcher.flush(), False


def cut(text: str, sizes: list[int]) -> list[str]:
    """`text` in pieces of these sizes, the last one open."""
    pieces = []
    for size in sizes:
        pieces.append(text[:size])
        text = text[size:]
    return [*pieces, text]


def test_a_stop_inside_a_long_piece() -> None:
    """B21: a stop string that ends early in a long piece is found, and nothing after it shows."""
    assert ("abc", True) == feed(["STOP"], [TEXT])


def test_the_stop_string_can_stay() -> None:
    """B21: with include_stop the text ends after it."""
    assert ("abcSTOP", True) == feed(["STOP"], [TEXT], include_stop=True)


@pytest.mark.parametrize("offset", range(len(TEXT)))
@pytest.mark.parametrize("stops", [["STOP"], ["O"], ["OPx"], ["TOPx", "STO"], ["zz", "9"]])
def test_every_split_gives_the_same(stops: list[str], offset: int) -> None:
    """B22: a stop across two pieces is found as in one, for every split and overlapping stops."""
    expected = feed(stops, list(TEXT))
    assert expected == feed(stops, [TEXT[:offset], TEXT[offset:]])


@pytest.mark.parametrize("include_stop", [False, True])
def test_random_pieces_give_what_single_characters_give(include_stop: bool) -> None:
    """B22: over a small alphabet, where stops overlap with themselves and each other."""
    draws = random.Random(0)
    num_stopped = 0
    for _ in range(500):
        text = "".join(draws.choices("ab", k=12))
        stops = ["".join(draws.choices("ab", k=draws.randint(2, 5))) for _ in range(2)]
        expected = feed(stops, list(text), include_stop=include_stop)
        pieces = cut(text, draws.choices(range(5), k=4))
        assert expected == feed(stops, pieces, include_stop=include_stop)
        num_stopped += expected[1]
    assert 0 < num_stopped < 500


def test_nothing_of_a_stop_shows_before_it_is_complete() -> None:
    """B22: characters that may begin a stop string are held back."""
    matcher = StopStrings(["STOP"])
    assert [("ab", False), ("", False), ("", False), ("", True)] == [
        matcher.feed(piece) for piece in ("abS", "T", "O", "P")
    ]


def test_what_turns_out_not_to_stop_is_shown() -> None:
    """Held text comes out as soon as it cannot become a stop any more, and at the end."""
    matcher = StopStrings(["STOP"])
    assert [("", False), ("STA", False), ("", False)] == [matcher.feed(p) for p in ("ST", "A", "S")]
    assert "S" == matcher.flush()
    assert "" == matcher.flush()


def test_without_stop_strings_text_passes() -> None:
    """Nothing is held back for nothing."""
    assert ("anything", False) == StopStrings([]).feed("anything")
