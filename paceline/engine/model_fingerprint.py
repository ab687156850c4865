"""The fingerprint of a loaded model: equal means that two replicas compute the same.

Weights are sampled, evenly over every parameter, so that it takes a fraction of a second for any
size and still tells a fine-tune from its base. Knows no names and no files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

import torch
from transformers import PreTrainedModel

from paceline.engine.constraint import LIBRARY_VERSION
from paceline.engine.coupling import NOISE_VERSION
from paceline.engine.table_model import TableModel

_RULES_VERSION = f"rules=1 noise={NOISE_VERSION} constraints={LIBRARY_VERSION}"
"""Versions of what this build computes: verification rules, shared noise, masks of constraints."""
_SAMPLES_PER_PARAMETER = 4096
# What a configuration says about its writer, not about the computation.
_BYSTANDERS = ("_name_or_path", "transformers_version", "torch_dtype", "dtype", "architectures")


def fingerprint_network(
    network: PreTrainedModel,
    *,
    dtype: str,
    quantization: str,
    tokenizer_archive: bytes,
    numerics: str = "",
) -> str:
    """Digests configuration, weights as loaded (before quantization), tokenizer and versions.

    `numerics` says what decides the last bits, where equal bits are promised; else it is empty.
    """
    config = {
        key: value for key, value in network.config.to_dict().items() if key not in _BYSTANDERS
    }
    digest = hashlib.sha256()
    for part in (
        _RULES_VERSION,
        dtype,
        quantization,
        numerics,
        json.dumps(config, sort_keys=True, default=str),
        hashlib.sha256(tokenizer_archive).hexdigest(),
    ):
        digest.update(f"{len(part)} {part}\n".encode())
    for name, parameter in network.named_parameters():
        digest.update(f"{name} {tuple(parameter.shape)}\n".encode())
        for tensor in _plain_tensors(parameter.detach()):
            digest.update(_sample(tensor))
    return digest.hexdigest()


def fingerprint_table(table: TableModel, tokenizer_archive: bytes) -> str:
    """Digests a scripted model: its laws, when each applies, and its tokenizer."""
    rows = (table.position_rows, sorted(table.suffix_rows.items()))
    digest = hashlib.sha256(f"{_RULES_VERSION} {rows}\n".encode())
    digest.update(table.logits.numpy().tobytes())
    digest.update(tokenizer_archive)
    return digest.hexdigest()


def _plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """What a quantization library's tensor is made of; of any other, itself."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for name in names:
        yield from _plain_tensors(getattr(tensor, name))


def _sample(parameter: torch.Tensor) -> bytes:
    """Takes evenly spread elements; an odd stride does not stay in a few columns."""
    stride = (parameter.numel() // _SAMPLES_PER_PARAMETER) | 1
    sample = parameter.reshape(-1)[::stride].contiguous().cpu()
    return sample.view(torch.uint8).numpy().tobytes()
