"""Refusals in the words of the gateway's contract: every field is one that a request has."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.faults import for_caller
from paceline.errors import Aborted, Exhausted, InvalidArgument, Unavailable
from paceline.v1 import gateway_pb2


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("session.sampling.min_p", "sampling.min_p"),
        ("session.sampling.constraint.regex", "sampling.constraint.regex"),
        ("session.seed", "seed"),
        ("session.token_ids", "committed_token_ids"),
        ("session.rule", "speculation.rule"),
        ("prompt", "prompt"),
    ],
)
def test_fields(ours: str, theirs: str) -> None:
    """What else is told stays as it is."""
    error = InvalidArgument(ours, "is wrong", reason="SOME", metadata={"limit": "3"})
    told = for_caller(error)
    assert isinstance(told, InvalidArgument)
    assert (theirs, "is wrong", "SOME", {"limit": "3"}) == (
        told.field,
        told.description,
        told.reason,
        told.metadata,
    )
    message: Any = gateway_pb2.GenerateRequest.DESCRIPTOR
    for name in theirs.split("."):
        message = message.fields_by_name[name].message_type


def test_aborted_is_between_the_tiers() -> None:
    """The client may try again; all else is told as it came."""
    told = for_caller(Aborted("idle", reason="SESSION_IDLE"))
    assert isinstance(told, Unavailable)
    assert ("idle", "SESSION_IDLE") == (told.message, told.reason)
    full = Exhausted("full")
    assert full is for_caller(full)
