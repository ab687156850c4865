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
        description="the target's name, for sources that are made of the target's own weights or "
        "tokenizer; where it is given, the tokens of every other model are compared with its own",
    )
    source: list[str] = Field(
        default=["quantized:int4", "ngram"],
        min_length=1,
        description="sources, the default first: ngram, suffix, grammar, quantized:int4, "
        "quantized:int8, early-exit:N, a model's name, or hybrid:A+B+...; may be given several "
        "times",
    )
    map_ends: bool = Field(
        default=False,
        description="lets a model draft whose end-of-sequence ids differ: the target's count",
    )
    history_tokens: int = Field(
        default=100_000,
        ge=0,
        description="tokens of finished outputs that suffix keeps of each tenant, 8 bytes each",
    )

    @property
    def named_target(self) -> str | None:
        """The target, where the operator named one."""
        return self.target if "target" in self.model_fields_set else None
