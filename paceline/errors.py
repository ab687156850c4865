"""Everything that can go wrong, as one tree. Standard library only, so every layer may raise it.

    PacelineError
      InvalidArgument        a field is malformed, out of range or not supported; it is named
      Unauthenticated        who is calling is not known
      PermissionDenied       who is calling may not
      FailedPrecondition     models do not match; both sides are printed
      NotFound               the model or source is not served here
      Exhausted              queue or cache is full; retry later
      Unavailable            loading, draining or lost; retry elsewhere or later
      Aborted                round out of order, or the session idled; reopen
      Unimplemented          a message that this build does not serve
      DeadlineExceeded       the caller's time is up

`serving/statuses.py` has the table from these to gRPC statuses. Anything else that is raised is a
bug of ours and is answered INTERNAL.
"""

from __future__ import annotations

from collections.abc import Mapping


class PacelineError(Exception):
    """An expected failure: `reason` is for programs (UPPER_SNAKE), the message for people."""

    default_reason = "UNKNOWN"

    def __init__(
        self, message: str, *, reason: str = "", metadata: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.metadata: dict[str, str] = dict(metadata or {})


class InvalidArgument(PacelineError):
    """A field is malformed, out of range, or asks for what this build does not serve."""

    default_reason = "INVALID_ARGUMENT"

    def __init__(
        self,
        field: str,
        message: str,
        *,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(f"{field}: {message}", reason=reason, metadata=metadata)
        self.field = field
        self.description = message


class Unauthenticated(PacelineError):
    """Who is calling is not known."""

    default_reason = "UNAUTHENTICATED"


class PermissionDenied(PacelineError):
    """Who is calling may not do this."""

    default_reason = "PERMISSION_DENIED"


class FailedPrecondition(PacelineError):
    """Models do not match. Not to be retried on the same replica."""

    default_reason = "MODEL_MISMATCH"


class NotFound(PacelineError):
    """The model or draft source is not served here."""

    default_reason = "MODEL_NOT_FOUND"


class RetryableError(PacelineError):
    """A failure that passes: the caller may try again after `retry_after_s`."""

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float = 1.0,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, reason=reason, metadata=metadata)
        self.retry_after_s = retry_after_s


class Exhausted(RetryableError):
    """Queue or cache is full."""

    default_reason = "CAPACITY_EXHAUSTED"


class Unavailable(RetryableError):
    """Loading, draining, or the peer was lost."""

    default_reason = "UNAVAILABLE"


class Aborted(PacelineError):
    """The session cannot go on; a new one can, from what is committed."""

    default_reason = "SESSION_ABORTED"


class Unimplemented(PacelineError):
    """A message that this build does not serve."""

    default_reason = "UNIMPLEMENTED"


class DeadlineExceeded(PacelineError):
    """The caller's time is up."""

    default_reason = "DEADLINE_EXCEEDED"
