"""Which configurations are served, and that a refusal names its cause."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from paceline.engine.model_support import check_supported
from paceline.errors import FailedPrecondition


def check(model_type: str, **settings: Any) -> None:
    """Checks the default configuration of a type, with settings of its own."""
    check_supported(CONFIG_MAPPING[model_type](**settings))


@pytest.mark.parametrize(
    "model_type",
    ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "gemma3", "phi3", "gpt2"],
)
def test_attention_models_are_served(model_type: str) -> None:
    """Decoder-only models of full and sliding attention pass."""
    check(model_type)


@pytest.mark.parametrize(
    ("model_type", "cause"),
    [
        ("t5", "encoder-decoder"),
        ("whisper", "encoder-decoder"),
        ("bert", "encoder"),
        ("vit", "not a causal language model"),
        ("mamba", "'linear_attention'"),
        ("mamba2", "'linear_attention'"),
        ("falcon_mamba", "'linear_attention'"),
        ("jamba", "'linear_attention'"),
        ("recurrent_gemma", "'linear_attention'"),
        ("qwen3_next", "'linear_attention'"),
        ("minimax", "'linear_attention'"),
        ("zamba2", "'hybrid', 'linear_attention'"),
        ("falcon_h1", "'hybrid'"),
        ("rwkv", "rwkv layers are recurrent"),
        ("xlstm", "xlstm layers are recurrent"),
        ("llama4_text", "'chunked_attention'"),
    ],
)
def test_other_models_are_refused_by_layer_type(model_type: str, cause: str) -> None:
    """What cannot be truncated, or is no decoder, is refused with the cause and the type."""
    with pytest.raises(FailedPrecondition, match=cause) as caught:
        check(model_type)
    assert "MODEL_NOT_SUPPORTED" == caught.value.reason
    assert {"model_type": model_type} == caught.value.metadata


def test_layer_types_of_a_served_family_are_read() -> None:
    """One layer of another type in an otherwise plain model is enough to refuse it."""
    check("qwen3", num_hidden_layers=2, layer_types=["full_attention", "sliding_attention"])
    with pytest.raises(FailedPrecondition, match="'chunked_attention' in layer_types"):
        check("qwen3", num_hidden_layers=2, layer_types=["full_attention", "chunked_attention"])


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": 1e4},
        {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
        {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0},
    ],
    ids=lambda rope: str(rope["rope_type"]),
)
def test_fixed_ropes_are_served(rope: dict[str, Any]) -> None:
    """Rotary angles that depend on the position alone pass."""
    check("llama", rope_parameters=rope)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
        {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "short_factor": [1.0] * 64,
            "long_factor": [2.0] * 64,
            "original_max_position_embeddings": 1024,
        },
    ],
    ids=lambda rope: str(rope["rope_type"]),
)
def test_batch_dependent_ropes_are_refused(rope: dict[str, Any]) -> None:
    """Angles that another session's length moves are refused, also per layer type."""
    with pytest.raises(FailedPrecondition, match=f"rope type '{rope['rope_type']}'"):
        check("llama", rope_parameters=rope)
    default = {"rope_type": "default", "rope_theta": 1e4}
    nested = {"full_attention": rope, "sliding_attention": default}
    with pytest.raises(FailedPrecondition, match=f"rope type '{rope['rope_type']}'"):
        check("gemma3_text", head_dim=128, rope_parameters=nested)
