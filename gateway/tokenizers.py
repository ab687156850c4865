"""Where tokenizers come from: memory, disk, or a verify replica, in this order, by fingerprint."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from gateway.tokenizer import Tokenizer, load_tokenizer, open_tokenizer


class Tokenizers:
    """Owns the loaded tokenizers, one per model fingerprint."""

    def __init__(self, cache_dir: Path) -> None:
        self._cache_dir = cache_dir.expanduser()
        self._loaded: dict[str, Tokenizer] = {}
        self._lock = asyncio.Lock()

    async def get(self, fingerprint: str, fetch: Callable[[], Awaitable[bytes]]) -> Tokenizer:
        """The tokenizer of a model; `fetch` gives its archive where it is not at hand.

        Raises:
            PacelineError: what `fetch` raises, or the archive is broken.
        """
        async with self._lock:  # replicas of one model start together: fetch once
            if fingerprint not in self._loaded:
                self._loaded[fingerprint] = await self._load(fingerprint, fetch)
            return self._loaded[fingerprint]

    async def _load(self, fingerprint: str, fetch: Callable[[], Awaitable[bytes]]) -> Tokenizer:
        # A fingerprint is a peer's word, so it is not used as a file name as it is.
        directory = self._cache_dir / hashlib.sha256(fingerprint.encode()).hexdigest()[:32]
        if directory.exists():
            return await asyncio.to_thread(open_tokenizer, directory)
        return await asyncio.to_thread(load_tokenizer, await fetch(), directory)
