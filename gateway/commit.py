"""Commits a verdict: cuts ids, origins, log-probs, text and count together, and knows the stop.

The only place that cuts a generation. Stop is judged before length. It knows no streams, no tiers
and no tokenizer, only a function that decodes ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.stop_strings import StopStrings
from gateway.text import TextDecoder
from paceline.errors import InvalidArgument
from paceline.records import (
    FinishReason,
    Proposal,
    TokenLogProbs,
    TokenOrigin,
    Verdict,
    VerdictKind,
)

_ORIGINS = {
    VerdictKind.RECOVERED: TokenOrigin.RECOVERED,
    VerdictKind.BONUS: TokenOrigin.BONUS,
    VerdictKind.PLAIN: TokenOrigin.PLAIN,
}


@dataclass(frozen=True, slots=True)
class Ending:
    """What ends a generation."""

    max_tokens: int
    """Output tokens, counted from the end of the prompt."""
    stop_token_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()
    include_stop: bool = False


@dataclass(frozen=True, slots=True)
class Committed:
    """What one round added for good."""

    token_ids: tuple[int, ...]
    """The stop token or the token that completes a stop string is the last one."""
    origins: tuple[TokenOrigin, ...]
    text: str
    """The next piece; ids may run ahead of text that is held back."""
    finish_reason: FinishReason | None = None
    log_probs: tuple[TokenLogProbs, ...] = ()
    """One per id where asked for, else empty."""
    prompt_log_probs: tuple[TokenLogProbs, ...] = ()
    """One per id of the prompt but the first, once, where asked for."""


class Committer:
    """Owns the committed output of one generation."""

    def __init__(self, ending: Ending, decode: Callable[[Sequence[int]], str]) -> None:
        self._ending = ending
        self._decoder = TextDecoder(decode)
        self._stops = StopStrings(ending.stop_strings, include_stop=ending.include_stop)
        self.num_tokens = 0
        """Output tokens so far, those of an earlier attempt included."""

    def resume(self, token_ids: Sequence[int]) -> None:
        """Takes in the output of an earlier attempt, whose text is already out.

        Raises:
            InvalidArgument: that output had already ended.
        """
        _, _, finish_reason = self._take(token_ids)
        if finish_reason is not None:
            raise InvalidArgument(
                "committed_token_ids", f"had already ended with {finish_reason.name}"
            )

    def commit(self, proposal: Proposal, verdict: Verdict) -> Committed:
        """Adds what a proposal's verdict accepted, up to and including what ends the generation."""
        num_accepted = verdict.num_accepted
        token_ids = (*proposal.token_ids[:num_accepted], verdict.next_token_id)
        origins = (TokenOrigin.DRAFT,) * num_accepted + (_ORIGINS[verdict.kind],)
        num_taken, text, finish_reason = self._take(token_ids)
        return Committed(
            token_ids[:num_taken],
            origins[:num_taken],
            text,
            finish_reason,
            verdict.log_probs[:num_taken],
            verdict.prompt_log_probs,
        )

    def _take(self, token_ids: Sequence[int]) -> tuple[int, str, FinishReason | None]:
        """Number of ids taken, their text, and why the generation ends with them."""
        num_taken, finish_reason = self._cut(token_ids)
        shown = token_ids[: num_taken - (finish_reason is FinishReason.STOP)]
        # Only where a stop string may end inside of a block is it decoded token by token.
        size = 1 if self._ending.stop_strings else max(1, len(shown))
        text = ""
        for start in range(0, len(shown), size):
            piece, is_stopped = self._stops.feed(self._decoder.feed(shown[start : start + size]))
            text += piece
            if is_stopped:
                self.num_tokens += start + 1
                return start + 1, text, FinishReason.STOP
        self.num_tokens += num_taken
        return num_taken, text + self._flush() if finish_reason else text, finish_reason

    def _cut(self, token_ids: Sequence[int]) -> tuple[int, FinishReason | None]:
        """How many ids are taken if no stop string comes before, and what ends with the last."""
        room, stops = self._ending.max_tokens - self.num_tokens, self._ending.stop_token_ids
        for num_taken, token_id in enumerate(token_ids[:room], start=1):
            if token_id in stops:
                return num_taken, FinishReason.STOP
        if len(token_ids) >= room:
            return room, FinishReason.LENGTH
        return len(token_ids), None

    def _flush(self) -> str:
        return self._stops.feed(self._decoder.flush())[0] + self._stops.flush()
