"""Trains a draft on a target's laws: cross-entropy on what the draft's head scores.

The draft conditions on its own tokens only after they were accepted, so the target's own text is
the right text to learn on. Embeddings and head are the target's and stay. Knows no files.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, PreTrainedModel

from paceline.distill.shards import Sample
from paceline.engine.draft_files import Recipe, own_parameters, pick_rows

_POOL = 256
"""Samples that are sorted by length together, so that a batch needs little padding."""
_WARM_UP_SHARE = 0.03
_LAST_RATE = 0.05
"""Of the highest."""
_BETAS = (0.9, 0.95)
_WEIGHT_DECAY = 0.01
_MAX_NORM = 1.0


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """How a draft is trained."""

    num_steps: int = 4000
    batch_tokens: int = 2048
    """Tokens of a batch, prompts and padding included."""
    learning_rate: float = 1e-3
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Samples side by side, filled up behind with tokens that nobody sees."""

    token_ids: torch.Tensor
    """Int64 [B, T]."""
    rows: torch.Tensor
    """Int64 [N]: places in the flattened tokens whose next token the target wrote."""
    top_ids: torch.Tensor
    """Int64 [N, n]; see `Sample`."""
    top_probs: torch.Tensor
    """Float32 [N, n]."""

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Batch:
        """Puts samples side by side."""
        token_ids = pad_sequence([one.token_ids for one in samples], batch_first=True)
        length = token_ids.shape[1]
        rows = [
            index * length + torch.arange(one.prompt_length - 1, len(one.token_ids) - 1)
            for index, one in enumerate(samples)
        ]
        return cls(
            token_ids,
            torch.cat(rows),
            torch.cat([one.top_ids for one in samples]).long(),
            torch.cat([one.top_log_probs for one in samples]).float().exp(),
        )

    def to(self, device: torch.device) -> Batch:
        """The same on a device."""
        return Batch(
            self.token_ids.to(device),
            self.rows.to(device),
            self.top_ids.to(device),
            self.top_probs.to(device),
        )


def batches(samples: Sequence[Sample], options: TrainOptions, seed: int) -> Iterator[list[Sample]]:
    """Yields the samples of a batch, over and over in new orders; each is at least one sample."""
    generator = random.Random(seed)
    while True:
        order = generator.sample(range(len(samples)), len(samples))
        cut: list[list[Sample]] = []
        for start in range(0, len(order), _POOL):
            batch: list[Sample] = []
            for one in sorted((samples[i] for i in order[start : start + _POOL]), key=_length):
                if batch and (len(batch) + 1) * len(one.token_ids) > options.batch_tokens:
                    cut.append(batch)
                    batch = []
                batch.append(one)
            cut.append(batch)
        generator.shuffle(cut)
        yield from cut


def most_likely_ids(samples: Sequence[Sample], vocabulary_size: int, count: int) -> torch.Tensor:
    """The ids, ascending, that hold the most mass over all laws; fewer where no more hold any."""
    mass = torch.zeros(vocabulary_size)
    for one in samples:
        mass.index_add_(0, one.top_ids.reshape(-1), one.top_log_probs.float().exp().reshape(-1))
    top, ids = mass.topk(min(count, vocabulary_size))
    return ids[top > 0].sort().values


class Trainer:
    """A draft in training; owns its weights, its optimizer and the number of steps taken."""

    def __init__(
        self, target: PreTrainedModel, recipe: Recipe, options: TrainOptions, device: str
    ) -> None:
        """Begins with the layers that the recipe names; the target keeps its own."""
        self._options = options
        self.device = torch.device(device)
        self._full_head: nn.Linear = target.lm_head
        self.network = _begin(target, recipe).to(self.device)
        self.own = own_parameters(self.network)
        self.optimizer = torch.optim.AdamW(
            self.own.values(), options.learning_rate, _BETAS, weight_decay=_WEIGHT_DECAY
        )
        self.num_steps = 0
        self.head_ids = torch.empty(0, dtype=torch.int64)
        self._place = torch.empty(0)

    @property
    def vocabulary_size(self) -> int:
        """Tokens that the target's head scores."""
        return self._full_head.out_features

    def set_head(self, head_ids: torch.Tensor) -> None:
        """Chooses the ids, ascending, that the head scores: it is not trained, so at any time."""
        self.head_ids = head_ids
        self.network.lm_head = pick_rows(self._full_head, head_ids).to(self.device)
        place = torch.full((self.vocabulary_size,), -1)
        place[head_ids] = torch.arange(len(head_ids))
        self._place = place.to(self.device)

    def step(self, samples: Sequence[Sample]) -> float:
        """Takes one step; returns the loss, in nats a token of what the head can score."""
        for group in self.optimizer.param_groups:
            group["lr"] = self._options.learning_rate * self._rate()
        batch = Batch.of(samples).to(self.device)
        log_probs, places, probs = self.compare(batch)
        loss = -(probs * log_probs.gather(1, places)).sum() / probs.sum().clamp_min(1e-9)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's
        nn.utils.clip_grad_norm_(self.own.values(), _MAX_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.num_steps += 1
        return loss.item()

    def compare(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Runs the draft over a batch.

        Returns:
            The draft's log-probabilities [N, ids of the head]; the places in them of the target's
            likeliest tokens [N, n]; the target's probabilities [N, n], 0 where the head has none.
        """
        hidden = self.network.model(input_ids=batch.token_ids, use_cache=False).last_hidden_state
        logits = self.network.lm_head(hidden.flatten(0, 1)[batch.rows])
        places = self._place[batch.top_ids]
        probs = batch.top_probs * (places >= 0)
        return logits.log_softmax(dim=1), places.clamp_min(0), probs

    def state(self) -> dict[str, Any]:
        """What a later `restore` goes on from."""
        return {
            "num_steps": self.num_steps,
            "head_ids": self.head_ids,
            "own": {name: one.detach() for name, one in self.own.items()},
            "optimizer": self.optimizer.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from a state."""
        self.num_steps = state["num_steps"]
        self.set_head(state["head_ids"])
        with torch.no_grad():
            for name, parameter in self.own.items():
                parameter.copy_(state["own"][name])
        self.optimizer.load_state_dict(state["optimizer"])

    def _rate(self) -> float:
        """Share of the highest learning rate: a short way up, then half a cosine down."""
        total = self._options.num_steps
        warm_up = max(1.0, _WARM_UP_SHARE * total)
        if self.num_steps < warm_up:
            return (self.num_steps + 1) / (warm_up + 1)
        done = min(1.0, (self.num_steps - warm_up) / max(1.0, total - warm_up))
        return _LAST_RATE + (1 - _LAST_RATE) * (1 + math.cos(math.pi * done)) / 2


def _begin(target: PreTrainedModel, recipe: Recipe) -> PreTrainedModel:
    """A network of some of a target's layers, in float32, whose embeddings are frozen."""
    config = recipe.reduce(type(target.config).from_dict(target.config.to_dict()))
    network = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    network.model.embed_tokens.load_state_dict(target.model.embed_tokens.state_dict())
    network.model.norm.load_state_dict(target.model.norm.state_dict())
    for own, layer in zip(network.model.layers, recipe.layers, strict=True):
        own.load_state_dict(target.model.layers[layer].state_dict())
    network.requires_grad_(False)
    for parameter in own_parameters(network).values():
        parameter.requires_grad_(True)
    return network.train()


def _length(sample: Sample) -> int:
    return len(sample.token_ids)
