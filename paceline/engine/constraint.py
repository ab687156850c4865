"""The form that an output must take: which tokens may come next, and which one must.

`Grammars` turns the text of a constraint into a matcher, once per session; a `Matcher` stands
behind the tokens that were committed and answers for every row of a step. The grammar library is
known here alone. It knows no logits and no law.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import zipfile
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper, grammar_from

from paceline.errors import InvalidArgument
from paceline.records import Constraint, ConstraintKind, ModelIdentity, SessionSpec

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions  # exists in the stub alone

Mask = npt.NDArray[np.bool_]

LIBRARY_VERSION = importlib.metadata.version("llguidance")
"""Of the grammar library: another one may allow other tokens, or write JSON in another style."""

_FIELD = "session.sampling.constraint"
# As most models write JSON: free whitespace would let them fill lines with it for ever, and a
# form without freedom can be guessed. A schema's own "x-guidance" comes before this.
_JSON_STYLE: JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}


class Grammars:
    """Makes matchers for one model's tokens."""

    def __init__(self, tokenizer_archive: bytes, identity: ModelIdentity) -> None:
        """Reads the tokenizer; one that the library cannot read is told of when it is needed."""
        self.vocabulary_size = identity.vocabulary_size
        self._tokenizer: LLTokenizer | None = None
        self._fault = ""
        try:
            self._tokenizer = _read_tokenizer(tokenizer_archive, identity)
        except ValueError as error:
            self._fault = str(error)

    def matcher(self, spec: SessionSpec) -> Matcher | None:
        """Returns a matcher behind the session's output so far; None without a constraint.

        Raises:
            InvalidArgument: The constraint is malformed, no text can meet it, or the output so far
                does not; or nothing could ever end the generation.
        """
        constraint, stops = spec.sampling.constraint, spec.sampling.stop_token_ids
        if constraint is None:
            return None
        if self._tokenizer is None:
            raise InvalidArgument(
                _FIELD,
                f"this tokenizer is not served: {self._fault}",
                reason="UNSUPPORTED_PARAMETER",
            )
        if not stops:
            raise InvalidArgument(_FIELD, "needs a stop token to end with, and there is none")
        state = LLMatcher(self._tokenizer, _grammar(constraint), log_level=0)
        if state.is_error():
            raise _refusal(constraint, state.get_error())
        matcher = Matcher(state, self.vocabulary_size, self._tokenizer.eos_tokens, stops)
        if not matcher.mask().any():
            raise _refusal(constraint, "no output can meet it")
        matcher.accept(spec.token_ids[spec.prompt_length :])
        if matcher.is_lost:
            raise InvalidArgument("session.token_ids", "the output so far breaks the constraint")
        return matcher


