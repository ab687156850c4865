"""All layers of a decoder as one compiled call per thread.

Between products a step does little, but in some ten operations a layer, each of which costs more to
call than to run. Here nothing is called: threads go through the layers together, each over its own
share of every product, and meet where they need one another's numbers. What one thread can do in
the time of a meeting, each does for itself. Knows no session.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from paceline.engine.native.attend import Seen, num_scratch
from paceline.engine.native.emit import LANES
from paceline.engine.native.layer_loop import build_layer_loop
from paceline.engine.native.tiles import PANEL, Tiled


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix with its bias."""

    matrix: Tiled
    bias: torch.Tensor | None

    @property
    def addresses(self) -> tuple[int, ...]:
        """Of what the tiles' loop reads, and of the bias; 0 for what there is not."""
        return (*self.matrix.addresses, 0 if self.bias is None else self.bias.data_ptr())


@dataclass(frozen=True, slots=True)
class NativeLayer:
    """One layer's weights."""

    attention_norm: torch.Tensor
    qkv: Product
    head_norm: torch.Tensor | None
    """[Hq + Hkv, D]."""
    output: Product
    mlp_norm: torch.Tensor
    gate_up: Product
    down: Product

    @property
    def addresses(self) -> tuple[int, ...]:
        """In the order in which `layer_loop.py` reads them."""
        return (
            self.attention_norm.data_ptr(),
            self.mlp_norm.data_ptr(),
            0 if self.head_norm is None else self.head_norm.data_ptr(),
            *self.qkv.addresses,
            *self.output.addresses,
            *self.gate_up.addresses,
            *self.down.addresses,
        )


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a step."""

    x: torch.Tensor
    """[T, E]: what they enter with; overwritten with what they leave with."""
    turns: torch.Tensor
    """Complex [T, 1, D / 2]; see `rows.turn`."""
    slots: torch.Tensor
    """Int64 [T]: where their keys and values are stored."""
    seen: Seen
    """What they see."""


class NativeLayers:
    """The layers of one decoder, over one cache.

    Not for use by several threads at once: the threads that it starts are a step's.
    """

    def __init__(
        self,
        layers: Sequence[NativeLayer],
        caches: Sequence[tuple[torch.Tensor, torch.Tensor]],
        *,
        num_heads: int,
        epsilon: float,
    ) -> None:
        """Notes where everything lies.

        Args:
            layers: The weights.
            caches: Keys and values [Hkv, num_slots, D] of each layer.
            num_heads: Hq.
            epsilon: What norms add to the mean square.
        """
        self._layers = layers  # Addresses keep nothing alive.
        self._caches = caches
        self._num_heads = num_heads
        self._epsilon = epsilon
        self._table = torch.tensor(
            [
                (*layer.addresses, keys.data_ptr(), values.data_ptr())
                for layer, (keys, values) in zip(layers, caches, strict=True)
            ]
        )
        self._num_threads = torch.get_num_threads()
        self._others = ThreadPoolExecutor(max(1, self._num_threads - 1), "layers")

    def run(self, rows: Rows) -> None:
        """Takes rows through all layers; their keys and values are stored."""
        num_rows, size = rows.x.shape
        num_kv_heads, num_slots, dim = self._caches[0][0].shape
        inner = self._layers[0].gate_up.matrix.num_rows // 2
        num_stored = self._num_heads + 2 * num_kv_heads
        widest = max(size, inner, self._num_heads * dim)
        new = rows.x.new_empty
        counter = torch.zeros(1, dtype=torch.int64)
        private = (
            new((self._num_threads, num_rows, size)),
            new((self._num_threads, widest, PANEL)),
            new((self._num_threads, num_scratch(dim, rows.seen.longest))),
        )
        shared = (
            new((num_rows, num_stored * dim)),
            new((num_rows, self._num_heads * dim)),
            new((num_rows, size)),
            new((num_rows, 2 * inner)),
            new((num_rows, inner)),
        )
        given = (rows.x, rows.turns, rows.slots, counter)
        buffers = tuple(tensor.data_ptr() for tensor in (*private, *shared, *given))
        sizes = (
            (num_rows, size, inner, widest),
            (self._num_heads, num_kv_heads, num_slots, rows.seen.longest),
            (len(self._layers), self._table.shape[1]),
            (num_scratch(dim, rows.seen.longest), *rows.seen.addresses),
        )
        run_share = build_layer_loop(dim // LANES, self._layers[0].qkv.matrix.tiles)

        def run(share: int) -> None:
            table_at = self._table.data_ptr()
            run_share(share, self._num_threads, table_at, buffers, sizes, self._epsilon)

        others = [self._others.submit(run, share) for share in range(1, self._num_threads)]
        run(0)
        for other in others:
            other.result()
