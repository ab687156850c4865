"""What a tier's refusal is in the words of the gateway's own contract.

It does not know who refuses or what is done about it.
"""

from __future__ import annotations

from paceline.errors import Aborted, InvalidArgument, PacelineError, Unavailable

_SESSION = "session."
_FIELDS = {
    # The prompt's ids have been checked before, so what is wrong is what was to be gone on with.
    "session.token_ids": "committed_token_ids",
    "session.rule": "speculation.rule",
}
"""What fields of a session are called in a request, where it is not the same word."""


def for_caller(error: PacelineError) -> PacelineError:
    """The error as the client of the gateway is told it."""
    if isinstance(error, Aborted):  # a matter between the tiers: another attempt may do better
        return Unavailable(error.message, reason=error.reason)
    if isinstance(error, InvalidArgument) and error.field.startswith(_SESSION):
        field = _FIELDS.get(error.field, error.field.removeprefix(_SESSION))
        return InvalidArgument(
            field, error.description, reason=error.reason, metadata=error.metadata
        )
    return error
