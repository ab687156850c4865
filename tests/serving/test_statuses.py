"""The table between errors and statuses, both ways."""

from __future__ import annotations

from typing import Any, TypeVar

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from paceline import errors
from paceline.errors import (
    Aborted,
    Exhausted,
    InvalidArgument,
    NotFound,
    PacelineError,
    RetryableError,
    Unavailable,
    Unimplemented,
)
from paceline.serving.statuses import CODES, DETAILS_KEY, error_of, internal_status, status_of

MessageT = TypeVar("MessageT", bound=Message)

EVERY_ERROR = [
    InvalidArgument("session.seed", "must be absent", reason="WHY", metadata={"limit": "0"}),
    errors.Unauthenticated("who?"),
    errors.PermissionDenied("no", metadata={"tenant": "a"}),
    errors.FailedPrecondition("target x, draft y", metadata={"target": "x", "draft": "y"}),
    NotFound("no model m"),
    Exhausted("queue is full", retry_after_s=0.25),
    Unavailable("draining", retry_after_s=2.5, reason="DRAINING"),
    Aborted("base length 4", metadata={"TRUE_LENGTH": "5"}),
    Unimplemented("lookahead"),
    errors.DeadlineExceeded("too late"),
]


def details(status: Any, kind: type[MessageT]) -> list[MessageT]:
    """The details of one kind."""
    found = []
    for detail in status.details:
        message = kind()
        if detail.Unpack(message):
            found.append(message)
    return found


def failed_call(
    code: grpc.StatusCode, text: str = "", trailer: bytes | None = None
) -> grpc.aio.AioRpcError:
    """What a client sees of a failed call."""
    trailers = [] if trailer is None else [(DETAILS_KEY, trailer)]
    return grpc.aio.AioRpcError(
        code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailers), details=text
    )


def round_trip(error: PacelineError) -> PacelineError:
    """An error as the other side sees it."""
    status = status_of(error)
    (code,) = (c for c in grpc.StatusCode if c.value[0] == status.code)
    return error_of(failed_call(code, status.message, status.SerializeToString()))


def test_the_table_is_whole() -> None:
    """Every error that can be raised has a code, and no two share one."""
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type)}
    raised = {k for k in kinds if issubclass(k, PacelineError)} - {PacelineError, RetryableError}
    assert raised == set(CODES)
    assert len(CODES) == len(set(CODES.values()))
    assert raised == {type(error) for error in EVERY_ERROR}


@pytest.mark.parametrize("error", EVERY_ERROR, ids=lambda e: type(e).__name__)
def test_exactly_one_error_info(error: PacelineError) -> None:
    """B120: the code of the table, one ErrorInfo, and the extra detail that helps."""
    status = status_of(error)
    (info,) = details(status, error_details_pb2.ErrorInfo)
    assert CODES[type(error)].value[0] == status.code
    assert (error.message, error.reason) == (status.message, info.reason)
    assert ("paceline", error.metadata) == (info.domain, dict(info.metadata))
    is_field, is_retry = isinstance(error, InvalidArgument), isinstance(error, RetryableError)
    assert is_field == bool(details(status, error_details_pb2.BadRequest))
    assert is_retry == bool(details(status, error_details_pb2.RetryInfo))


@pytest.mark.parametrize("error", EVERY_ERROR, ids=lambda e: type(e).__name__)
def test_a_client_gets_the_error_back(error: PacelineError) -> None:
    """Both sides of a call speak of the same error."""
    seen = round_trip(error)
    assert type(error) is type(seen)
    assert vars(error) == vars(seen)


def test_the_field_is_named() -> None:
    """BadRequest has the field and, apart from it, what is wrong."""
    (bad,) = details(status_of(InvalidArgument("a.b", "is wrong")), error_details_pb2.BadRequest)
    assert [("a.b", "is wrong")] == [(v.field, v.description) for v in bad.field_violations]


def test_a_subclass_has_its_parents_code() -> None:
    """Errors may be refined without touching the table."""

    class SessionIdle(Aborted):
        default_reason = "SESSION_IDLE"

    assert grpc.StatusCode.ABORTED.value[0] == status_of(SessionIdle("idle")).code


@pytest.mark.parametrize("text", ["x" * 100_000, "\u20ac" * 50_000])
def test_a_long_text_fits_the_trailers(text: str) -> None:
    """Clients accept 8 KiB of trailers; more would replace the status by one of gRPC's own."""
    status = status_of(InvalidArgument("prompt", f"got {text}"))
    percent_encoded = 3 * len(status.message.encode())
    assert percent_encoded + len(status.SerializeToString()) * 4 / 3 < 8192
    assert status.message.startswith("prompt: got")
    assert status.message.endswith("...")


def test_bug_of_ours_says_only_where_the_log_has_it() -> None:
    """INTERNAL has the request id."""
    status = internal_status("r-1")
    (info,) = details(status, error_details_pb2.ErrorInfo)
    assert (13, "INTERNAL", {"request_id": "r-1"}) == (
        status.code,
        info.reason,
        dict(info.metadata),
    )


@pytest.mark.parametrize("code", [c for c in grpc.StatusCode if c is not grpc.StatusCode.OK])
def test_statuses_of_others_have_an_error(code: grpc.StatusCode) -> None:
    """Without details the code decides, and what the table lacks is a peer that failed."""
    seen = error_of(failed_call(code, "text"))
    kinds = {c: kind for kind, c in CODES.items()}
    assert kinds.get(code, Unavailable) is type(seen)
    assert "text" in seen.message
    if code not in kinds:
        expected = "CANCELLED" if code is grpc.StatusCode.CANCELLED else "PEER_FAILED"
        assert expected == seen.reason


def test_a_peers_bug_keeps_its_request_id() -> None:
    """INTERNAL of a tier is a failed peer, with the id under which its log has the trace."""
    status = internal_status("r-2")
    seen = error_of(
        failed_call(grpc.StatusCode.INTERNAL, status.message, status.SerializeToString())
    )
    assert ("PEER_FAILED", {"request_id": "r-2"}) == (seen.reason, seen.metadata)


@pytest.mark.parametrize("trailer", [b"\xff\xff\xff", status_pb2.Status().SerializeToString()])
def test_unreadable_details_are_no_details(trailer: bytes) -> None:
    """A peer's garbage does not become our exception."""
    seen = error_of(failed_call(grpc.StatusCode.NOT_FOUND, "gone", trailer))
    assert ("MODEL_NOT_FOUND", "gone") == (seen.reason, seen.message)
