"""Durations: seconds inside, protobuf durations on the wire, and the period of reports."""

from __future__ import annotations

from google.protobuf import duration_pb2

from paceline.errors import InvalidArgument


def duration(seconds: float) -> duration_pb2.Duration:
    """A protobuf duration of `seconds`, at least 0."""
    message = duration_pb2.Duration()
    fill_duration(message, seconds)
    return message


def fill_duration(message: duration_pb2.Duration, seconds: float) -> None:
    """Writes `seconds`, at least 0, into a message that is part of another: no copy is made."""
    nanos = max(0, round(seconds * 1e9))
    message.seconds, message.nanos = divmod(nanos, 1_000_000_000)


def seconds(message: duration_pb2.Duration) -> float:
    """The seconds of a protobuf duration."""
    return message.seconds + message.nanos * 1e-9


def watch_period_s(period_ms: int) -> float:
    """The period of load reports in seconds.

    Raises:
        InvalidArgument: out of range.
    """
    if period_ms == 0:
        return 1.0
    if not 10 <= period_ms <= 60_000:
        raise InvalidArgument("period_ms", f"must be in [10, 60000], got {period_ms}")
    return period_ms / 1000
