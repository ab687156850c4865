"""What a target wrote and the laws it wrote it with, on disk: one file for each wave of sequences.

A shard is written aside and renamed, so that one that is there is whole. Knows no model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

NUM_TOP = 32
"""Likeliest tokens of a law that are kept."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One sequence: a prompt, and what the target wrote behind it."""

    token_ids: torch.Tensor
    """Int64 [T], prompt and output."""
    prompt_length: int
    top_ids: torch.Tensor
    """Int32 [T - prompt_length, n]: likeliest tokens at each place of the output, best first."""
    top_log_probs: torch.Tensor
    """Float16 [T - prompt_length, n], at temperature 1 over the whole vocabulary."""


def shard_path(directory: Path, wave: int) -> Path:
    """Where a wave's shard is."""
    return directory / f"wave-{wave:06d}.safetensors"


def write_shard(path: Path, samples: Sequence[Sample], chats: Sequence[object]) -> None:
    """Writes a wave, with its chats as JSON for whoever reads on."""
    lengths = [(len(one.token_ids), one.prompt_length) for one in samples]
    aside = path.with_suffix(".part")
    save_file(
        {
            "token_ids": torch.cat([one.token_ids for one in samples]).int(),
            "lengths": torch.tensor(lengths, dtype=torch.int32),
            "top_ids": torch.cat([one.top_ids for one in samples]).int(),
            "top_log_probs": torch.cat([one.top_log_probs for one in samples]).half(),
        },
        aside,
        {"chats": json.dumps(chats)},
    )
    aside.rename(path)


def read_shard(path: Path) -> list[Sample]:
    """Reads a wave's samples."""
    with safe_open(path, "pt") as file:
        tensors: Mapping[str, torch.Tensor] = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  # no mapping
    samples, token, row = [], 0, 0
    for length, prompt_length in tensors["lengths"].tolist():
        rows = slice(row, row + length - prompt_length)
        samples.append(
            Sample(
                tensors["token_ids"][token : token + length].long(),
                prompt_length,
                tensors["top_ids"][rows],
                tensors["top_log_probs"][rows],
            )
        )
        token, row = token + length, rows.stop
    return samples


def count_tokens(path: Path) -> int:
    """Tokens that the target wrote in a wave."""
    with safe_open(path, "pt") as file:
        return int(file.get_slice("top_ids").get_shape()[0])


def read_chats(path: Path) -> list[list[dict[str, str]]]:
    """Reads a wave's chats."""
    with safe_open(path, "pt") as file:
        chats: list[list[dict[str, str]]] = json.loads(file.metadata()["chats"])
    return chats
