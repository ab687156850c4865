"""Reads a distilled draft: a few layers of its own, and everything else from its target.

A directory with `draft.json` (what it was made for) and `draft.safetensors`: the layers and the
last norm in half precision, and the ids that its head scores. Embeddings, the head's rows and the
tokenizer are the target's. Knows no names: both locations are given.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from paceline.engine.model_files import ModelFiles
from paceline.engine.reduced_head import ReducedHead
from paceline.engine.tokenizer_archive import fingerprint_tokenizer
from paceline.errors import FailedPrecondition

_RECIPE, _WEIGHTS, _HEAD_IDS = "draft.json", "draft.safetensors", "head_ids"
_OWN = ("model.layers.", "model.norm.")
"""Where the names of a draft's own parameters begin."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a draft is made of."""

    target: str
    """Name of the model that it was distilled from, for people."""
    tokenizer: str
    """Fingerprint of that model's tokenizer; see tokenizer_archive.py."""
    layers: tuple[int, ...]
    """The layers of the target that the draft's began as."""

    def reduce(self, config: PreTrainedConfig) -> PreTrainedConfig:
        """Turns the target's configuration, which it uses up, into the draft's."""
        config.num_hidden_layers = len(self.layers)
        if getattr(config, "layer_types", None):
            config.layer_types = [config.layer_types[layer] for layer in self.layers]
        return config


def is_draft(directory: Path) -> bool:
    """Whether a directory holds a distilled draft."""
    return (directory / _RECIPE).is_file()


def own_parameters(network: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are a draft's own, by name."""
    return {name: one for name, one in network.named_parameters() if name.startswith(_OWN)}


def write_draft(
    directory: Path, recipe: Recipe, parameters: Mapping[str, torch.Tensor], head_ids: torch.Tensor
) -> None:
    """Writes a draft; of a reader beside it, each file is whole."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name: one.detach().half().cpu().contiguous() for name, one in parameters.items()}
    aside = directory / f".{_WEIGHTS}"
    save_file({**tensors, _HEAD_IDS: head_ids.int().cpu()}, aside)
    aside.rename(directory / _WEIGHTS)
    aside = directory / f".{_RECIPE}"
    aside.write_text(json.dumps(asdict(recipe), indent=2) + "\n")
    aside.rename(directory / _RECIPE)


@dataclass(frozen=True, slots=True)
class DraftFiles:
    """A distilled draft and its target; reads like `ModelFiles`."""

    directory: Path
    target: ModelFiles

    def read_config(self) -> PreTrainedConfig:
        """Reads the target's configuration, with the draft's layers.

        Raises:
            NotFound, FailedPrecondition: as `ModelFiles.read_config`; also for a damaged recipe.
        """
        config = self.target.read_config()
        recipe = self._read_recipe()
        num_layers = config.num_hidden_layers
        if not all(layer < num_layers for layer in recipe.layers):
            raise self._refusal(f"it has layers {recipe.layers} of {num_layers}")
        return recipe.reduce(config)

    def read_tokenizer(self) -> PreTrainedTokenizerBase:
        """Reads the target's tokenizer.

        Raises:
            NotFound: there is none.
            FailedPrecondition: it is not the one that the draft was made for.
        """
        tokenizer = self.target.read_tokenizer()
        if fingerprint_tokenizer(tokenizer) != self._read_recipe().tokenizer:
            raise self._refusal("its ids mean other tokens", reason="TOKENIZER_MISMATCH")
        return tokenizer

    def read_ends(self, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
        """Reads the ids that end a generation: the target's."""
        return self.target.read_ends(tokenizer)

    def read_network(self, config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
        """Reads the weights onto the CPU, in eval mode and without gradients.

        Raises:
            NotFound: the target has none.
            FailedPrecondition: those of one of the two are damaged, absent or of another shape.
        """
        network = self.target.read_network(config, dtype)
        try:
            tensors = load_file(self.directory / _WEIGHTS)
        except (OSError, SafetensorError) as error:
            raise self._damage(f"cannot be read: {error}") from error
        head_ids = tensors.pop(_HEAD_IDS, torch.empty(0)).long()
        self._check_head(head_ids, network.get_output_embeddings().out_features)
        own = own_parameters(network)
        wrong = sorted(tensors.keys() ^ own.keys())
        if wrong:
            raise self._damage(f"are absent or too many: {_some(wrong)}")
        wrong = [name for name, one in own.items() if tensors[name].shape != one.shape]
        if wrong:
            raise self._refusal(f"these are of another shape: {_some(wrong)}")
        for name, parameter in own.items():
            parameter.copy_(tensors[name])
        network.lm_head = ReducedHead(
            pick_rows(network.lm_head, head_ids), head_ids, config.vocab_size
        )
        return network

    def _read_recipe(self) -> Recipe:
        try:
            fields = json.loads((self.directory / _RECIPE).read_text(encoding="utf-8"))
            return Recipe(str(fields["target"]), str(fields["tokenizer"]), tuple(fields["layers"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._damage(f"have no readable {_RECIPE}: {error!r}") from error

    def _check_head(self, head_ids: torch.Tensor, num_rows: int) -> None:
        if len(head_ids) == 0:
            raise self._damage(f"lack {_HEAD_IDS}, the ids that its head scores")
        is_ascending = bool((head_ids.diff() > 0).all())
        if not is_ascending or head_ids[0] < 0 or head_ids[-1] >= num_rows:
            raise self._damage(f"have {_HEAD_IDS} that do not ascend in [0, {num_rows})")

    def _refusal(self, why: str, reason: str = "DRAFT_NOT_OF_TARGET") -> FailedPrecondition:
        return FailedPrecondition(
            f"the draft in {self.directory} was made for {self._read_recipe().target}, not for"
            f" {self.target.location}: {why}",
            reason=reason,
        )

    def _damage(self, why: str) -> FailedPrecondition:
        return FailedPrecondition(
            f"the draft in {self.directory} is damaged: its files {why}",
            reason="WEIGHTS_INCOMPLETE",
        )


def pick_rows(head: nn.Linear, token_ids: torch.Tensor) -> nn.Linear:
    """A head of some rows of another, frozen."""
    rows = nn.Linear(
        head.in_features, len(token_ids), head.bias is not None, dtype=head.weight.dtype
    )
    rows.weight.data = head.weight.detach()[token_ids]
    if head.bias is not None:
        rows.bias.data = head.bias.detach()[token_ids]
    return rows.requires_grad_(False)


def _some(names: Sequence[str]) -> str:
    return f"{', '.join(names[:5])} ({len(names)} in all)"
