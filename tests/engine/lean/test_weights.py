"""What is taken from a network computes what the network did; what cannot be taken is left."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from paceline.engine.lean.runner import LeanRunner
from paceline.engine.lean.weights import copied_bytes, serves, serves_on_cuda, take_decoder
from paceline.engine.quantization import quantize_int8_per_row
from paceline.engine.step import Span, Step

BuildNetwork = Callable[..., PreTrainedModel]

VOCABULARY = 500
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
QWEN_LAYERS = ["sliding_attention", "full_attention"]
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "tied": ("llama", {"tie_word_embeddings": True}),
    "one head": ("llama", {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64}),
    "one key head": ("llama", {"num_key_value_heads": 1}),
    "no groups": ("llama", {"num_key_value_heads": 4}),
    "wide heads": ("llama", {"head_dim": 32}),
    "large epsilon": ("llama", {"rms_norm_eps": 0.5}),
    "linear rope": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0}},
    ),
    "llama3 rope": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "yarn rope": ("llama", {"rope_parameters": YARN_ROPE}),
    "mistral": ("mistral", {"sliding_window": 7}),
    "mistral without window": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen2 window": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 6, "layer_types": QWEN_LAYERS},
    ),
    "qwen3": ("qwen3", {}),
    "qwen3 biases": ("qwen3", {"attention_bias": True}),
    "qwen3 window": (
        "qwen3",
        {"use_sliding_window": True, "sliding_window": 6, "layer_types": QWEN_LAYERS},
    ),
}


@pytest.fixture(params=list(VARIANTS))
def network(request: pytest.FixtureRequest, tiny_network: BuildNetwork) -> PreTrainedModel:
    """Each variant in turn, with no weight left at the 0 or 1 that it starts from."""
    model_type, settings = VARIANTS[request.param]
    network = tiny_network(model_type, **settings).requires_grad_(False)
    generator = torch.Generator().manual_seed(3)
    for parameter in network.parameters():
        if parameter.dim() == 1:
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return network


def some_ids(length: int) -> list[int]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(1)
    ids: list[int] = torch.randint(VOCABULARY, (length,), generator=generator).tolist()
    return ids


@torch.inference_mode()
def run_stock(network: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """Logits [T, V] of the network itself."""
    logits: torch.Tensor = network(torch.tensor([ids]), use_cache=False).logits
    return logits[0, :, :VOCABULARY]


def run_lean(network: PreTrainedModel, ids: list[int], cuts: list[int]) -> torch.Tensor:
    """Logits [T, V] of what was taken from the network, fed in chunks."""
    runner = LeanRunner(take_decoder(network), VOCABULARY)
    table = tuple(reversed(range(-(-len(ids) // 4))))
    runner.allocate(len(table), 4)
    parts = []
    for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        span = Span(tuple(ids[start:end]), start, table, end - start, len(ids))
        parts.append(runner.run(Step((span,), 4)))
    return torch.cat(parts)


@pytest.mark.parametrize("cuts", [[], [20, 21, 26]], ids=["whole", "chunks"])
def test_taken_weights_compute_the_same(network: PreTrainedModel, cuts: list[int]) -> None:
    """B70: biases, head norms, windows, tied heads and every rope, in chunks of 1 to 20 rows."""
    ids = some_ids(45)
    assert serves(network)
    expected = run_stock(network, ids)
    torch.testing.assert_close(expected, run_lean(network, ids, cuts), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("has_kernel", [True, False], ids=["kernel", "plain"])
def test_int8_computes_the_same(
    network: PreTrainedModel, monkeypatch: pytest.MonkeyPatch, has_kernel: bool
) -> None:
    """B18: fused int8 matrices give what the int8 modules give, up to a level of rounding."""
    if not has_kernel:
        monkeypatch.setattr("paceline.engine.quantization.has_packed_kernel", lambda: False)
    quantize_int8_per_row(network)
    ids = some_ids(30)
    expected = run_stock(network, ids)
    got = run_lean(network, ids, [17, 18])
    assert float((expected - got).norm() / expected.norm()) < 0.02


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_half_precision_computes_the_same(
    tiny_network: BuildNetwork, model_type: str, dtype: torch.dtype
) -> None:
    """Lower types run lean too, through stock products; logits are float32."""
    network = tiny_network(model_type).to(dtype)
    ids = some_ids(30)
    expected = run_stock(network, ids).float()
    got = run_lean(network, ids, [17, 18])
    assert torch.float32 == got.dtype
    assert float((expected - got).norm() / expected.norm()) < 0.03


def test_network_is_used_up(tiny_network: BuildNetwork) -> None:
    """A layer is dropped as soon as it has been taken."""
    network = copy.deepcopy(tiny_network("llama"))
    take_decoder(network)
    assert [nn.Identity, nn.Identity] == [type(layer) for layer in network.model.layers]


@pytest.mark.parametrize(
    ("model_type", "settings"),
    [
        ("mixtral", {"num_local_experts": 2}),
        ("gemma3_text", {"layer_types": QWEN_LAYERS}),
        ("gpt2", {"n_layer": 2, "n_head": 4, "n_embd": 64, "n_positions": 64}),
        ("llama", {"hidden_act": "gelu"}),
    ],
)
def test_others_are_left_alone(
    tiny_network: BuildNetwork, model_type: str, settings: dict[str, Any]
) -> None:
    """Another class, or another activation, is not taken."""
    assert not serves(tiny_network(model_type, **settings))


def test_subclass_is_left_alone(tiny_network: BuildNetwork) -> None:
    """What a subclass computes is not known."""
    network = tiny_network("llama")
    network.__class__ = type("Custom", (type(network),), {})
    assert not serves(network)


def test_foreign_linear_is_left_alone(tiny_network: BuildNetwork) -> None:
    """A network whose projections are of another library's kind is not taken."""
    network = tiny_network("llama")
    projection = network.model.layers[1].mlp.down_proj
    network.model.layers[1].mlp.down_proj = nn.Sequential(projection)
    assert not serves(network)


