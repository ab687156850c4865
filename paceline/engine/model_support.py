"""Which architectures the paged engine serves, judged from the configuration alone.

Refusing here costs nothing: no weight has been read. What a configuration does not show is left
to the runner's self-test. Knows no files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from transformers import PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from paceline.errors import FailedPrecondition

_ATTENTION_LAYERS = frozenset({"attention", "full_attention", "sliding_attention"})
_LAYER_LISTS = ("layer_types", "layers_block_type", "block_types")
# Their angles depend on the longest position in the batch: one session would move another's.
_BATCH_DEPENDENT_ROPES = frozenset({"dynamic", "longrope"})


def check_supported(config: PreTrainedConfig) -> None:
    """Refuses an architecture whose cache cannot be truncated or whose rows are not independent.

    Raises:
        FailedPrecondition: It is not served; the layer type or rope type is named.
    """
    model_type = config.model_type
    if config.is_encoder_decoder:
        raise _refusal(model_type, "it is an encoder-decoder; only decoder-only models are served")
    if getattr(config, "is_decoder", True) is False:
        raise _refusal(model_type, "it is an encoder; only decoder-only models are served")
    text_config = config.get_text_config(decoder=True)
    _check_layers(model_type, text_config)
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if model_class is None:
        raise _refusal(model_type, "it is not a causal language model")
    if getattr(model_class, "_is_stateful", False):
        raise _refusal(
            model_type, f"its {model_type} layers are recurrent, so their state cannot be truncated"
        )
    for rope_type in _find_rope_types(getattr(text_config, "rope_parameters", None)):
        if rope_type in _BATCH_DEPENDENT_ROPES:
            raise _refusal(
                model_type,
                f"rope type {rope_type!r} depends on the longest sequence in the batch",
            )


def _check_layers(model_type: str, config: PreTrainedConfig) -> None:
    for name in _LAYER_LISTS:
        others = set(getattr(config, name, None) or ()) - _ATTENTION_LAYERS
        if others:
            raise _refusal(
                model_type,
                f"layer types {', '.join(map(repr, sorted(others)))} in {name} are not served;"
                " their state cannot be truncated or their mask is not causal alone",
            )


def _find_rope_types(parameters: Mapping[str, Any] | None) -> Iterator[str]:
    """Yields the rope types of a flat table, or of one per layer type."""
    for key, value in (parameters or {}).items():
        if isinstance(value, Mapping):
            yield from _find_rope_types(value)
        elif key in ("rope_type", "type"):
            yield str(value)


def _refusal(model_type: str, message: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"model type {model_type!r} is not served: {message}",
        reason="MODEL_NOT_SUPPORTED",
        metadata={"model_type": model_type},
    )
