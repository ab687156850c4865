"""The learning curve of a draft, and the card that is written beside it.

Knows no training and no tensors.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from paceline.distill.evaluate import Acceptance
from paceline.engine.draft_files import Recipe


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a training stood after a round."""

    num_steps: int
    num_tokens: int
    """Tokens that the target had written."""
    seconds: float
    """What the round took."""
    figures: Acceptance


def read_curve(path: Path) -> list[Entry]:
    """Reads a curve; empty where there is none."""
    if not path.exists():
        return []
    return [
        Entry(**{**fields, "figures": Acceptance(**fields["figures"])})
        for fields in json.loads(path.read_text())
    ]


def write_curve(path: Path, curve: Sequence[Entry]) -> None:
    """Writes a curve."""
    path.write_text(json.dumps([asdict(entry) for entry in curve], indent=1) + "\n")


def write_card(directory: Path, recipe: Recipe, curve: Sequence[Entry], num_head_ids: int) -> None:
    """Writes README.md: what the draft is, what it learnt from, and how well it does."""
    last = curve[-1]
    hours = sum(entry.seconds for entry in curve) / 3600
    layers = ", ".join(map(str, recipe.layers))
    lines = [
        f"# A draft for {recipe.target}",
        "",
        f"{len(recipe.layers)} layers that began as layers {layers} of the target; embeddings and",
        f"head are the target's own and are read from it at load. The head scores {num_head_ids:,}",
        "tokens; no other is ever proposed. Weights are in half precision.",
        "",
        f"Written by `paceline distill --target {recipe.target}`: the target wrote"
        f" {last.num_tokens:,} tokens",
        "of its own, answers to prompts of twelve kinds at temperatures 0, 0.7 and 1, and the",
        f"draft learnt the laws that they were written with, in {last.num_steps:,} steps of",
        f"training. Both took {hours:.1f} hours.",
        "",
        "On answers that were held out (prompts of the same kinds, temperatures in turn):",
        "",
        "| tokens | steps | greedy agreement | shared mass | coupled match | loss |",
        "|---|---|---|---|---|---|",
    ]
    for entry in curve:
        one = entry.figures
        lines.append(
            f"| {entry.num_tokens:,} | {entry.num_steps:,} | {one.greedy_agreement:.3f} |"
            f" {one.overlap:.3f} | {one.coupled_match:.3f} | {one.loss:.3f} |"
        )
    lines += [
        "",
        "Greedy agreement and shared mass are the acceptance of one token at temperatures 0 and 1.",
        "",
    ]
    (directory / "README.md").write_text("\n".join(lines))
