"""What tokens a model speaks, read without its weights, and whether a draft's fit a target's.

Ids are compared by content: rows of a padded head do not count, and either side may have ids that
the other one lacks (tokens added to one of them), but an id that both have must mean the same
text. Knows no network and no service.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paceline.engine import tokenizer_archive
from paceline.engine.coupling import NOISE_VERSION
from paceline.engine.model_source import find_source
from paceline.engine.table_model import TABLE_PREFIX, load_table
from paceline.engine.table_tokenizer import build_tokenizer
from paceline.errors import FailedPrecondition
from paceline.records import ModelIdentity

_UNLIMITED = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ModelTokens:
    """The tokens of one model."""

    name: str
    texts: dict[int, str]
    """Text of every id, as the tokenizer writes it."""
    eos_token_ids: tuple[int, ...]
    fingerprint: str
    """Of the tokenizer."""
    archive: bytes
    """A zip; see tokenizer_archive.py."""

    @property
    def vocabulary_size(self) -> int:
        """One more than the largest id."""
        return max(self.texts) + 1

    def identity(self) -> ModelIdentity:
        """Who speaks these tokens without being a model: it has no weights and no limit."""
        return ModelIdentity(
            name=self.name,
            fingerprint="",
            tokenizer_fingerprint=self.fingerprint,
            vocabulary_size=self.vocabulary_size,
            eos_token_ids=self.eos_token_ids,
            max_length=_UNLIMITED,
            dtype="",
            noise_version=NOISE_VERSION,
        )


def read_tokens(
    name: str, cache_dir: Path, progress: Callable[[str], None], target: str = ""
) -> ModelTokens:
    """Reads the tokens of the model of that name; a distilled draft has those of its `target`.

    Raises:
        NotFound, InvalidArgument, FailedPrecondition: As `models.load`.
    """
    if name.startswith(TABLE_PREFIX):
        table = load_table(Path(name.removeprefix(TABLE_PREFIX)))
        tokenizer = build_tokenizer(table)
        ends: tuple[int, ...] = () if table.eos_token_id is None else (table.eos_token_id,)
    else:
        files, _ = find_source(name, cache_dir, progress, target)
        tokenizer = files.read_tokenizer()
        ends = files.read_ends(tokenizer)
    return ModelTokens(
        name,
        {token_id: text for text, token_id in tokenizer.get_vocab().items()},
        ends,
        tokenizer_archive.fingerprint_tokenizer(tokenizer),
        tokenizer_archive.pack(tokenizer),
    )


def check_tokens(draft: ModelTokens, target: ModelTokens, *, maps_ends: bool) -> None:
    """Lets a draft propose to a target.

    Args:
        draft: The draft's tokens.
        target: The target's tokens.
        maps_ends: Whether other end-of-sequence ids are no fault: the target's then end a
            generation.

    Raises:
        FailedPrecondition: An id means two things, or they end otherwise; both sides are printed.
    """
    for token_id in sorted(draft.texts.keys() & target.texts.keys()):
        ours, theirs = draft.texts[token_id], target.texts[token_id]
        if ours != theirs:
            raise _refusal(draft, target, f"id {token_id} is {ours!r} there and {theirs!r} here")
    ours_end, theirs_end = sorted(set(draft.eos_token_ids)), sorted(set(target.eos_token_ids))
    if ours_end != theirs_end and not maps_ends:
        raise _refusal(
            draft,
            target,
            f"end-of-sequence ids are {ours_end} there and {theirs_end} here;"
            " map_ends takes the target's",
        )


def _refusal(draft: ModelTokens, target: ModelTokens, message: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"draft {draft.name!r} does not fit target {target.name!r}: {message}",
        reason="DRAFT_MISMATCH",
        metadata={"draft": draft.name, "target": target.name},
    )
