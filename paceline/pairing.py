"""Whether a draft and a target speak of the same tokens; the gateway and the draft tier ask."""

from __future__ import annotations

from paceline.errors import FailedPrecondition
from paceline.records import ModelIdentity


def check_pair(draft: ModelIdentity | None, target: ModelIdentity) -> None:
    """Lets a draft and a target work together; a source without a model fits every target.

    Head sizes may differ: what counts is what the ids of the tokenizer mean, and which of them end
    a generation.

    Raises:
        FailedPrecondition: they differ; both sides are printed.
    """
    if draft is None:
        return
    if differences := _differences(draft, target):
        raise FailedPrecondition(
            f"draft {draft.name!r} does not fit target {target.name!r}: " + "; ".join(differences),
            reason="DRAFT_MISMATCH",
            metadata={"draft": draft.name, "target": target.name},
        )


def fits(draft: ModelIdentity | None, target: ModelIdentity) -> bool:
    """Whether `check_pair` would let them work together."""
    return draft is None or not _differences(draft, target)


def _differences(draft: ModelIdentity, target: ModelIdentity) -> list[str]:
    """What differs, with both sides."""
    return [
        f"{what}: draft {ours!r}, target {theirs!r}"
        for what, ours, theirs in (
            ("tokenizer", draft.tokenizer_fingerprint, target.tokenizer_fingerprint),
            ("vocabulary size", draft.vocabulary_size, target.vocabulary_size),
            ("end-of-sequence ids", _ends(draft), _ends(target)),
        )
        if ours != theirs
    ]


def _ends(model: ModelIdentity) -> list[int]:
    return sorted(set(model.eos_token_ids))
