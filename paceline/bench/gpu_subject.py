"""Models with random weights in the shapes of well-known ones, as they run on CUDA.

Times do not depend on the values of weights. It checks and measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from paceline.bench.paged_reference import attend_in_one_block, attend_plainly, has_paged_kernel
from paceline.engine.attention import CUDA_BLOCK_SIZE
from paceline.engine.lean.cuda_runner import CudaRunner
from paceline.engine.lean.paged_attention import PagedKernel, attend_flash
from paceline.engine.lean.weights import take_decoder
from paceline.engine.self_test import StockRun, run_stock
from paceline.engine.step import Span, Step

SHAPES: Mapping[str, Mapping[str, int]] = {
    "8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
    "1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
    },
}
"""Llama 3.1 8B, Llama 3.2 1B, and one that runs anywhere."""
_TIED = ("1b",)
_MAX_TOKENS = 1280
"""Of a sequence in the cache on CUDA."""


@dataclass(frozen=True, slots=True)
class CacheForm:
    """How sequences lie in the cache, and what attends to them."""

    name: str
    kernel: PagedKernel
    block_size: int
    num_blocks: int
    """Blocks of each sequence."""


PAGED = CacheForm(
    "torch's paged kernel", attend_flash, CUDA_BLOCK_SIZE, _MAX_TOKENS // CUDA_BLOCK_SIZE
)
IN_ONE_BLOCK = CacheForm(
    "a block per sequence, since this torch's kernel takes no tables",
    attend_in_one_block,
    _MAX_TOKENS,
    1,
)
WRITTEN_OUT = CacheForm("the kernel written out", attend_plainly, 32, 5)


def find_cache_form(device: torch.device) -> CacheForm:
    """The form that a device and its torch can attend to."""
    if device.type == "cpu":
        return WRITTEN_OUT
    return PAGED if has_paged_kernel() else IN_ONE_BLOCK


@dataclass(frozen=True, slots=True)
class Subject:
    """A model with a cache for some sequences."""

    name: str
    runner: CudaRunner
    stock: StockRun
    vocabulary_size: int
    weights_bytes: int
    """What a step has to read; of the embedding it reads a few rows, unless it is the head too."""
    cache: CacheForm
    num_sequences: int

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.cache.block_size

    @property
    def num_blocks(self) -> int:
        """Blocks in all."""
        return self.num_sequences * self.cache.num_blocks

    def span(self, sequence: int, start: int, token_ids: tuple[int, ...], num_logits: int) -> Span:
        """Rows of one of the sequences, whose blocks lie apart."""
        blocks = range(sequence, self.num_blocks, self.num_sequences)
        return Span(token_ids, start, tuple(blocks), num_logits, 1)

    def step(self, *spans: Span) -> Step:
        """A step over some of the sequences."""
        return Step(spans, self.block_size)

    def token_ids(self, sequence: int, first: int, last: int) -> tuple[int, ...]:
        """Some tokens of a sequence, the same at every call."""
        return tuple(
            (7919 * place + 104729 * sequence) % self.vocabulary_size
            for place in range(first, last)
        )


def build_subject(
    name: str, device: torch.device, cache: CacheForm, num_sequences: int = 16
) -> Subject:
    """Makes a model and takes its weights. Its cache is yet to be allocated."""
    torch.manual_seed(0)
    config = LlamaConfig(
        **SHAPES[name],
        max_position_embeddings=8192,
        tie_word_embeddings=name in _TIED,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    )
    with device:
        network = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    network.eval().requires_grad_(False)
    embedding = 0 if name in _TIED else network.model.embed_tokens.weight.nbytes
    weights_bytes = sum(p.nbytes for p in network.parameters()) - embedding
    stock = run_stock(network, config.vocab_size, is_quantized=False)
    if cache.num_blocks == 1:
        stock = replace(stock, block_size=cache.block_size)
    decoder = take_decoder(network, by_place=False)
    runner = CudaRunner(decoder, config.vocab_size, cache.kernel)
    return Subject(name, runner, stock, config.vocab_size, weights_bytes, cache, num_sequences)
