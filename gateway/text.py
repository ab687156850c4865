"""Token ids to text, piece by piece, such that the pieces add up to the text of all ids.

Decoding each id by itself is wrong twice over: a character may be split over several tokens, and
some tokenizers drop a leading space at the start of a text. So a short window of earlier ids is
decoded again with the new ones. It knows no tokenizer, only a function that decodes ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

_REPLACEMENT = "\ufffd"
# An unfinished UTF-8 sequence is at most three bytes, each shown as at most one mark.
_MAX_UNFINISHED = 3
_MAX_WINDOW = 16


class TextDecoder:
    """The text of a growing list of token ids."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._boundary = 0
        """Ids of the window up to the last place where the text was whole."""
        self._num_shown = 0
        """Characters of the window's text that are out."""

    def feed(self, token_ids: Sequence[int]) -> str:
        """The next piece of the text; marks of an unfinished character are held back."""
        self._window.extend(token_ids)
        text = self._decode(self._window)
        end = len(text)
        while end > max(0, len(text) - _MAX_UNFINISHED) and text[end - 1] == _REPLACEMENT:
            end -= 1
        piece = text[self._num_shown : end]
        if piece:
            self._num_shown = end
            if end == len(text):
                self._move_boundary()
        return piece

    def flush(self) -> str:
        """What is held back, as the tokenizer decodes it: an unfinished character stays a mark."""
        text = self._decode(self._window)
        piece = text[self._num_shown :]
        self._num_shown = len(text)
        return piece

    def _move_boundary(self) -> None:
        # The ids since the last boundary gave text of their own, so they are context enough.
        if len(self._window) > _MAX_WINDOW:
            del self._window[: self._boundary]
            self._num_shown = len(self._decode(self._window))
        self._boundary = len(self._window)
