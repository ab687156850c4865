"""Stop strings over a stream of text pieces, with hold-back.

The result is the one that characters fed one at a time would give, however the text is cut into
pieces: the match that ends first wins, and of two that end together the longer one. It knows no
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Passes text on, keeps back what may yet become a stop string, and cuts at the first one."""

    def __init__(self, stop_strings: Sequence[str], *, include_stop: bool = False) -> None:
        self._stop_strings = tuple(stop_strings)
        self._include_stop = include_stop
        self._longest = max(map(len, self._stop_strings), default=0)
        self._held = ""

    def feed(self, piece: str) -> tuple[str, bool]:
        """Takes the next piece.

        Returns:
            The text that may be shown now, and whether a stop string is complete. After a complete
            one nothing more may be fed.
        """
        if not self._stop_strings:
            return piece, False
        text = self._held + piece
        found = [(start + len(stop), start) for stop, start in self._starts(text)]
        if found:
            end, start = min(found)
            self._held = ""
            return text[: end if self._include_stop else start], True
        num_held = self._held_length(text)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held], False

    def flush(self) -> str:
        """The text still held back, when the generation ends for another cause."""
        held, self._held = self._held, ""
        return held

    def _starts(self, text: str) -> list[tuple[str, int]]:
        """Each stop string that occurs in `text`, with its first start."""
        return [(stop, text.find(stop)) for stop in self._stop_strings if stop in text]

    def _held_length(self, text: str) -> int:
        """Length of the longest suffix of `text` that begins some stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop_strings):
                return length
        return 0
