"""Drafts what followed the longest match of the text's end, in the session or its tenant's past.

An index keeps the places of a text sorted by what precedes them, read backwards; so the places that
share the longest context with the text's end stand next to where it would be sorted in, and one
binary search finds them. Among those places the continuation is a vote. It costs 8 bytes a
token, and at most an eighth more to grow.
A tenant's finished outputs are found by that tenant's sessions alone; the oldest are forgotten.
It knows no model and no stream.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import chain, islice

from paceline.records import SessionSpec, VerificationRule

NAME = "suffix"

# A single token recurs by chance: proposing on it costs rows of the target for little.
_MIN_MATCH = 2
_MAX_MATCH = 32
"""Tokens of context that are told apart; longer matches count as equally long."""
_MAX_PLACES = 16
"""Places that vote."""
_MIN_SHARE = 0.5
"""Share of the places that must agree with a proposal from its first token to its last."""
_MAX_TENANTS = 64
_END = 2**32 - 1
"""Stands between two outputs: no token has this id."""
_TOKEN_BYTES = 4


class SuffixIndex:
    """Tokens, and their places sorted by the tokens before them.

    The tokens are held backwards, so that a context is a piece of them as it stands.
    """

    def __init__(self, token_ids: Sequence[int] = ()) -> None:
        self._num_tokens = 0
        self._buffer = bytearray()
        self._ids = memoryview(self._buffer).cast("I")
        """Token i is at -1 - i; there may be room in front."""
        self._append(array("I", token_ids))
        # A place is the index of a token that follows something: the last one has no follower.
        self._places = array("I", sorted(range(1, len(self)), key=self._context))

    def __len__(self) -> int:
        return self._num_tokens

    def extend(self, token_ids: Sequence[int]) -> None:
        """Adds tokens."""
        first = len(self)
        self._append(array("I", token_ids))
        for place in range(max(1, first), len(self)):
            at = bisect_right(self._places, self._context(place), key=self._context)
            self._places.insert(at, place)

    def end(self) -> bytearray:
        """The end of the text, as `find` takes it."""
        return self._context(len(self))

    def find(self, end: bytearray) -> tuple[int, list[int]]:
        """Finds the longest match of a text's end.

        Returns:
            Its length in tokens, and places that follow it, those that share the most context
            first.
        """
        at = bisect_right(self._places, end, key=self._context)
        nearest = self._places[max(0, at - 1) : at + 1]
        length = max((_shared_length(self._context(place), end) for place in nearest), default=0)
        if length == 0:
            return 0, []
        wanted = end[: length * _TOKEN_BYTES]
        before, after = range(at - 1, at - 1 - _MAX_PLACES, -1), range(at, at + _MAX_PLACES)
        matching = chain(self._matching(before, wanted), self._matching(after, wanted))
        return length, list(islice(matching, _MAX_PLACES))

    def vote(self, places: Sequence[int], num_tokens: int) -> tuple[int, ...]:
        """The likeliest continuation by what stands at `places`, as far as enough of them agree."""
        ids, last, num_voters = self._ids, len(self) - 1, len(places)
        voted: list[int] = []
        while len(voted) < num_tokens:
            step = len(voted)
            # What stands there, by who is still of one mind; token i is at -1 - i.
            places = [place for place in places if place + step <= last]
            votes = [one for place in places if (one := ids[-1 - place - step]) != _END]
            if not votes:
                break
            # Of equals the first: the latest place's.
            token_id = max(dict.fromkeys(votes), key=votes.count)
            if votes.count(token_id) < _MIN_SHARE * num_voters:
                break
            voted.append(token_id)
            places = [place for place in places if ids[-1 - place - step] == token_id]
        return tuple(voted)

    def _context(self, place: int) -> bytearray:
        """The tokens before a place, the nearest first; fewer where the text begins.

        Byte order is not the order of ids, but any order groups what begins alike.
        """
        first = len(self._buffer) - place * _TOKEN_BYTES
        return self._buffer[first : first + _MAX_MATCH * _TOKEN_BYTES]

    def _append(self, token_ids: array[int]) -> None:
        """Puts tokens before those that are there; an eighth of them is room for more."""
        num_tokens = len(self) + len(token_ids)
        if num_tokens > len(self._ids):
            room = bytes((num_tokens - len(self) + num_tokens // 8) * _TOKEN_BYTES)
            held = self._buffer[len(self._buffer) - len(self) * _TOKEN_BYTES :]
            self._buffer = bytearray(room + held)
            self._ids = memoryview(self._buffer).cast("I")
        end = len(self._ids) - len(self)
        self._ids[end - len(token_ids) : end] = memoryview(token_ids[::-1])
        self._num_tokens = num_tokens

    def _matching(self, ranks: range, wanted: bytearray) -> Iterator[int]:
        """The places at those ranks, up to the first one whose context begins otherwise."""
        for rank in ranks:
            if not 0 <= rank < len(self._places):
                return
            place = self._places[rank]
            if not self._context(place).startswith(wanted):
                return
            yield place


def _shared_length(ours: bytearray, theirs: bytearray) -> int:
    """Length in tokens of what two contexts share at their beginnings."""
    size = min(len(ours), len(theirs))
    # What differs, as one number: its zeros in front are what is shared.
    difference = int.from_bytes(ours[:size], "big") ^ int.from_bytes(theirs[:size], "big")
    return (8 * size - difference.bit_length()) // (8 * _TOKEN_BYTES)


class Past:
    """Finished outputs of one tenant: at most `max_tokens`, and at least half of that."""

    def __init__(self, max_tokens: int) -> None:
        self._most = max(1, max_tokens // 2)
        self.indices = (SuffixIndex(), SuffixIndex())
        """The one that grows, and the one before it."""

    def add(self, token_ids: Sequence[int]) -> None:
        """Adds an output; when one index is full, the older one is forgotten."""
        if len(self.indices[0]) + len(token_ids) + 1 > self._most:
            self.indices = SuffixIndex(), self.indices[0]
        self.indices[0].extend([*token_ids[: self._most - 1], _END])


class Pasts:
    """The past of every tenant that was here lately."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._by_domain: OrderedDict[str, Past] = OrderedDict()

    def of(self, domain: str) -> Past:
        """The past of one tenant; when there are too many, the one longest unused is forgotten."""
        past = self._by_domain.get(domain)
        if past is None:
            past = self._by_domain[domain] = Past(self._max_tokens)
        self._by_domain.move_to_end(domain)
        if len(self._by_domain) > _MAX_TENANTS:
            self._by_domain.popitem(last=False)
        return past


