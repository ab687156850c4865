"""The settings of the verify tier."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from paceline.tier import EngineConfig


class VerifyConfig(EngineConfig):
    """Settings of one verify replica."""

    section: ClassVar[str] = "verify"

    model: str = Field(
        default="smollm2",
        min_length=1,
        description="the target: a built-in name, directory, hub id, GGUF file or table:FILE",
    )
    audit_share: float = Field(
        default=0.02,
        ge=0,
        le=1,
        description="share of rounds whose tokens are audited against their laws",
    )
