"""Streamed text with accepted draft tokens told apart from the target's own.

The gateway streams one piece of text per round, held back where a character or a stop string is not
complete; so which characters are whose is asked of it: `Detokenize` of the ids up to where the
origin changes ends where the text of those ids ends. A character made of tokens of both origins
counts as the one that completed it. Knows no tokenizer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby

import click

from paceline.v1 import gateway_pb2

Detokenize = Callable[[Sequence[int]], Awaitable[str]]
DRAFT_COLOUR, OWN_COLOUR = "green", "yellow"
LEGEND = (
    f"{click.style('■', fg=DRAFT_COLOUR)} drafted and accepted   "
    f"{click.style('■', fg=OWN_COLOUR)} the target's own"
)
# What decoding gives for bytes that do not make a character yet.
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


class Painter:
    """Owns how far the text of one generation was painted."""

    def __init__(self, detokenize: Detokenize) -> None:
        self._detokenize = detokenize
        self._token_ids: list[int] = []
        self._num_painted = 0
        self._runs: list[tuple[int, bool]] = []
        """(end in characters, is draft) of the runs that are not painted in full yet."""

    async def paint(self, tokens: gateway_pb2.Tokens) -> str:
        """The event's text with colour codes."""
        pairs = zip(tokens.origins, tokens.token_ids, strict=True)
        for is_draft, run in groupby(pairs, key=lambda pair: _is_draft(pair[0])):
            self._token_ids += [token_id for _, token_id in run]
            decoded = await self._detokenize(self._token_ids)
            self._runs.append((len(decoded.rstrip(_INCOMPLETE)), is_draft))
        return "".join(self._pieces(tokens.text))

    def _pieces(self, text: str) -> list[str]:
        """Cuts `text` at the ends of the runs; what no run covers is the target's own."""
        pieces = []
        while text:
            while self._runs and self._runs[0][0] <= self._num_painted:
                self._runs.pop(0)
            end, is_draft = self._runs[0] if self._runs else (self._num_painted + len(text), False)
            piece, text = text[: end - self._num_painted], text[end - self._num_painted :]
            self._num_painted += len(piece)
            pieces.append(click.style(piece, fg=DRAFT_COLOUR if is_draft else OWN_COLOUR))
        return pieces


def _is_draft(origin: int) -> bool:
    return origin == gateway_pb2.TOKEN_ORIGIN_DRAFT
