"""Whether a draft and a target fit one another; the gateway and the draft tier ask."""

from __future__ import annotations

from paceline.errors import FailedPrecondition
from paceline.records import ModelIdentity, VerificationRule


def check_pair(
    draft: ModelIdentity | None, target: ModelIdentity, rule: VerificationRule | None = None
) -> None:
    """Lets a draft and a target work together; a source without a model fits every target.

    Head sizes may differ: what counts is what the ids of the tokenizer mean, which of them end a
    generation and, where the rule is the coupled one, that both draw from the same noise.

    Raises:
        FailedPrecondition: they differ; both sides are printed.
    """
    if draft is None:
        return
    if differences := _differences(draft, target, rule):
        raise FailedPrecondition(
            f"draft {draft.name!r} does not fit target {target.name!r}: " + "; ".join(differences),
            reason="DRAFT_MISMATCH",
            metadata={"draft": draft.name, "target": target.name},
        )


def fits(
    draft: ModelIdentity | None, target: ModelIdentity, rule: VerificationRule | None = None
) -> bool:
    """Whether `check_pair` would let them work together."""
    return draft is None or not _differences(draft, target, rule)


def _differences(
    draft: ModelIdentity, target: ModelIdentity, rule: VerificationRule | None
) -> list[str]:
    """What differs, with both sides."""
    compared: list[tuple[str, object, object]] = [
        ("tokenizer", draft.tokenizer_fingerprint, target.tokenizer_fingerprint),
        ("vocabulary size", draft.vocabulary_size, target.vocabulary_size),
        ("end-of-sequence ids", _ends(draft), _ends(target)),
    ]
    if rule is VerificationRule.COUPLED:
        compared.append(("noise version", draft.noise_version, target.noise_version))
    return [
        f"{what}: draft {ours!r}, target {theirs!r}"
        for what, ours, theirs in compared
        if ours != theirs
    ]


def _ends(model: ModelIdentity) -> list[int]:
    return sorted(set(model.eos_token_ids))