class Matcher:
    """Where an output stands in its form.

    A session's own matcher moves on with committed tokens alone; what is only proposed is walked on
    a fork, which is dropped. So there is nothing to roll back.
    """

    def __init__(
        self,
        state: LLMatcher,
        vocabulary_size: int,
        end_token_ids: Sequence[int],
        stop_token_ids: Sequence[int],
    ) -> None:
        self._state = state
        self._vocabulary_size = vocabulary_size
        self._end_token_ids = [t for t in end_token_ids if t < vocabulary_size]
        self._stop_token_ids = list(stop_token_ids)
        # A draft may lack some of the target's.
        self._own_stop_token_ids = [t for t in stop_token_ids if t < vocabulary_size]
        self._has_ended = False
        self.is_lost = False
        """Whether a token was not allowed where it stands; nothing is allowed behind it."""
        self.num_tokens = 0
        """Output tokens that it stands behind."""

    def fork(self) -> Matcher:
        """Returns a matcher at the same place that moves on by itself."""
        fork = Matcher(
            self._state.deep_copy(),
            self._vocabulary_size,
            self._end_token_ids,
            self._stop_token_ids,
        )
        fork._has_ended, fork.is_lost = self._has_ended, self.is_lost
        fork.num_tokens = self.num_tokens
        return fork

    def accept(self, token_ids: Sequence[int]) -> None:
        """Moves on behind tokens. A stop token ends the output, whatever the form says."""
        for token_id in token_ids:
            if token_id in self._stop_token_ids:
                self._has_ended = True
            elif self._has_ended or token_id in self._end_token_ids:
                self.is_lost = True
            elif not self.is_lost:
                self.is_lost = self._state.try_consume_tokens([token_id]) == 0
            self.num_tokens += 1

    def mask(self) -> Mask:
        """Returns which tokens may come next [V]; the stop tokens where the form is complete."""
        allowed = np.zeros(self._vocabulary_size, dtype=np.bool_)
        if self.is_lost:
            return allowed
        if not self._has_ended:
            bits = np.frombuffer(self._state.compute_bitmask(), dtype=np.uint8)
            if self._state.is_error():  # a dead end, or more work than the library will do
                return allowed
            allowed = np.unpackbits(bits, count=self._vocabulary_size, bitorder="little").view(bool)
            allowed[self._end_token_ids] = False
        if self._has_ended or self._state.is_accepting():
            allowed[self._own_stop_token_ids] = True
        return allowed

    def forced(self) -> list[int]:
        """Returns the tokens that must come next, one after the other; mostly none."""
        if self.is_lost or self._has_ended or self._state.is_accepting():
            return []
        return self._state.compute_ff_tokens()

    def row_masks(self, output: Sequence[int], num_rows: int) -> list[Mask]:
        """Returns the masks of the last rows of a step, and moves on to the first one's place.

        Args:
            output: Every token behind the prompt up to the one that the last row feeds.
            num_rows: How many rows; the first one stands behind committed tokens alone.

        Raises:
            ValueError: It stands behind more than the first row does.
        """
        first = len(output) - num_rows + 1
        if first < self.num_tokens:
            raise ValueError(f"{self.num_tokens} output tokens are behind it, not {first}")
        self.accept(output[self.num_tokens : first])
        masks, walker = [self.mask()], self.fork()
        for token_id in output[first:]:
            walker.accept([token_id])
            masks.append(walker.mask())
        return masks


def _grammar(constraint: Constraint) -> str:
    """The constraint as the library reads it.

    Raises:
        InvalidArgument: It cannot be read.
    """
    try:
        match constraint.kind:
            case ConstraintKind.JSON_SCHEMA:  # parsed first: the library pastes text as it is
                schema = json.loads(constraint.text)
                if not isinstance(schema, dict):
                    raise _refusal(constraint, "must be an object")
                return LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=_JSON_STYLE)
            case ConstraintKind.REGEX:
                return LLMatcher.grammar_from_regex(constraint.text)
            case ConstraintKind.GRAMMAR:
                return grammar_from("grammar", constraint.text)
    except (ValueError, RecursionError) as error:
        raise _refusal(constraint, str(error)) from error


def _refusal(constraint: Constraint, message: str) -> InvalidArgument:
    return InvalidArgument(f"{_FIELD}.{constraint.kind.value}", message)


def _read_tokenizer(archive: bytes, identity: ModelIdentity) -> LLTokenizer:
    """The bytes of every token, as the library keeps them.

    Raises:
        ValueError: The library does not know this kind of tokenizer.
    """
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        text = files.read("tokenizer.json").decode()
    model = json.loads(text)["model"]
    if model["type"] == "WordLevel":
        return LLTokenizer(TokenizerWrapper(_Words(model["vocab"], identity.eos_token_ids)))
    if not identity.eos_token_ids:
        raise ValueError("the model has no end-of-sequence id")
    return LLTokenizer(
        text, n_vocab=identity.vocabulary_size, eos_token=list(identity.eos_token_ids)
    )


class _Words:
    """A tokenizer whose tokens are single characters, in the shape that the library asks for."""

    bos_token_id = None

    def __init__(self, vocabulary: dict[str, int], eos_token_ids: Sequence[int]) -> None:
        self._vocabulary = vocabulary
        self.tokens = [word.encode() for word in sorted(vocabulary, key=vocabulary.__getitem__)]
        # The library needs an end of its own; this one is in no vocabulary.
        self.eos_token_id = len(self.tokens)
        self.tokens.append(b"<end>")
        self.special_token_ids = [self.eos_token_id, *eos_token_ids]

    def __call__(self, text: str) -> list[int]:
        return [self._vocabulary[character] for character in text]
