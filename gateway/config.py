"""Settings of the gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from gateway.arms import Arms
from paceline.serving.config import CACHE_DIR, ServerConfig
from paceline.serving.credentials import TlsFiles

Address = Annotated[str, StringConstraints(pattern=r"^.+:\d{1,5}$")]


class GatewayConfig(ServerConfig):
    """Settings of the gateway, on top of those of every server."""

    section: ClassVar[str] = "gateway"

    verify: tuple[Address, ...] = Field(
        min_length=1,
        description="verify replicas, host:port each; every address of a DNS name is one replica",
    )
    draft: tuple[Address, ...] = Field(
        (), description="draft replicas, host:port each; none for plain decoding"
    )
    tier_ca: Path | None = Field(
        None,
        description="PEM file of authorities that signed the tiers' certificates, which must be "
        "for the hosts named in verify and draft; unset: plaintext",
    )
    tier_certificate: Path | None = Field(
        None, description="PEM file with the certificate chain that the tiers are shown, if any"
    )
    tier_key: Path | None = Field(None, description="PEM file with its key, unencrypted")
    token_file: Path | None = Field(
        None,
        description="file of access tokens, a line TENANT:DIGEST each, where DIGEST is the SHA-256 "
        "of the token in hexadecimal; unset: everybody may call",
    )
    default_rule: Literal["rejection-block", "rejection-token", "coupled"] = Field(
        "rejection-block",
        description="verification rule of requests that name none and have no seed; with a seed it "
        "is coupled",
    )
    draft_length: str = Field(
        "window",
        pattern=r"^(window|cost|fixed:\d{1,3})$",
        description="length of proposals: window adapts it to acceptance, cost also to measured "
        "times and load, fixed:N pins it",
    )
    max_draft_tokens: int = Field(
        10, ge=0, le=64, description="longest proposal, in tokens, unless a request pins it"
    )
    low_acceptance: float = Field(
        0.6,
        ge=0,
        le=1,
        description="acceptance rate of a draft source under which it is warned of",
    )
    price_per_hour: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="price of this gateway and its share of both tiers for an hour, for the cost "
        "per million tokens; 0 reports none",
    )
    arms: Arms = Field(
        {},
        description='comparison on live traffic: {"NAME": {"share": S, "draft_source": D, '
        '"draft_length": L}, ...}, JSON or a table; the rest is the arm control',
    )
    draft_stall_s: float = Field(
        5.0, gt=0, allow_inf_nan=False, description="seconds after which a silent draft is dropped"
    )
    verify_stall_s: float = Field(
        60.0, gt=0, allow_inf_nan=False, description="seconds after which a silent target is left"
    )
    reopen_patience_s: float = Field(
        30.0, ge=0, allow_inf_nan=False, description="seconds spent on finding another target"
    )
    resolve_period_s: float = Field(
        2.0, gt=0, allow_inf_nan=False, description="seconds between two look-ups of a DNS name"
    )
    max_generations: int = Field(
        256, ge=1, description="generations that may run at once; more are refused"
    )
    max_samples: int = Field(
        16, ge=1, description="samples of one request; each counts as a generation"
    )
    replay_share: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of finished greedy and coupled generations that are replayed as plain "
        "decoding and compared; 0.01 costs the target at most a plain generation in 100",
    )
    replay_margin: float = Field(
        1e-3,
        ge=0,
        allow_inf_nan=False,
        description="lead, in logits, under which another token in a replay is a near tie; exact "
        "targets have none, 16-bit types need about 0.5",
    )
    tokenizer_cache_dir: Path = Field(
        CACHE_DIR / "tokenizers", description="directory of fetched tokenizers"
    )

    def tier_tls(self) -> TlsFiles:
        """What the tiers are shown, and which of them are believed."""
        return TlsFiles("tier-", self.tier_certificate, self.tier_key, self.tier_ca)
