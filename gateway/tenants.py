"""Who may call, and as which tenant: access tokens, from a file that is read anew when it changes.

A line of the file is TENANT:DIGEST, where DIGEST is the SHA-256 of the token in hexadecimal: who
reads the file has no token. A tenant may have several lines, to replace one token by another. Its
name has no slash: what follows one in a domain is the tenant's own division of it.
What a tenant gets is not known here.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import structlog

from paceline.errors import FailedPrecondition, PermissionDenied, Unauthenticated
from paceline.serving.endpoints import Context, Endpoint
from paceline.serving.files import FileValue

TOKEN_KEY = "authorization"
_SCHEME = "bearer "
_LINE = re.compile(r"(?P<tenant>[^/]+):(?P<digest>[0-9a-f]{64})")
Digests: TypeAlias = tuple[tuple[str, str], ...]
"""(tenant, digest of a token of its)."""


class Tenants:
    """The tenants of a file; without one everybody may call, as whom they say."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._digests = FileValue(self._read, [path] if path else [])

    def load(self) -> None:
        """Reads the file.

        Raises:
            FailedPrecondition: it cannot be read, or a line is malformed.
        """
        self._digests.get()

    def guard(self, endpoint: Endpoint) -> Endpoint:
        """An endpoint that only callers with a token reach."""

        def checked(request: Any, context: Context) -> Any:
            self._tenant(context)
            return endpoint.handler(request, context)

        return replace(endpoint, handler=checked)

    def domain(self, requested: str, context: Context) -> str:
        """The cache domain of a call: as requested without tokens, else within its token's tenant.

        That is TENANT, which empty means too, or a part of it, TENANT/PART, for which /PART is
        enough.

        Raises:
            Unauthenticated: the token is missing or unknown.
            PermissionDenied: another tenant's is requested.
        """
        tenant = self._tenant(context)
        if tenant is None:
            return requested
        domain = f"{tenant}{requested}" if requested.startswith("/") else requested or tenant
        if domain != tenant and not domain.startswith(f"{tenant}/"):
            raise PermissionDenied(
                f"cache_domain: must be empty or within {tenant!r}, the tenant of the token, got "
                f"{requested!r}",
                reason="TENANT_MISMATCH",
            )
        return domain

    def _tenant(self, context: Context) -> str | None:
        """Whose token a call carries; None without a file."""
        if self._path is None:
            return None
        token = _token(context.invocation_metadata() or ())
        if not token:
            raise Unauthenticated(
                f"an access token is needed, as metadata `{TOKEN_KEY}: Bearer TOKEN`",
                reason="TOKEN_MISSING",
            )
        digest = hashlib.sha256(token.encode()).hexdigest()
        # Every line is compared, each in constant time: how long it takes says nothing of any.
        found = [
            tenant for tenant, known in self._digests.get() if hmac.compare_digest(known, digest)
        ]
        if not found:
            raise Unauthenticated("the access token is not known", reason="TOKEN_UNKNOWN")
        structlog.contextvars.bind_contextvars(tenant=found[0])
        return found[0]

    def _read(self) -> Digests:
        if self._path is None:
            return ()
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise self._fault(str(error)) from None
        digests = []
        for number, line in enumerate(map(str.strip, lines), 1):
            if line and not line.startswith("#"):
                if (match := _LINE.fullmatch(line)) is None:
                    raise self._fault(
                        f"line {number} is not TENANT:DIGEST, no slash and a SHA-256 in hex"
                    )
                digests.append((match["tenant"].strip(), match["digest"]))
        if not digests:
            raise self._fault("has no line, so that nobody could call")
        return tuple(digests)

    def _fault(self, problem: str) -> FailedPrecondition:
        return FailedPrecondition(f"--token-file ({self._path}): {problem}", reason="TOKEN_FILE")


def _token(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    for key, value in metadata:
        if key == TOKEN_KEY and isinstance(value, str) and value.lower().startswith(_SCHEME):
            return value[len(_SCHEME) :].strip()
    return ""
