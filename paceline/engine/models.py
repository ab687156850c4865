"""Turns a model's name into a loaded model with its tokenizer and identity.

A name is a built-in name (`smollm2`), a local directory, a GGUF file, a table file
(`table:FILE.json`), a hub id, or a draft that was distilled from a target (`smollm2-draft`, or a
directory); any but a table may be quantized (`quantized:int8:NAME`, `quantized:int4:NAME`), any
but tables and drafts end early (`early-exit:N:NAME`). Knows no cache, no runner and no environment:
where converted models are kept is the caller's to say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from paceline.engine import model_fingerprint, tokenizer_archive
from paceline.engine.coupling import NOISE_VERSION
from paceline.engine.draft_files import DraftFiles
from paceline.engine.lean.numerics import describe_numerics
from paceline.engine.lean.weights import copied_bytes, serves
from paceline.engine.memory_plan import ModelSize, kv_bytes_per_token
from paceline.engine.model_files import ModelFiles, find_eos, stored_quantization
from paceline.engine.model_source import INT4_PER_GROUP, INT8_PER_ROW, find_source
from paceline.engine.quantization import (
    quantize_int8_per_row,
    round_int4_per_group,
    takes_int4,
)
from paceline.engine.table_model import TABLE_PREFIX, TableModel, load_table
from paceline.engine.table_tokenizer import build_tokenizer
from paceline.errors import FailedPrecondition, InvalidArgument
from paceline.records import ModelIdentity

_TABLE_MAX_LENGTH = 4096
_TABLE_KV_BYTES = 8
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a model is loaded."""

    cache_dir: Path
    """Where converted models are kept."""
    dtype: str = "float32"
    """One of "float32", "bfloat16" and "float16"."""
    device: str = "cpu"
    max_length: int = 0
    """Longest sequence in tokens; 0 is the model's own limit, which no number raises."""
    target: str = ""
    """Name of the model that a distilled draft borrows from; others do without."""
    exact: bool = False
    """Whether a row's arithmetic must not depend on the rows that share its step."""

    def __post_init__(self) -> None:
        """Raises InvalidArgument for a value out of range."""
        if self.dtype not in _DTYPES:
            raise InvalidArgument("dtype", f"must be one of {', '.join(_DTYPES)}")
        if self.max_length < 0:
            raise InvalidArgument("max_length", "must not be negative")
        if self.exact and (self.dtype != "float32" or self.device != "cpu"):
            raise InvalidArgument("exact", "takes float32 on the CPU")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run."""

    name: str
    network: PreTrainedModel | TableModel
    """A transformers network in eval mode, without gradients, on its device; or a table."""
    identity: ModelIdentity
    tokenizer_archive: bytes
    """A zip; see tokenizer_archive.py."""


def load(name: str, options: LoadOptions, progress: Callable[[str], None]) -> LoadedModel:
    """Loads a model.

    Args:
        name: See the module's docstring.
        options: How to load it.
        progress: Told, in a line for people, what takes long.

    Raises:
        NotFound: There is no such model.
        InvalidArgument: The name or the table is malformed.
        FailedPrecondition: The engine does not serve this architecture, or not exactly, or files
            do not fit.
    """
    if name.startswith(TABLE_PREFIX):
        return _load_table(name, options)
    files, quantization = _find(name, options, progress)
    config = files.read_config()
    named = _name_quantization(name, config, quantization)
    progress(f"loading {name} in {options.dtype} on {options.device}")
    tokenizer = files.read_tokenizer()
    network = files.read_network(config, _DTYPES[options.dtype]).to(options.device)
    if options.exact:
        _check_exact(network)
    archive = tokenizer_archive.pack(tokenizer)
    identity = ModelIdentity(
        name=name,
        fingerprint=model_fingerprint.fingerprint_network(
            network,
            dtype=options.dtype,
            quantization=named,
            tokenizer_archive=archive,
            numerics=describe_numerics() if options.exact else "",
        ),
        tokenizer_fingerprint=tokenizer_archive.fingerprint_tokenizer(tokenizer),
        vocabulary_size=_check_vocabulary(tokenizer, network),
        # The generation configuration knows best, if it says anything.
        eos_token_ids=find_eos(network.generation_config, network.config, tokenizer),
        max_length=_bound_length(config, options.max_length),
        dtype=options.dtype,
        quantization=named,
        exact=options.exact,
        noise_version=NOISE_VERSION,
    )
    if quantization:
        progress(f"quantizing to {quantization}")
        quantize = round_int4_per_group if quantization == INT4_PER_GROUP else quantize_int8_per_row
        quantize(network)
    return LoadedModel(name, network, identity, archive)


def measure(name: str, options: LoadOptions, progress: Callable[[str], None]) -> ModelSize:
    """Says what a model will take, before its weights are read.

    A model to be quantized is measured as it is read: that is its peak.

    Raises:
        NotFound, InvalidArgument, FailedPrecondition: As `load`.
    """
    if name.startswith(TABLE_PREFIX):
        table = load_table(Path(name.removeprefix(TABLE_PREFIX)))
        row_bytes = len(table.alphabet) * torch.float32.itemsize
        return ModelSize(table.logits.nbytes, _TABLE_KV_BYTES, row_bytes)
    files, quantization = _find(name, options, progress)
    config = files.read_config()
    itemsize = _DTYPES[options.dtype].itemsize
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(config, dtype=_DTYPES[options.dtype])
    is_copied = options.device == "cpu" and not quantization
    text = config.get_text_config(decoder=True)
    num_heads = text.num_attention_heads
    return ModelSize(
        weights_bytes=sum(p.nbytes for p in network.parameters())
        + (copied_bytes(network) if is_copied else 0),
        kv_bytes_per_token=kv_bytes_per_token(
            num_layers=text.num_hidden_layers,
            num_kv_heads=getattr(text, "num_key_value_heads", None) or num_heads,
            head_dim=getattr(text, "head_dim", None) or text.hidden_size // num_heads,
            itemsize=itemsize,
        ),
        # Logits once as computed and once in float32, and the widest layer's activations.
        workspace_bytes_per_row=text.vocab_size * (itemsize + torch.float32.itemsize)
        + 8 * itemsize * max(text.hidden_size, getattr(text, "intermediate_size", None) or 0),
    )


def find_max_length(name: str, options: LoadOptions, progress: Callable[[str], None]) -> int:
    """Says how long a sequence may be, in tokens, before the weights are read.

    Raises:
        NotFound, InvalidArgument, FailedPrecondition: As `load`.
    """
    if name.startswith(TABLE_PREFIX):
        return options.max_length or _TABLE_MAX_LENGTH
    return _bound_length(_find(name, options, progress)[0].read_config(), options.max_length)


def _load_table(name: str, options: LoadOptions) -> LoadedModel:
    table = load_table(Path(name.removeprefix(TABLE_PREFIX)))
    tokenizer = build_tokenizer(table)
    archive = tokenizer_archive.pack(tokenizer)
    identity = ModelIdentity(
        name=name,
        fingerprint=model_fingerprint.fingerprint_table(table, archive),
        tokenizer_fingerprint=tokenizer_archive.fingerprint_tokenizer(tokenizer),
        vocabulary_size=len(table.alphabet),
        eos_token_ids=() if table.eos_token_id is None else (table.eos_token_id,),
        max_length=options.max_length or _TABLE_MAX_LENGTH,
        dtype="float32",
        exact=options.exact,
        noise_version=NOISE_VERSION,
    )
    return LoadedModel(name, table, identity, archive)


def _name_quantization(name: str, config: PreTrainedConfig, quantization: str) -> str:
    """How weights are quantized, here or before they were stored; never both."""
    stored = stored_quantization(config)
    if stored and quantization:
        raise FailedPrecondition(f"the weights of {name} are quantized already, by {stored}")
    return quantization or stored


def _check_exact(network: PreTrainedModel) -> None:
    """Refuses networks for which there are no exact kernels."""
    if not serves(network, exactly=True):
        raise FailedPrecondition(
            f"there are no exact kernels for {type(network).__name__} in this form",
            reason="NO_EXACT_KERNELS",
        )


def _find(
    name: str, options: LoadOptions, progress: Callable[[str], None]
) -> tuple[ModelFiles | DraftFiles, str]:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    files, quantization = find_source(name, options.cache_dir, progress, options.target)
    is_draft = isinstance(files, DraftFiles) and not quantization
    if is_draft and options.device == "cpu" and options.dtype == "float32":
        # A draft is there to be fast.
        return files, INT4_PER_GROUP if takes_int4(files.read_config()) else INT8_PER_ROW
    return files, quantization


def _check_vocabulary(tokenizer: PreTrainedTokenizerBase, network: PreTrainedModel) -> int:
    """Number of the tokenizer's ids; every one of them must have a row in the head."""
    size = tokenizer_archive.vocabulary_size(tokenizer)
    num_rows = network.get_output_embeddings().out_features
    if size > num_rows:
        raise FailedPrecondition(
            f"the tokenizer has {size} ids but the head has only {num_rows} rows",
            reason="TOKENIZER_MISMATCH",
        )
    return size


def _bound_length(config: PreTrainedConfig, max_length: int) -> int:
    text = config.get_text_config(decoder=True)
    limit: int = getattr(text, "max_position_embeddings", None) or max_length
    if not limit:
        raise InvalidArgument("max_length", "must be given: the model names no limit of its own")
    return min(limit, max_length or limit)
