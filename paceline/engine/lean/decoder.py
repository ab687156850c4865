"""A Llama-shaped decoder as one function over plain tensors.

Queries, keys and values come out of one product; rotation is one complex product, since the two
numbers that turn together lie side by side (the weights are laid out so when they are taken); a
step's angles are computed once. What the rows mean and where keys and values live is attention's.
Knows no session, no cache and no transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from paceline.engine.lean.linear import Gate, Linear
from paceline.engine.native import rows
from paceline.engine.native.compiled import is_native


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Heads of an attention layer."""

    num_heads: int
    num_kv_heads: int
    dim: int

    @property
    def num_turned(self) -> int:
        """Query and key heads, which are rotated; values are not."""
        return self.num_heads + self.num_kv_heads


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's weights."""

    attention_norm: torch.Tensor
    qkv: Linear
    """Heads in the order of `Attention.attend`."""
    head_norm: torch.Tensor | None
    """[Hq + Hkv, D]: scale of each normalized query and key head; None leaves heads as they are."""
    output: Linear
    mlp_norm: torch.Tensor
    gate: Gate
    down: Linear
    window: int | None
    """Number of positions a row sees, itself included; None sees all before it."""


class Attention(Protocol):
    """What the rows of a step mean: where their keys go and which keys they see."""

    def attend(self, layer: int, heads: torch.Tensor) -> torch.Tensor:
        """Stores keys and values, then attends.

        Args:
            layer: Index of the layer.
            heads: [T, Hq + 2 * Hkv, D], rotated: queries, by place in their group and then by key
                head, on CUDA by key head and then by place; keys; values.

        Returns:
            [T, Hq * D], heads in the order of the queries.
        """


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder's weights and its forward pass."""

    embedding: torch.Tensor
    """[V, E]."""
    layers: tuple[Layer, ...]
    norm: torch.Tensor
    head: Callable[[torch.Tensor], torch.Tensor]
    """[W, E] -> logits [W, V]."""
    epsilon: float
    """What norms add to the mean square."""
    shape: HeadShape
    frequencies: torch.Tensor
    """Float32 [D / 2]: radians that a position turns each pair of numbers by."""
    turn_scale: float
    """What rotation multiplies lengths by; 1 for most."""

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The layers' windows."""
        return tuple(layer.window for layer in self.layers)

    def forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        wanted: torch.Tensor,
        attention: Attention,
    ) -> torch.Tensor:
        """Runs rows through all layers, and those that are wanted through the head.

        Args:
            ids: Int64 [T].
            positions: Int64 [T], each in its own sequence.
            wanted: Int64 [W]: indices of rows.
            attention: What the rows mean.

        Returns:
            Logits [W, V].
        """
        num_turned = self.shape.num_turned
        x = self.embedding[ids]
        turns = self.find_turns(positions)
        for index, layer in enumerate(self.layers):
            heads = layer.qkv(normalize(x, layer.attention_norm, self.epsilon))
            heads = heads.view(len(x), -1, self.shape.dim)
            turned = heads[:, :num_turned]
            if layer.head_norm is not None:
                turned.copy_(normalize(turned, layer.head_norm, self.epsilon))
            turn(turned, turns)
            x = layer.output.add_to(x, attention.attend(index, heads))
            x = layer.down.add_to(x, layer.gate(normalize(x, layer.mlp_norm, self.epsilon)))
        return self.score(x, wanted)

    def score(self, x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Logits [W, V] of the rows that are wanted among x [T, E], which has left the layers."""
        if len(wanted) < len(x):
            x = x[wanted]
        return self.head(normalize(x, self.norm, self.epsilon))

    def find_turns(self, positions: torch.Tensor) -> torch.Tensor:
        """Complex [T, 1, D / 2]: what each pair of numbers of a row is multiplied with."""
        angles = positions[:, None, None].float() * self.frequencies
        return torch.polar(torch.full_like(angles, self.turn_scale), angles)


def normalize(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Root mean square norm over the last dimension."""
    if x.ndim == 2 and is_native(x):
        return rows.normalize(x, weight, epsilon)
    if x.is_cuda and len(x):
        return normalize_fused(x, weight, epsilon)
    numbers = x.float()
    mean_square = numbers.square().mean(dim=-1, keepdim=True)
    return (numbers * (mean_square + epsilon).rsqrt_()).to(x.dtype).mul_(weight)


def normalize_fused(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """The same in one kernel on CUDA, where every launch counts; a weight per head takes another.

    It rounds once, to 16 bits, where the operations above round before the weight and behind it.
    """
    if weight.ndim == 1:
        return F.rms_norm(x, weight.shape, weight, epsilon)
    return F.rms_norm(x, x.shape[-1:], eps=epsilon).mul_(weight)


def turn(heads: torch.Tensor, turns: torch.Tensor) -> None:
    """Rotates heads [T, H, D] in place by complex [T, 1, D / 2], one number per adjacent pair."""
    if heads.dtype == torch.float32:
        rows.turn(heads, turns)
        return
    numbers = heads.float()
    torch.view_as_complex(numbers.view(*heads.shape[:2], -1, 2)).mul_(turns)
    heads.copy_(numbers)
