"""Converts a GGUF file, once, into a directory that loads fast: safetensors in float32.

Reading a GGUF file through transformers takes tens of seconds, the converted directory two. The
conversion is safe against crashes (written aside, then renamed) and against two processes that
start at once (a file lock; the second waits). Knows no model names.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from paceline.engine.model_files import ModelFiles

_FORMAT_VERSION = 1
"""Part of the digest: raise it when the same file is to be converted anew."""
_SAMPLE_BYTES = 1 << 16
_NUM_SAMPLES = 64


def convert(path: Path, label: str, cache_dir: Path, progress: Callable[[str], None]) -> Path:
    """Converts `path` unless that was done before.

    Args:
        path: The GGUF file.
        label: Start of the directory's name, for people.
        cache_dir: Where converted models live; made if absent.
        progress: Told what takes long.

    Returns:
        The directory with weights, configuration and tokenizer.

    Raises:
        FailedPrecondition: The file is damaged or holds what is not served.
    """
    directory = cache_dir / f"{label}-{_digest(path)}"
    if directory.is_dir():
        return directory
    cache_dir.mkdir(parents=True, exist_ok=True)
    with _lock(cache_dir / f".{directory.name}.lock", label, progress):
        if not directory.is_dir():
            progress(f"converting {path.name}, once, to {directory} (about 20 s for a small model)")
            _write(path, directory, progress)
    return directory


def _write(path: Path, directory: Path, progress: Callable[[str], None]) -> None:
    files = ModelFiles(str(path.parent), gguf_file=path.name)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".converting-") as parent:
        aside = Path(parent, "model")
        # The reader draws its own progress bars, on standard error, whatever it is told.
        with contextlib.redirect_stderr(io.StringIO()):
            config = files.read_config()
            tokenizer = files.read_tokenizer()
            progress("converted the tokenizer, reading the weights")
            network = files.read_network(config, torch.float32)
        # The weights are plain tensors now, but transformers would refuse to save them as "GGUF".
        network.hf_quantizer = None
        if hasattr(network.config, "quantization_config"):
            del network.config.quantization_config
        progress("writing the converted weights")
        network.save_pretrained(aside)
        tokenizer.save_pretrained(aside)
        aside.rename(directory)


@contextlib.contextmanager
def _lock(path: Path, label: str, progress: Callable[[str], None]) -> Iterator[None]:
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"another process is converting {label}, waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _digest(path: Path) -> str:
    """Digests size and evenly spread samples: reading all of a large file takes too long."""
    size = path.stat().st_size
    digest = hashlib.sha256(f"{_FORMAT_VERSION} {size}\n".encode())
    with path.open("rb") as file:
        for index in range(_NUM_SAMPLES):
            file.seek(max(0, size - _SAMPLE_BYTES) * index // (_NUM_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]