class SuffixLookup:
    """One session: its own text, and what its tenant finished before."""

    def __init__(self, pasts: Pasts, spec: SessionSpec) -> None:
        self._pasts = pasts
        self._domain = spec.cache_domain
        # A point mass is exact where the target's draws are independent of it. A seed that was
        # used before may have drawn what is remembered.
        is_drawn = spec.rule is not VerificationRule.COUPLED and not spec.sampling.is_greedy
        self._remembers = spec.has_fresh_seed or not is_drawn
        self._own = SuffixIndex(spec.token_ids)
        self._output = list(spec.token_ids[spec.prompt_length :])

    def extend(self, token_ids: Sequence[int]) -> None:
        """Takes committed tokens in."""
        self._own.extend(token_ids)
        self._output.extend(token_ids)

    def continuation(self, num_tokens: int) -> tuple[int, ...]:
        """What followed the longest match, the session's own text first among equals."""
        end = self._own.end()
        past = self._pasts.of(self._domain).indices if self._remembers else ()
        indices = (self._own, *past)
        found = [(index, *index.find(end)) for index in indices]
        index, length, places = max(found, key=lambda one: one[1])
        return index.vote(places, num_tokens) if length >= _MIN_MATCH else ()

    def close(self) -> None:
        """Leaves the output to the tenant's later sessions."""
        if self._output:
            self._pasts.of(self._domain).add(self._output)
