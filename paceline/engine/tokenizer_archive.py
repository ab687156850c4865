"""Packs a tokenizer into one zip, so that the verify tier can hand it to the gateway.

Equal tokenizers give equal bytes: names are sorted, times are fixed, and nothing is compressed,
since compressors differ between builds. Unpacking is the gateway's. Knows no model.
"""

from __future__ import annotations

import hashlib
import io
import json
import tempfile
import zipfile
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from paceline.errors import FailedPrecondition

_ORIGIN_KEYS = frozenset({"is_local", "local_files_only"})
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip can hold."""


def pack(tokenizer: PreTrainedTokenizerBase) -> bytes:
    """Writes the tokenizer's files, as `save_pretrained` names them, into a zip.

    Raises:
        FailedPrecondition: The tokenizer has no tokenizer.json, so the gateway could not load it.
    """
    buffer = io.BytesIO()
    with tempfile.TemporaryDirectory() as directory, zipfile.ZipFile(buffer, "w") as archive:
        tokenizer.save_pretrained(directory)
        _forget_origin(Path(directory, "tokenizer_config.json"))
        files = sorted(path for path in Path(directory).rglob("*") if path.is_file())
        for path in files:
            name = path.relative_to(directory).as_posix()
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), path.read_bytes())
        if "tokenizer.json" not in archive.namelist():
            raise FailedPrecondition(
                f"{type(tokenizer).__name__} cannot be written as tokenizer.json",
                reason="TOKENIZER_NOT_SUPPORTED",
            )
    return buffer.getvalue()


def _forget_origin(path: Path) -> None:
    """Drops what only says how the tokenizer came to this machine: it must not count."""
    config = json.loads(path.read_text(encoding="utf-8"))
    config = {key: value for key, value in config.items() if key not in _ORIGIN_KEYS}
    path.write_text(json.dumps(config, indent=2, sort_keys=True), encoding="utf-8")


def fingerprint_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    """Digests which id means which token: equal fingerprints mean that ids mean the same."""
    digest = hashlib.sha256()
    for token, token_id in sorted(tokenizer.get_vocab().items(), key=lambda item: item[::-1]):
        digest.update(f"{token_id} {len(token)} {token}\n".encode())
    return digest.hexdigest()


def vocabulary_size(tokenizer: PreTrainedTokenizerBase) -> int:
    """Number of ids that can occur: one more than the largest, not the rows of a padded head."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    return max(vocabulary.values()) + 1