def test_partial_rotation_is_left_alone(tiny_network: BuildNetwork) -> None:
    """A network that rotates only a part of each head is not taken."""
    network = tiny_network("llama")
    network.model.rotary_emb.inv_freq = network.model.rotary_emb.inv_freq[:4]
    assert not serves(network)


def test_only_a_tied_float32_head_is_copied(tiny_network: BuildNetwork) -> None:
    """B89: the memory plan knows of the one matrix that is kept twice."""
    tied = tiny_network("llama", tie_word_embeddings=True)
    assert 520 * 64 * 4 == copied_bytes(tied)
    assert 0 == copied_bytes(tiny_network("llama", tie_word_embeddings=False))
    assert 0 == copied_bytes(tied.to(torch.bfloat16))
    assert 0 == copied_bytes(tiny_network("gemma3_text", layer_types=QWEN_LAYERS))


@pytest.mark.parametrize(
    ("model_type", "dtype", "expected"),
    [
        ("llama", torch.bfloat16, True),
        ("qwen3", torch.float16, True),
        ("llama", torch.float32, False),
        ("mixtral", torch.bfloat16, False),
    ],
)
def test_what_cuda_serves(
    tiny_network: BuildNetwork, model_type: str, dtype: torch.dtype, expected: bool
) -> None:
    """The same family in 16 bits, which is what the paged kernel takes."""
    network = tiny_network(model_type).to("meta", dtype)
    assert expected == serves_on_cuda(network)
    assert not serves_on_cuda(tiny_network(model_type).to(dtype)), "it is on the CPU"


def test_cuda_serves_no_int8(tiny_network: BuildNetwork) -> None:
    """Quantized layers run through transformers there."""
    network = tiny_network("llama").bfloat16()
    quantize_int8_per_row(network)
    assert not serves_on_cuda(network.to("meta"))


def test_query_heads_may_stay_in_order(tiny_network: BuildNetwork) -> None:
    """By place in their group for the CPU, as they stood for CUDA; keys and values are the same."""
    orders = [
        take_decoder(tiny_network("llama").requires_grad_(False).bfloat16(), by_place=by_place)
        for by_place in (True, False)
    ]
    x = torch.eye(64, dtype=torch.bfloat16)
    by_place, as_stood = (decoder.layers[0].qkv(x).view(64, -1, 16) for decoder in orders)
    assert torch.equal(by_place[:, [0, 2, 1, 3]], as_stood[:, :4])
    assert torch.equal(by_place[:, 4:], as_stood[:, 4:])
