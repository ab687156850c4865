"""Reads configuration, tokenizer and weights from files, each failure a named one.

What transformers answers with a traceback, or passes over (absent weights are drawn at random), is
turned into an error that says which model and why. Knows no names: a location is a directory, a
hub id, or the directory of a GGUF file whose name is given too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from paceline.engine.model_support import check_supported
from paceline.errors import FailedPrecondition, InvalidArgument, NotFound


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Files in a form that transformers reads."""

    location: str
    """A directory, or a hub id."""
    gguf_file: str | None = None
    """Name of a GGUF file inside `location`; None for anything else."""
    num_layers: int = 0
    """First layers that are read, for an early exit; 0 reads all."""

    def read_config(self) -> PreTrainedConfig:
        """Reads the configuration and refuses what it shows is not served.

        Raises:
            NotFound: There is none.
            FailedPrecondition: The architecture is unknown or not served.
            InvalidArgument: There are fewer layers than are to be read.
        """
        with self._named_failures("configuration"):
            config = AutoConfig.from_pretrained(self.location, gguf_file=self.gguf_file)
        check_supported(config)
        if self.num_layers:
            _keep_layers(config.get_text_config(decoder=True), self.num_layers)
        return config

    def read_tokenizer(self) -> PreTrainedTokenizerBase:
        """Reads the tokenizer.

        Raises:
            NotFound, FailedPrecondition: There is none, or it cannot be read.
        """
        with self._named_failures("tokenizer"):
            return AutoTokenizer.from_pretrained(self.location, gguf_file=self.gguf_file)

    def read_ends(self, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
        """Reads the ids that end a generation, without the weights."""
        try:
            generation = GenerationConfig.from_pretrained(self.location)
        except OSError:  # most models have none of their own
            generation = None
        return find_eos(generation, self.read_config(), tokenizer)

    def read_network(self, config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
        """Reads the weights onto the CPU, in eval mode and without gradients.

        Raises:
            NotFound: There are none.
            FailedPrecondition: They are damaged, incomplete or of another shape.
        """
        with self._named_failures("weights"):
            network, report = AutoModelForCausalLM.from_pretrained(
                self.location,
                gguf_file=self.gguf_file,
                config=config,
                dtype=dtype,
                output_loading_info=True,
            )
        absent = sorted({*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])})
        if absent:
            raise FailedPrecondition(
                f"{self.location}: weights are absent or of another shape:"
                f" {', '.join(absent[:5])} ({len(absent)} in all)",
                reason="WEIGHTS_INCOMPLETE",
            )
        return network.eval().requires_grad_(False)

    @contextmanager
    def _named_failures(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise NotFound(
                f"{self.location}: no {what} there; it is not a built-in name, a GGUF file, a"
                f" directory with a model, or a hub id that can be fetched from here"
            ) from error
        # Malformed files raise whatever the reader at hand raises, plain Exception included.
        except Exception as error:
            message = (str(error).splitlines() or [type(error).__name__])[0]
            raise FailedPrecondition(
                f"{self.location}: its {what} cannot be read: {message}",
                reason="MODEL_NOT_SUPPORTED",
            ) from error


def find_eos(*owners: object) -> tuple[int, ...]:
    """Ids that end a generation, as the first owner says that says anything."""
    for owner in owners:
        eos = getattr(owner, "eos_token_id", None)
        if eos is not None:
            return tuple(eos) if isinstance(eos, list | tuple) else (eos,)
    return ()


def stored_quantization(config: PreTrainedConfig) -> str:
    """How weights were quantized before they were stored, in transformers' word; else empty."""
    stored = getattr(config, "quantization_config", None)
    return str(stored["quant_method"]) if isinstance(stored, dict) else ""


def _keep_layers(config: PreTrainedConfig, num_layers: int) -> None:
    """Makes a configuration that of its first layers."""
    if num_layers > config.num_hidden_layers:
        raise InvalidArgument(
            "model", f"there are {config.num_hidden_layers} layers, not {num_layers}"
        )
    config.num_hidden_layers = num_layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:num_layers]
