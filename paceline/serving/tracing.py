"""Spans of one generation across the tiers: where they go, and which rounds get one.

A session's parent is the generation that opened it, whose context travels as W3C `traceparent` in
the metadata of its streams. Off, nothing is kept. What a span says of a generation or a session is
not known here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

TRACEPARENT_KEY = "traceparent"
Attributes: TypeAlias = Mapping[str, str | int | float | bool | Sequence[str]]


class Span(Protocol):
    """A generation or a session while it runs."""

    @property
    def traceparent(self) -> str:
        """Its context, for what it causes elsewhere; empty where nothing is traced."""

    def set(self, attributes: Attributes) -> None:
        """Adds what became known of it."""

    def round(self, number: int, duration_s: float, attributes: Attributes) -> None:
        """Tells of the round that has just ended; `number` counts from 1, a share is kept."""

    def end(self, error: BaseException | None = None) -> None:
        """Ends it, for what reason."""


class Tracer(Protocol):
    """Where the spans of a process go."""

    def start(self, name: str, traceparent: str, attributes: Attributes) -> Span:
        """Begins a span of this server, under a parent where one is given."""

    def close(self) -> None:
        """Hands over what is left; blocks."""


class Untraced:
    """A tracer, and each of its spans, where nothing is traced."""

    traceparent = ""

    def start(self, name: str, traceparent: str, attributes: Attributes) -> Span:
        """Begins nothing."""
        return self

    def set(self, attributes: Attributes) -> None:
        """Keeps nothing."""

    def round(self, number: int, duration_s: float, attributes: Attributes) -> None:
        """Keeps nothing."""

    def end(self, error: BaseException | None = None) -> None:
        """Ends nothing."""

    def close(self) -> None:
        """Has nothing left."""


def rpc_attributes(service: str, method: str) -> Attributes:
    """What the span of a call says of the call."""
    return {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}


def traceparent_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The context that a call came with; empty without one."""
    return next((str(value) for key, value in metadata or () if key == TRACEPARENT_KEY), "")


def is_sampled(number: int, share: float) -> bool:
    """Whether the round of a number, from 1 on, is of the share; evenly spread, the first is."""
    return math.floor((number - 1) * share) != math.floor((number - 2) * share)
