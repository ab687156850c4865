"""Access tokens: who gets in, as whom, and what a change of the file does."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import structlog
from google.protobuf.wrappers_pb2 import StringValue

from gateway.tenants import Tenants
from paceline.errors import FailedPrecondition, PacelineError, PermissionDenied, Unauthenticated
from paceline.serving.endpoints import Context, Endpoint, Shape


@dataclass
class Call:
    """The part of a call's context that is read."""

    metadata: tuple[tuple[str, str], ...] | None = None

    def invocation_metadata(self) -> tuple[tuple[str, str], ...] | None:
        """What the caller sent."""
        return self.metadata


def call(token: str) -> Context:
    """A call with a token."""
    return cast(Context, Call((("user-agent", "test"), ("authorization", f"Bearer {token}"))))


def line(tenant: str, token: str) -> str:
    """A line of the file."""
    return f"{tenant}:{hashlib.sha256(token.encode()).hexdigest()}\n"


@pytest.fixture(autouse=True)
def _no_call() -> Iterator[None]:
    """Forgets what was bound to log lines: a real call ends with its task."""
    yield
    structlog.contextvars.clear_contextvars()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two tenants, one of which has two tokens."""
    path = tmp_path / "tokens"
    path.write_text(
        "# tenants\n\n" + line("ann", "a1") + line("team:bob", "b1") + line("ann", "a2")
    )
    return path


def reason(tenants: Tenants, context: Any, requested: str = "") -> str:
    """Why a call is refused."""
    with pytest.raises(PacelineError) as caught:
        tenants.domain(requested, cast(Context, context))
    return caught.value.reason


def test_the_tenant_is_the_tokens(path: Path) -> None:
    """Whether or not the call names it; each of a tenant's tokens is good."""
    tenants = Tenants(path)
    assert ["ann", "team:bob", "ann"] == [
        tenants.domain("", call(token)) for token in ("a1", "b1", "a2")
    ]
    assert "ann" == tenants.domain("ann", call("a1"))
    assert {"tenant": "ann"} == structlog.contextvars.get_contextvars()  # on every log line


def test_another_tenant_is_denied(path: Path) -> None:
    """Nobody gets into another's cache, or is counted as another."""
    with pytest.raises(PermissionDenied, match="within 'ann'"):
        Tenants(path).domain("team:bob", call("a1"))
    assert "TENANT_MISMATCH" == reason(Tenants(path), call("b1"), "bob")
    assert "TENANT_MISMATCH" == reason(Tenants(path), call("a1"), "anna/x")


@pytest.mark.parametrize("requested", ["/x", "ann/x"])
def test_a_part_of_ones_own(path: Path, requested: str) -> None:
    """A tenant may keep its own users apart, and runs that must not know of one another."""
    assert "ann/x" == Tenants(path).domain(requested, call("a1"))


@pytest.mark.parametrize(
    "context",
    [
        Call(),
        Call((("authorization", "Basic a1"),)),
        Call((("authorization", "Bearer "),)),
        Call((("token", "Bearer a1"),)),
    ],
)
def test_no_token(path: Path, context: Call) -> None:
    """None, or not where and how it must be."""
    assert "TOKEN_MISSING" == reason(Tenants(path), context)


@pytest.mark.parametrize("token", ["a", "a11", "A1", "ann", "a1 a2"])
def test_a_wrong_token(path: Path, token: str) -> None:
    """Only all of it is the token; nor is what stands in the file one."""
    assert "TOKEN_UNKNOWN" == reason(Tenants(path), call(token))
    digest = hashlib.sha256(b"a1").hexdigest()
    assert "TOKEN_UNKNOWN" == reason(Tenants(path), call(digest))


def test_the_schemes_case_is_free(path: Path) -> None:
    """As HTTP has it."""
    context = cast(Context, Call((("authorization", "bearer a1"),)))
    assert "ann" == Tenants(path).domain("", context)


def test_without_a_file_everybody_may(tmp_path: Path) -> None:
    """As whom they say."""
    tenants = Tenants(None)
    tenants.load()
    assert ["", "eve"] == [tenants.domain(name, cast(Context, Call())) for name in ("", "eve")]


def test_tokens_change_while_it_runs(path: Path) -> None:
    """A new token is good at once, one that is gone is not, and a spoilt file changes nothing."""
    tenants = Tenants(path)
    tenants.load()
    new = path.with_suffix(".new")
    new.write_text(line("ann", "a3"))
    new.replace(path)
    assert "ann" == tenants.domain("", call("a3"))
    assert "TOKEN_UNKNOWN" == reason(tenants, call("a1"))
    path.write_text("spoilt")
    assert "ann" == tenants.domain("", call("a3"))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("ann:a1\n", "line 1 is not TENANT:DIGEST"),
        (line("ann", "a1") + line("", "b1"), "line 2 is not TENANT:DIGEST"),
        ("# nobody\n", "has no line"),
        (f"a/b:{'0' * 64}\n", "line 1 is not TENANT:DIGEST"),
        (None, "No such file"),
    ],
)
def test_a_wrong_file(tmp_path: Path, content: str | None, problem: str) -> None:
    """The setting, the file and the line."""
    path = tmp_path / "tokens"
    if content is not None:
        path.write_text(content)
    with pytest.raises(FailedPrecondition) as caught:
        Tenants(path).load()
    assert str(caught.value).startswith(f"--token-file ({path}): ")
    assert problem in str(caught.value)


def test_a_guarded_endpoint(path: Path) -> None:
    """Its handler is reached with a token, and only then."""
    reached = []

    def handler(request: StringValue, context: Context) -> str:
        reached.append(request.value)
        return "answer"

    guarded = Tenants(path).guard(Endpoint("Do", Shape.UNARY, StringValue, handler))
    assert ("Do", Shape.UNARY) == (guarded.name, guarded.shape)
    with pytest.raises(Unauthenticated):
        guarded.handler(StringValue(value="refused"), cast(Context, Call()))
    assert "answer" == guarded.handler(StringValue(value="let in"), call("a1"))
    assert ["let in"] == reached
