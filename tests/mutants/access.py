"""Mistakes about who gets in: certificates, tokens, files that change, and zones."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_TENANTS = "gateway/tenants.py"
_FILES = "paceline/serving/files.py"
_CREDENTIALS = "paceline/serving/credentials.py"
_REPLICAS = "gateway/replicas.py"

_TOKENS = ("tests/gateway/test_tenants.py",)
_READ = ("tests/serving/test_files.py",)
_TLS = ("tests/serving/test_credentials.py",)
_ZONES = ("tests/gateway/test_replicas.py::test_the_own_zone_goes_first",)

MUTANTS = (
    Mutant(
        "a token compared by its beginning",
        _TENANTS,
        "if hmac.compare_digest(known, digest)",
        "if hmac.compare_digest(known[:1], digest[:1])",
        _TOKENS,
    ),
    Mutant(
        "the digest taken for the token",
        _TENANTS,
        "hashlib.sha256(token.encode()).hexdigest()",
        "token if len(token) == 64 else hashlib.sha256(token.encode()).hexdigest()",
        _TOKENS,
    ),
    Mutant(
        "another tenant's cache domain let in",
        _TENANTS,
        'if domain != tenant and not domain.startswith(f"{tenant}/"):',
        "if not tenant:",
        _TOKENS,
    ),
    Mutant(
        "a tenant whose name begins like another's",
        _TENANTS,
        'domain.startswith(f"{tenant}/")',
        "domain.startswith(tenant)",
        _TOKENS,
    ),
    Mutant(
        "endpoints without a guard",
        _TENANTS,
        "            self._tenant(context)\n            return endpoint",
        "            return endpoint",
        _TOKENS,
    ),
    Mutant(
        "half of a rotation taken",
        _FILES,
        "if not is_first and stamp != tuple(map(_look, self._paths)):",
        "if False:",
        _READ,
    ),
    Mutant(
        "a change of the same length not seen",
        _FILES,
        "return found.st_ino, found.st_mtime_ns, found.st_size",
        "return found.st_size",
        _READ,
    ),
    Mutant(
        "files gone bad end what they served",
        _FILES,
        "            if is_first:\n                raise\n",
        "            raise\n",
        _READ,
    ),
    Mutant(
        "callers let in without a certificate",
        _CREDENTIALS,
        "require_client_authentication=files.ca is not None",
        "require_client_authentication=False",
        _TLS,
    ),
    Mutant(
        "certificates never read again",
        _CREDENTIALS,
        "        configuration.get,\n",
        "        lambda first=configuration.get(): first,\n",
        _TLS,
    ),
    Mutant(
        "the name of a server not told",
        "paceline/serving/channels.py",
        '(("grpc.ssl_target_name_override", server_name),) if server_name else ()',
        "()",
        _TLS,
    ),
    Mutant(
        "zones that do not count",
        _REPLICAS,
        'if self._zone in ("", replica.zone):',
        "if True:",
        _ZONES,
    ),
    Mutant(
        "a zone that is never left",
        _REPLICAS,
        "_FAR_FACTOR, _FAR_SESSIONS = 2, 4",
        "_FAR_FACTOR, _FAR_SESSIONS = 2, 400",
        _ZONES,
    ),
)
