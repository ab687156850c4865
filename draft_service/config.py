"""The settings of the draft tier."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from paceline.tier import EngineConfig


class DraftConfig(EngineConfig):
    """Settings of one draft replica."""

    section: ClassVar[str] = "draft"

    target: str = Field(
        default="smollm2",
        min_length=1,
        description="the target's name, for sources that are made of the target's own weights",
    )
    source: list[str] = Field(
        default=["quantized:int8", "ngram"],
        min_length=1,
        description="sources, the default first: ngram, quantized:int8, or a model's name; may be "
        "given several times",
    )
