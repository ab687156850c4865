"""Takes a decoder's weights out of a transformers network, layer by layer.

The network is used up: each layer is dropped once it has been taken, so that the peak is one model
and one layer. Which networks can be taken is decided by their exact class: what these classes
compute is known. Knows no step and no cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import (
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from paceline.engine.lean.decoder import Decoder, HeadShape, Layer
from paceline.engine.lean.kernels import WIDE, Kernels
from paceline.engine.lean.linear import Gate, Matrix, is_repacked
from paceline.engine.native import attend
from paceline.engine.quantization import PackedInt8Linear, PlainInt8Linear
from paceline.engine.reduced_head import ReducedHead

_CLASSES = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
_ACTIVATIONS = ("silu", "swish")
_LINEARS = (nn.Linear, PackedInt8Linear, PlainInt8Linear)
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def serves(network: PreTrainedModel, *, exactly: bool = False) -> bool:
    """Whether `take_decoder` can take this network: its class, activation, rotation and layers.

    Exactly, so that a row's bits do not depend on the rows beside it, wants heads of whole vectors.
    """
    return (
        network.device.type in ("cpu", "meta")
        and _has_layers(network, _LINEARS)
        and (attend.serves(_head_shape(network).dim) or not exactly)
    )


def serves_on_cuda(network: PreTrainedModel) -> bool:
    """Whether `take_decoder` can take this network for CUDA: as above, in plain 16-bit numbers."""
    return (
        network.device.type in ("cuda", "meta")
        and network.dtype in (torch.bfloat16, torch.float16)
        and _has_layers(network, (nn.Linear,))
    )


def _has_layers(network: PreTrainedModel, linears: tuple[type[nn.Module], ...]) -> bool:
    if type(network) not in _CLASSES:
        return False
    shape = _head_shape(network)
    projections = [m for n, m in network.named_modules() if n.rpartition(".")[2] in _PROJECTIONS]
    return (
        network.config.hidden_act in _ACTIVATIONS
        and 2 * network.model.rotary_emb.inv_freq.numel() == shape.dim
        and all(
            type(module) in linears and _is_plain(module)
            for module in (*projections, _product(network.lm_head))
        )
    )


def _is_plain(module: nn.Module) -> bool:
    """Whether a matrix is not one of a quantization library's, which are tensors of their own."""
    return type(getattr(module, "weight", None)) in (type(None), torch.Tensor, nn.Parameter)


def copied_bytes(network: PreTrainedModel) -> int:
    """Memory beyond the network's own: a tied head, since its kernel wants another layout.

    The network is one that was not quantized: the copy of a quantized head is its head.
    """
    if not serves(network) or isinstance(network.lm_head, ReducedHead):
        return 0
    if network.lm_head.weight is not network.model.embed_tokens.weight:
        return 0
    head: torch.Tensor = network.lm_head.weight
    return head.nbytes if is_repacked(head) else 0


def take_decoder(
    network: PreTrainedModel, kernels: Kernels = WIDE, *, by_place: bool = True
) -> Decoder:
    """Takes the weights into kernels; the network cannot run afterwards.

    Query heads stand by place in their group and then by key head, as attention on the CPU wants
    them; without `by_place` as they stood, by key head and then by place.
    """
    config, model = network.config, network.model
    shape = _head_shape(network)
    queries = _heads_by_place(shape) if by_place else torch.arange(shape.num_heads)
    layers = []
    for index in range(len(model.layers)):
        window = _window(network, index)
        layers.append(_take_layer(model.layers[index], shape, queries, window, kernels))
        model.layers[index] = nn.Identity()
    return Decoder(
        embedding=model.embed_tokens.weight.detach(),
        layers=tuple(layers),
        norm=model.norm.weight.detach(),
        head=_take_head(network.lm_head, kernels),
        epsilon=float(config.rms_norm_eps),
        shape=shape,
        frequencies=model.rotary_emb.inv_freq.float(),
        turn_scale=float(model.rotary_emb.attention_scaling),
    )


def _product(head: nn.Module) -> Any:
    return head.product if isinstance(head, ReducedHead) else head


def _take_head(head: nn.Module, kernels: Kernels) -> Callable[[torch.Tensor], torch.Tensor]:
    linear = kernels.build_head(Matrix.of(_product(head)))
    if not isinstance(head, ReducedHead):
        return linear
    return ReducedHead(linear, head.token_ids, head.out_features)


def _head_shape(network: PreTrainedModel) -> HeadShape:
    config = network.config
    return HeadShape(
        int(config.num_attention_heads),
        int(config.num_key_value_heads),
        int(network.model.layers[0].self_attn.head_dim),
    )


def _window(network: PreTrainedModel, layer: int) -> int | None:
    """The window of a layer, where each family keeps it. Llama has none, whatever it is told."""
    if type(network) is LlamaForCausalLM:
        return None
    owner = network.config
    if type(network) is not MistralForCausalLM:
        owner = network.model.layers[layer].self_attn
    window: int | None = owner.sliding_window
    return window


def _take_layer(
    module: Any, shape: HeadShape, queries: torch.Tensor, window: int | None, kernels: Kernels
) -> Layer:
    attention, mlp = module.self_attn, module.mlp
    pairs = _pairs_adjacent(shape.dim)
    keys = torch.arange(shape.num_kv_heads)
    outputs = _numbers_of(queries, torch.arange(shape.dim))
    qkv = Matrix.stack(
        (
            Matrix.of(attention.q_proj).pick_rows(_numbers_of(queries, pairs)),
            Matrix.of(attention.k_proj).pick_rows(_numbers_of(keys, pairs)),
            Matrix.of(attention.v_proj),
        )
    )
    gate_up = Matrix.stack((Matrix.of(mlp.gate_proj), Matrix.of(mlp.up_proj)))
    head_norm = None
    if hasattr(attention, "q_norm"):
        query_norm, key_norm = (
            norm.weight.detach()[pairs].expand(count, -1)
            for norm, count in (
                (attention.q_norm, shape.num_heads),
                (attention.k_norm, shape.num_kv_heads),
            )
        )
        head_norm = torch.cat((query_norm, key_norm))
    return Layer(
        attention_norm=module.input_layernorm.weight.detach(),
        qkv=kernels.build_linear(qkv),
        head_norm=head_norm,
        output=kernels.build_linear(Matrix.of(attention.o_proj).pick_columns(outputs)),
        mlp_norm=module.post_attention_layernorm.weight.detach(),
        gate=Gate(kernels.build_linear(gate_up)),
        down=kernels.build_linear(Matrix.of(mlp.down_proj)),
        window=window,
    )


def _pairs_adjacent(dim: int) -> torch.Tensor:
    """Where each number of a rotated head stood: pairs turn together, and stood dim / 2 apart."""
    return torch.arange(dim).view(2, -1).T.reshape(-1)


def _heads_by_place(shape: HeadShape) -> torch.Tensor:
    """Where each query head stood, which were by key head and then by place.

    By place first, the queries of all rows that share a key head are one strided view.
    """
    return torch.arange(shape.num_heads).view(shape.num_kv_heads, -1).T.reshape(-1)


def _numbers_of(heads: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Where each number of some heads stood; `numbers` says it within a head."""
    return (heads[:, None] * len(numbers) + numbers).reshape(-1)
