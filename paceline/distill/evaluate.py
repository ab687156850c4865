"""How much of a draft a target would accept, on text that the draft was not trained on.

Knows no files and no training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from paceline.distill.shards import Sample
from paceline.distill.train import Batch, Trainer

_BATCH_SAMPLES = 8


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Shares of places, or of mass; each at least what a running pair would see at one place."""

    greedy_agreement: float
    """Both think the same token likeliest."""
    overlap: float
    """Mass that both laws share at temperature 1: what the rejection rules accept."""
    coupled_match: float
    """Both draw the same token from shared noise: what the coupled rule accepts."""
    loss: float
    """Nats a token of what the head can score."""
    num_tokens: int

    def describe(self) -> str:
        """The figures in a line for people."""
        return (
            f"greedy agreement {self.greedy_agreement:.3f}, shared mass {self.overlap:.3f}, "
            f"coupled match {self.coupled_match:.3f}, loss {self.loss:.3f} "
            f"over {self.num_tokens:,} tokens"
        )


@torch.inference_mode()
def evaluate(trainer: Trainer, samples: Sequence[Sample]) -> Acceptance:
    """Compares a draft with the laws that samples were written with.

    Of those only the likeliest tokens are known; what the others share is not counted.
    """
    generator = torch.Generator().manual_seed(0)
    sums = torch.zeros(5)
    for start in range(0, len(samples), _BATCH_SAMPLES):
        batch = Batch.of(samples[start : start + _BATCH_SAMPLES]).to(trainer.device)
        log_probs, places, probs = trainer.compare(batch)
        likeliest = trainer.head_ids.to(trainer.device)[log_probs.argmax(dim=1)]
        own = log_probs.gather(1, places)
        sums += torch.stack(
            [
                (likeliest == batch.top_ids[:, 0]).sum(),
                torch.minimum(own.exp(), probs).sum(),
                _num_matches(log_probs, places, probs, generator),
                -(probs * own).sum() / probs.sum().clamp_min(1e-9) * len(probs),
                torch.tensor(len(probs), device=probs.device),
            ]
        ).cpu()
    count = float(sums[4])
    agreement, overlap, match, loss = (sums[:4] / count).tolist()
    return Acceptance(agreement, overlap, match, loss, int(count))


def _num_matches(
    log_probs: torch.Tensor,
    places: torch.Tensor,
    probs: torch.Tensor,
    generator: torch.Generator,
) -> torch.Tensor:
    """Places where both draw the same token from one noise, drawn once.

    What is not known of the target's law is taken to be spread as the draft spreads it, and never
    counts as a match.
    """
    noise = -torch.rand(log_probs.shape, generator=generator).clamp_min(1e-20).log()
    draft_races = log_probs.exp() / noise.to(log_probs.device)
    is_known = torch.zeros_like(draft_races).scatter_add_(1, places, (probs > 0).float()) > 0
    races = probs / noise.to(log_probs.device).gather(1, places)
    best, winner = races.max(dim=1)
    drawn = places.gather(1, winner[:, None])[:, 0]
    outside = (1 - probs.sum(dim=1)).clamp_min(0)
    drafted_outside = log_probs.exp().masked_fill(is_known, 0).sum(dim=1).clamp_min(1e-20)
    best_outside = draft_races.masked_fill(is_known, 0).amax(dim=1) * outside / drafted_outside
    return ((best > best_outside) & (drawn == draft_races.argmax(dim=1))).sum()
