"""Which cache blocks are held, by how many sequences, and which hold a prefix worth keeping.

Integers only: no tensor is touched here, and no sequence is known. A block is *held* while its
reference count is above 0. A block that was registered under a prefix digest stays findable after
its last holder let go, until its place is needed (least recently let go first).
"""

from __future__ import annotations

import hashlib
import struct
from collections import OrderedDict
from collections.abc import Sequence


class OutOfBlocks(Exception):
    """Every block is held. The scheduler answers it by preempting; it never leaves the engine."""


def prefix_digest(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The digest of a full block: of its own ids and, through `parent`, of all ids before it.

    The parent of the first block is `domain_digest`, so tenants share nothing unless they say so.
    A cryptographic digest, because a collision would show one session another's cache.
    """
    ids = struct.pack(f"<{len(token_ids)}I", *token_ids)
    return hashlib.blake2b(ids, digest_size=16, key=parent).digest()


def domain_digest(cache_domain: str) -> bytes:
    """The parent digest of the first block of every sequence of a cache domain."""
    return hashlib.blake2b(cache_domain.encode(), digest_size=16, person=b"cache domain").digest()


class BlockPool:
    """Gives blocks out and takes them back; blocks are numbered from 0."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._references = [0] * num_blocks
        # 1 where a block is neither held nor registered; a bytearray, so that the longest run of
        # such blocks is found at C speed.
        self._blank = bytearray(b"\x01" * num_blocks)
        self._digest_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # registered and not held
        self._num_held = 0

    @property
    def num_held(self) -> int:
        """Blocks with a holder."""
        return self._num_held

    @property
    def num_free(self) -> int:
        """Blocks that can be given out, the registered idle ones included."""
        return self.num_blocks - self._num_held

    def references(self, block: int) -> int:
        """How many sequences hold the block."""
        return self._references[block]

    def allocate(self, after: int | None = None) -> int:
        """Gives out one block, held once.

        Contiguous runs are read as views on the CPU, so the block following `after` is preferred;
        else a new run starts in the longest blank stretch, in its middle when a held block could
        grow into its beginning.

        Raises:
            OutOfBlocks: every block is held.
        """
        if after is not None and after + 1 < self.num_blocks and self._blank[after + 1]:
            block = after + 1
        else:
            block = self._start_of_run()
        self._blank[block] = 0
        self._hold(block)
        return block

    def retain(self, block: int) -> None:
        """Adds a holder to a block, held or idle."""
        if self._references[block] == 0:
            if block not in self._idle:
                raise AssertionError(f"block {block} holds nothing to share")
            del self._idle[block]
            self._hold(block)
        else:
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Takes back one hold on each block, in order of the sequence that held them.

        The tail goes first, so that of a long prefix the beginning stays findable longest.
        """
        for block in reversed(blocks):
            if self._references[block] < 1:
                raise AssertionError(f"block {block} was released once too often")
            self._references[block] -= 1
            if self._references[block] == 0:
                self._num_held -= 1
                if block in self._digest_of:
                    self._idle[block] = None
                else:
                    self._blank[block] = 1

    def register(self, block: int, digest: bytes) -> None:
        """Makes a full, committed block findable by its digest. The first block to come stays."""
        if digest not in self._block_of and block not in self._digest_of:
            self._block_of[digest] = block
            self._digest_of[block] = digest

    def find(self, digest: bytes) -> int | None:
        """The block registered under a digest, without holding it."""
        return self._block_of.get(digest)

    def check(self, block_tables: Sequence[Sequence[int]]) -> None:
        """Proves that the counts are those of the given tables, which must be all there are.

        Raises:
            AssertionError: a block is leaked, or given out twice.
        """
        counts = [0] * self.num_blocks
        for table in block_tables:
            for block in table:
                counts[block] += 1
        if counts != self._references:
            wrong = [b for b in range(self.num_blocks) if counts[b] != self._references[b]]
            raise AssertionError(f"blocks with a wrong reference count: {wrong[:8]}")
        num_blank = sum(self._blank)
        if self._num_held + num_blank + len(self._idle) != self.num_blocks:
            raise AssertionError("held, blank and idle blocks do not add up")

    def _hold(self, block: int) -> None:
        self._references[block] = 1
        self._num_held += 1

    def _start_of_run(self) -> int:
        longest = max(self._blank.split(b"\x00"), key=len)
        if longest:
            start = self._blank.find(longest)
            has_neighbour = start > 0 and self._references[start - 1] > 0
            return start + len(longest) // 2 if has_neighbour else start
        if not self._idle:
            raise OutOfBlocks
        block, _ = self._idle.popitem(last=False)
        del self._block_of[self._digest_of.pop(block)]
        return block
