"""The self-test at load: it passes what is right, and refuses by name what is silently wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from paceline.engine.attention import AttentionCall, CpuRows
from paceline.engine.model_runner import NetworkRunner
from paceline.engine.quantization import quantize_int8_per_row
from paceline.engine.self_test import check_against_stock, run_stock
from paceline.errors import FailedPrecondition

BuildNetwork = Callable[..., PreTrainedModel]
Attend = Callable[[CpuRows, AttentionCall], torch.Tensor]

VOCABULARY = 500
attend: Attend = CpuRows.attend


def check(network: PreTrainedModel, *, is_quantized: bool = False) -> None:
    """Runs the self-test as loading does."""
    stock = run_stock(network, VOCABULARY, is_quantized=is_quantized)
    check_against_stock(NetworkRunner(network, VOCABULARY), stock)


@pytest.mark.parametrize(
    ("model_type", "settings"),
    [
        ("llama", {}),
        ("llama", {"max_position_embeddings": 24}),
        ("qwen2", {}),
        ("qwen3", {}),
        ("mistral", {"sliding_window": 7}),
        ("gemma3_text", {"layer_types": ["sliding_attention", "full_attention"]}),
        ("mixtral", {"num_local_experts": 2}),
        ("gpt2", {"n_layer": 2, "n_head": 4, "n_embd": 64, "n_positions": 64}),
    ],
)
def test_right_networks_pass(
    tiny_network: BuildNetwork, model_type: str, settings: dict[str, Any]
) -> None:
    """What the paged cache serves passes, also with a short context."""
    check(tiny_network(model_type, **settings))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_passes(tiny_network: BuildNetwork, dtype: torch.dtype) -> None:
    """Rounding of a lower dtype is within the tolerance of that dtype."""
    check(tiny_network("llama").to(dtype))


def test_quantized_network_passes(tiny_network: BuildNetwork) -> None:
    """B18: int8 linears per row compute the same through the cache, up to their rounding."""
    network = tiny_network("llama")
    quantize_int8_per_row(network)
    check(network, is_quantized=True)


def leak(rows: CpuRows, call: AttentionCall) -> torch.Tensor:
    """Every sequence but the first sees the first one's output too."""
    output = attend(rows, call)
    return torch.cat([output[:1], output[1:] + 0.5 * output[:1]])


def forget(rows: CpuRows, call: AttentionCall) -> torch.Tensor:
    """A row sees itself alone: state of earlier chunks is lost."""
    groups = call.query.shape[0] // call.value.shape[0]
    return call.value.repeat_interleave(groups, dim=0).transpose(0, 1)


def see_ahead(rows: CpuRows, call: AttentionCall) -> torch.Tensor:
    """No causal mask."""
    rows._mask = lambda *_: None  # type: ignore[method-assign]  # broken on purpose
    return attend(rows, call)


@pytest.mark.parametrize("is_quantized", [False, True], ids=["fp32", "int8"])
@pytest.mark.parametrize("wrong", [leak, forget, see_ahead])
def test_wrong_attention_is_refused(
    tiny_network: BuildNetwork, monkeypatch: pytest.MonkeyPatch, wrong: Attend, is_quantized: bool
) -> None:
    """Leaks between sequences, lost chunks and a missing mask: refused, the network named."""
    network = tiny_network("llama")
    if is_quantized:
        quantize_int8_per_row(network)
    monkeypatch.setattr(CpuRows, "attend", wrong)
    with pytest.raises(FailedPrecondition, match="LlamaForCausalLM does not compute the same") as e:
        check(network, is_quantized=is_quantized)
    assert "MODEL_NOT_SUPPORTED" == e.value.reason


@pytest.mark.parametrize(
    ("model_type", "settings"),
    [
        ("mistral", {"sliding_window": 7}),
        ("mistral", {"sliding_window": 60}),
        ("gemma3_text", {"layer_types": ["sliding_attention", "full_attention"]}),
    ],
)
def test_ignored_window_is_refused(
    tiny_network: BuildNetwork,
    monkeypatch: pytest.MonkeyPatch,
    model_type: str,
    settings: dict[str, Any],
) -> None:
    """B51: one of the two sequences is longer than the window, so ignoring it shows."""

    def ignore_window(rows: CpuRows, call: AttentionCall) -> torch.Tensor:
        return attend(
            rows, AttentionCall(call.layer, call.query, call.key, call.value, call.scale, None)
        )

    network = tiny_network(model_type, **settings)
    monkeypatch.setattr(CpuRows, "attend", ignore_window)
    with pytest.raises(FailedPrecondition, match="does not compute the same"):
        check(network)


def test_chunked_attention_in_the_mask_is_refused(tiny_network: BuildNetwork) -> None:
    """Llama 4 keeps its chunking in a mask that the function never sees."""
    network = tiny_network(
        "llama4_text", num_local_experts=2, attention_chunk_size=8, intermediate_size_mlp=96
    )
    with pytest.raises(FailedPrecondition, match="Llama4ForCausalLM does not compute the same"):
        check(network)


def test_a_network_that_is_not_a_number_is_refused(tiny_network: BuildNetwork) -> None:
    """NaN logits compare false with any tolerance, and do not pass."""
    network = tiny_network("llama")
    network.get_output_embeddings().weight.data.fill_(float("nan"))
    with pytest.raises(FailedPrecondition, match="does not compute the same"):
        check(network)
