"""The one table between Paceline's errors and gRPC statuses, in both directions.

Every refusal carries exactly one `google.rpc.ErrorInfo` (domain `paceline`), a `BadRequest` where a
field is at fault and a `RetryInfo` where trying again is meant. Which errors a service raises is
not known here.
"""

from __future__ import annotations

from collections.abc import Mapping

import grpc
from google.protobuf import duration_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from paceline.errors import (
    Aborted,
    DeadlineExceeded,
    Exhausted,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PacelineError,
    PermissionDenied,
    RetryableError,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)

DOMAIN = "paceline"
DETAILS_KEY = "grpc-status-details-bin"
# Statuses travel as HTTP/2 trailers, of which clients accept 8 KiB by default: the message is sent
# percent-encoded once and base64 twice.
MAX_TEXT_BYTES = 1000

CODES: Mapping[type[PacelineError], grpc.StatusCode] = {
    InvalidArgument: grpc.StatusCode.INVALID_ARGUMENT,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    FailedPrecondition: grpc.StatusCode.FAILED_PRECONDITION,
    NotFound: grpc.StatusCode.NOT_FOUND,
    Exhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
    Aborted: grpc.StatusCode.ABORTED,
    Unimplemented: grpc.StatusCode.UNIMPLEMENTED,
    DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
}
_ERRORS = {code: error for error, code in CODES.items()}


def status_of(error: PacelineError) -> status_pb2.Status:
    """The rich status of an error; one that the table lacks is a bug of ours: INTERNAL."""
    code = next((CODES[kind] for kind in type(error).__mro__ if kind in CODES), None)
    status = _status(code or grpc.StatusCode.INTERNAL, error.message, error.reason, error.metadata)
    if isinstance(error, InvalidArgument):
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=_cut(error.field), description=_cut(error.description)
        )
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    if isinstance(error, RetryableError):
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(round(error.retry_after_s * 1000))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return status


def internal_status(request_id: str) -> status_pb2.Status:
    """What a caller is told of a bug of ours: where the log has it, and nothing of its insides."""
    return _status(
        grpc.StatusCode.INTERNAL,
        f"internal error, logged under request id {request_id}",
        "INTERNAL",
        {"request_id": request_id},
    )


def error_of(rpc_error: grpc.aio.AioRpcError) -> PacelineError:
    """The error that a failed call stands for.

    A code that the table lacks (UNKNOWN, INTERNAL, ...) means that the peer failed: `Unavailable`
    with reason PEER_FAILED. So does CANCELLED, with reason CANCELLED: who cancels a call of their
    own sees `asyncio.CancelledError`, so the status came from a peer or proxy that dropped the
    call, which is to be met like a lost connection.
    """
    code = rpc_error.code()
    message = rpc_error.details() or code.name
    status = _details_of(rpc_error)
    info, bad_request, retry = (
        error_details_pb2.ErrorInfo(),
        error_details_pb2.BadRequest(),
        error_details_pb2.RetryInfo(),
    )
    for detail in status.details:
        for known in (info, bad_request, retry):
            detail.Unpack(known)
    metadata = dict(info.metadata)
    kind = _ERRORS.get(code)
    if kind is None:
        reason = "CANCELLED" if code is grpc.StatusCode.CANCELLED else "PEER_FAILED"
        return Unavailable(f"{code.name}: {message}", reason=reason, metadata=metadata)
    if issubclass(kind, InvalidArgument):
        return _invalid_argument(message, bad_request, info)
    if issubclass(kind, RetryableError):
        delay_s = retry.retry_delay.ToMilliseconds() / 1000 if retry.HasField("retry_delay") else 1
        return kind(message, retry_after_s=delay_s, reason=info.reason, metadata=metadata)
    return kind(message, reason=info.reason, metadata=metadata)


def _invalid_argument(
    message: str, bad_request: error_details_pb2.BadRequest, info: error_details_pb2.ErrorInfo
) -> InvalidArgument:
    field, description = "request", message
    for violation in bad_request.field_violations:
        field, description = violation.field, violation.description
    return InvalidArgument(field, description, reason=info.reason, metadata=dict(info.metadata))


def _details_of(rpc_error: grpc.aio.AioRpcError) -> status_pb2.Status:
    """The rich status in the trailers; empty where there is none, or none that can be read."""
    for key, value in rpc_error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                return status_pb2.Status.FromString(value)
            except DecodeError:
                break
    return status_pb2.Status()


def _status(
    code: grpc.StatusCode, message: str, reason: str, metadata: Mapping[str, str]
) -> status_pb2.Status:
    number: int = code.value[0]
    status = status_pb2.Status(code=number, message=_cut(message))
    kept = {key: _cut(value) for key, value in metadata.items()}
    status.details.add().Pack(
        error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata=kept)
    )
    return status


def _cut(text: str) -> str:
    encoded = text.encode()
    if len(encoded) <= MAX_TEXT_BYTES:
        return text
    return encoded[:MAX_TEXT_BYTES].decode(errors="ignore") + "..."
