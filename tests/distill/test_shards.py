"""Shards: what goes in comes out."""

from __future__ import annotations

from pathlib import Path

import torch

from paceline.distill.shards import (
    Sample,
    count_tokens,
    read_chats,
    read_shard,
    shard_path,
    write_shard,
)


def test_round_trip(tmp_path: Path) -> None:
    """Samples of different lengths, and their chats."""
    samples = [
        Sample(
            torch.arange(length),
            prompt_length,
            torch.randint(9, (length - prompt_length, 3), dtype=torch.int32),
            -torch.rand(length - prompt_length, 3).half(),
        )
        for length, prompt_length in ((5, 2), (9, 8), (4, 1))
    ]
    path = shard_path(tmp_path, 7)
    write_shard(path, samples, [[{"role": "user", "content": "ä"}]])
    assert [path] == list(tmp_path.iterdir())
    assert 3 + 1 + 3 == count_tokens(path)
    assert [[{"role": "user", "content": "ä"}]] == read_chats(path)
    for expected, actual in zip(samples, read_shard(path), strict=True):
        assert expected.prompt_length == actual.prompt_length
        for field in ("token_ids", "top_ids", "top_log_probs"):
            assert torch.equal(getattr(expected, field), getattr(actual, field)), field
