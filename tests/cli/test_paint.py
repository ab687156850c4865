"""Colours by origin: exact to the character, whatever is held back."""

from __future__ import annotations

from collections.abc import Sequence

import click
import pytest

from paceline.cli.paint import DRAFT_COLOUR, OWN_COLOUR, Painter
from paceline.v1 import gateway_pb2

ACCEPTED, OWN = gateway_pb2.TOKEN_ORIGIN_DRAFT, gateway_pb2.TOKEN_ORIGIN_BONUS


def _draft(text: str) -> str:
    return click.style(text, fg=DRAFT_COLOUR)


def _own(text: str) -> str:
    return click.style(text, fg=OWN_COLOUR)


async def _decode_bytes(token_ids: Sequence[int]) -> str:
    """A tokenizer of single bytes."""
    return bytes(token_ids).decode(errors="replace")


def _event(token_ids: bytes, num_accepted: int, text: str) -> gateway_pb2.Tokens:
    origins = [ACCEPTED] * num_accepted + [OWN] * (len(token_ids) - num_accepted)
    return gateway_pb2.Tokens(token_ids=token_ids, origins=origins, text=text)


@pytest.fixture
def painter() -> Painter:
    """A painter over bytes."""
    return Painter(_decode_bytes)


async def test_each_token_has_its_colour(painter: Painter) -> None:
    """Accepted draft tokens and the one after them are told apart, round after round."""
    assert _draft("ab") + _own("c") == await painter.paint(_event(b"abc", 2, "abc"))
    assert _own("d") == await painter.paint(_event(b"d", 0, "d"))
    assert _draft("e") + _own("f") == await painter.paint(_event(b"ef", 1, "ef"))


async def test_text_held_back_keeps_its_colour(painter: Painter) -> None:
    """Text that comes an event later is painted by the tokens it is made of."""
    assert _draft("a") == await painter.paint(_event(b"abc", 2, "a"))
    painted = await painter.paint(_event(b"de", 1, "bcde"))
    assert _draft("b") + _own("c") + _draft("d") + _own("e") == painted


async def test_split_character_belongs_to_the_token_that_completes_it(painter: Painter) -> None:
    """A character of several tokens is painted once, whole."""
    euro = "€".encode()
    assert _draft("a") == await painter.paint(_event(b"a" + euro[:2], 2, "a"))
    assert _own("€") == await painter.paint(_event(euro[2:], 0, "€"))


async def test_nothing_is_lost(painter: Painter) -> None:
    """Without the colours the pieces are the text, also where a stop cut it."""
    pieces = [
        await painter.paint(_event(b"hello ", 4, "hello ")),
        await painter.paint(_event(b"world", 3, "wor")),
    ]
    assert "hello wor" == click.unstyle("".join(pieces))
