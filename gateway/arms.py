"""Comparisons on live traffic: a share of generations runs with another draft or another length.

Which generation belongs to which arm depends on its tenant, or on its own id where it has none, and
on nothing that happens. Whatever the arm, the law of the output is the same, under the coupled rule
the output itself: arms differ in speed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from gateway.request import Generation

CONTROL = "control"
"""The arm of what no other arm takes: it runs with the service's settings."""


class Arm(BaseModel):
    """One arm beside the control."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    share: float = Field(gt=0, le=1, description="share of generations")
    draft_source: str = Field(
        default="", description="source instead of the default; none drafts nothing"
    )
    draft_length: str = Field(
        default="",
        pattern=r"^(|window|cost|fixed:\d{1,2})$",
        description="length instead of the service's; fixed:0 is plain decoding",
    )


def _read(value: Any) -> Any:
    """Flags and variables carry JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value or "{}")
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from None


def _check(arms: Mapping[str, Arm]) -> Mapping[str, Arm]:
    """The arms, if they leave names and shares to the control."""
    if CONTROL in arms or "" in arms:
        raise ValueError(f"the name {CONTROL!r} and the empty one are taken")
    if sum(arm.share for arm in arms.values()) > 1 + 1e-9:
        raise ValueError("the shares add up to more than 1")
    return arms


Arms = Annotated[dict[str, Arm], BeforeValidator(_read), AfterValidator(_check)]
"""Every arm beside the control, by name."""


def assign(generation: Generation, arms: Mapping[str, Arm]) -> Generation:
    """A generation as its arm runs it; as it is without arms, or where its client chose.

    A client that names a source or pins a length gets what it asked for and is compared with none.
    """
    if not arms or generation.draft_source or generation.num_draft_tokens is not None:
        return generation
    place = int(unit(generation), 16) / 2**64
    for name, arm in arms.items():
        if place < arm.share:
            return replace(
                generation, arm=name, draft_source=arm.draft_source, draft_length=arm.draft_length
            )
        place -= arm.share
    return replace(generation, arm=CONTROL)


def unit(generation: Generation) -> str:
    """Who is assigned: a digest of the tenant, or of the generation's own id where it has none.

    16 hexadecimal digits, the same on every gateway.
    """
    key = generation.spec.cache_domain or generation.spec.request_id
    return hashlib.blake2b(key.encode(), digest_size=8, person=b"arms").hexdigest()
