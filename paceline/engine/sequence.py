"""The tokens of one session on one model, and which of them are in the cache.

A sequence only counts: it asks the block pool for room and never sees a tensor. Rollback is a
number here. It belongs to the engine thread; nobody else writes it.
"""

from __future__ import annotations

from collections.abc import Sequence as Ids

from paceline.engine.block_pool import BlockPool, OutOfBlocks, domain_digest, prefix_digest
from paceline.engine.step import Span


class Sequence:
    """Token ids with cache bookkeeping.

    Invariant: `num_cached <= len(token_ids)`, and the block table holds at least `num_cached`
    places. Only blocks full of committed tokens are registered for others to find.
    """

    def __init__(
        self,
        pool: BlockPool,
        token_ids: Ids[int],
        *,
        prompt_length: int,
        cache_domain: str = "",
        arrival_time_s: float = 0.0,
    ) -> None:
        self._pool = pool
        self.token_ids = list(token_ids)
        self.prompt_length = prompt_length
        self.arrival_time_s = arrival_time_s
        self.num_cached = 0
        self.num_committed = len(token_ids)
        self.block_table: list[int] = []
        self._digests: list[bytes] = []  # of leading full blocks of committed tokens
        self._num_registered = 0  # leading blocks that others can find
        self._domain = domain_digest(cache_domain)

    def __len__(self) -> int:
        return len(self.token_ids)

    def reuse_prefix(self, limit: int) -> int:
        """Takes over the cached blocks of the longest known prefix of at most `limit` tokens.

        Only of committed tokens: a found block is others' too, and must never be written anew.

        Returns:
            The number of tokens in the cache. Without effect on a sequence that holds blocks.
        """
        size = self._pool.block_size
        if self.block_table:
            return self.num_cached
        for digest in self._full_block_digests(min(limit, self.num_committed) // size):
            block = self._pool.find(digest)
            if block is None:
                break
            self._pool.retain(block)
            self.block_table.append(block)
        self._num_registered = len(self.block_table)
        self.num_cached = len(self.block_table) * size
        return self.num_cached

    def append(self, token_ids: Ids[int]) -> None:
        """Adds tokens that are not committed yet."""
        self.token_ids.extend(token_ids)

    def commit(self) -> None:
        """Declares every token final and makes the full blocks in the cache findable."""
        self.num_committed = len(self)
        self.register_prefix()

    def register_prefix(self) -> None:
        """Makes the blocks that are full of committed, cached tokens findable by others."""
        num_full = min(self.num_cached, self.num_committed) // self._pool.block_size
        if num_full > self._num_registered:
            digests = self._full_block_digests(num_full)
            for index in range(self._num_registered, num_full):
                self._pool.register(self.block_table[index], digests[index])
            self._num_registered = num_full

    def truncate(self, length: int) -> None:
        """Drops tokens from `length` on, and returns the blocks that only they used.

        Raises:
            AssertionError: committed tokens would be dropped.
        """
        if length < self.num_committed:
            raise AssertionError(f"{self.num_committed} tokens are committed, not {length}")
        del self.token_ids[length:]
        self._forget_cache(length)

    def replace_tail(self, start: int, token_ids: Ids[int]) -> None:
        """Replaces what follows the first `start` tokens, keeping the cache of what stays equal.

        Raises:
            AssertionError: committed tokens would be replaced.
        """
        if start < self.num_committed:
            raise AssertionError(f"{self.num_committed} tokens are committed, not {start}")
        held = self.token_ids[start:]
        num_equal = 0
        for mine, theirs in zip(held, token_ids, strict=False):
            if mine != theirs:
                break
            num_equal += 1
        self.token_ids[start:] = token_ids
        self._forget_cache(start + num_equal)

    def reserve(self, length: int) -> list[tuple[int, int]]:
        """Makes room for the first `length` tokens, shared blocks made the sequence's own.

        Returns:
            Blocks to copy before anything else is written, (source, destination).

        Raises:
            OutOfBlocks: the pool has not that many; nothing is changed.
        """
        shared = self._shared_places()
        num_missing = len(shared) + self._num_short_of(length)
        if num_missing == 0:
            return []
        if num_missing > self._pool.num_free:
            raise OutOfBlocks
        copies = []
        for index in shared:
            block = self.block_table[index]
            own = self._pool.allocate(self.block_table[index - 1] if index else None)
            self._pool.release([block])
            self.block_table[index] = own
            if index * self._pool.block_size < self.num_cached:
                copies.append((block, own))
        while len(self.block_table) * self._pool.block_size < length:
            after = self.block_table[-1] if self.block_table else None
            self.block_table.append(self._pool.allocate(after))
        return copies

    def num_missing_blocks(self, length: int) -> int:
        """How many blocks `reserve` would take from the pool."""
        return len(self._shared_places()) + self._num_short_of(length)

    def fork(self) -> Sequence:
        """A second sequence with the same tokens, sharing every block until one of them writes."""
        twin = Sequence(
            self._pool,
            self.token_ids,
            prompt_length=self.prompt_length,
            arrival_time_s=self.arrival_time_s,
        )
        twin.num_cached = self.num_cached
        twin.num_committed = self.num_committed
        twin._domain = self._domain
        twin._digests = list(self._digests)
        twin._num_registered = self._num_registered
        for block in self.block_table:
            self._pool.retain(block)
        twin.block_table = list(self.block_table)
        return twin

    def release(self) -> None:
        """Returns every block; the tokens stay, so that the sequence can be recomputed."""
        self._pool.release(self.block_table)
        self.block_table.clear()
        self._num_registered = 0
        self.num_cached = 0

    def span(self, end: int, num_logits: int) -> Span:
        """The rows from the first uncached token up to `end`; room must be reserved."""
        return Span(
            token_ids=tuple(self.token_ids[self.num_cached : end]),
            start=self.num_cached,
            block_table=tuple(self.block_table),
            num_logits=num_logits,
            prompt_length=self.prompt_length,
        )

    def _forget_cache(self, length: int) -> None:
        """Forgets what the cache holds behind `length`, and returns blocks that hold nothing."""
        size = self._pool.block_size
        self.num_cached = min(self.num_cached, length)
        num_needed = -(-self.num_cached // size)
        surplus = self.block_table[num_needed:]
        if surplus:
            del self.block_table[num_needed:]
            self._pool.release(surplus)
        self._num_registered = min(self._num_registered, num_needed)

    def _num_short_of(self, length: int) -> int:
        """How many blocks the table is short of for `length` tokens."""
        return max(0, -(-length // self._pool.block_size) - len(self.block_table))

    def _shared_places(self) -> list[int]:
        """Places in the block table that are written next and that others hold too."""
        first_written = self.num_cached // self._pool.block_size
        places = range(first_written, len(self.block_table))
        return [i for i in places if self._pool.references(self.block_table[i]) > 1]

    def _full_block_digests(self, num_blocks: int) -> list[bytes]:
        """Digests of the first `num_blocks` blocks, extending the ones already known."""
        size = self._pool.block_size
        while len(self._digests) < num_blocks:
            index = len(self._digests)
            parent = self._digests[-1] if self._digests else self._domain
            ids = self.token_ids[index * size : (index + 1) * size]
            self._digests.append(prefix_digest(parent, ids))
        return self._digests[:num_blocks]
