"""TLS files: what is wrong with them is said by the names of their settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from paceline.errors import FailedPrecondition
from paceline.serving.credentials import TlsFiles, client_credentials, server_credentials

if TYPE_CHECKING:
    from tests.conftest import Certificates


def fault(files: TlsFiles) -> str:
    """What reading them says."""
    with pytest.raises(FailedPrecondition) as caught:
        files.read()
    assert "TLS_FILES" == caught.value.reason
    return str(caught.value)


def test_good_files_are_read(certificates: Certificates) -> None:
    """Contents as they are, empty where there is no file."""
    certificate, key = certificates.issue("verify", "verify")
    pems = TlsFiles("tls-", certificate, key, certificates.ca).read()
    assert (certificate.read_bytes(), key.read_bytes()) == (pems.certificate, pems.key)
    assert certificates.ca.read_bytes() == pems.ca
    assert b"" == TlsFiles("tls-", certificate, key).read().ca


def test_a_missing_file(certificates: Certificates, tmp_path: Path) -> None:
    """The setting, the path and the cause."""
    certificate, _ = certificates.issue("verify", "verify")
    none = tmp_path / "none.key"
    message = f"--tls-key ({none}): No such file or directory"
    assert message == fault(TlsFiles("tls-", certificate, none))
    assert fault(TlsFiles("tier-", ca=tmp_path)).startswith(f"--tier-ca ({tmp_path}): ")


def test_one_without_the_other(certificates: Certificates) -> None:
    """A certificate needs its key and a key its certificate."""
    certificate, key = certificates.issue("verify", "verify")
    expected = f"--tls-certificate ({certificate}) and --tls-key (not given): one is useless"
    assert fault(TlsFiles("tls-", certificate)).startswith(expected)
    assert fault(TlsFiles("tls-", key=key)).startswith("--tls-certificate (not given)")


def test_what_does_not_belong_together(certificates: Certificates, tmp_path: Path) -> None:
    """Another certificate's key, something that is no PEM, and a locked key."""
    certificate, key = certificates.issue("verify", "verify")
    _, other = certificates.issue("draft", "draft")
    text = tmp_path / "text"
    text.write_text("not a certificate")
    locked = tmp_path / "locked.key"
    locked.write_text(
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n"
        "DEK-Info: AES-256-CBC,00000000000000000000000000000000\n\nAAAA\n"
        "-----END RSA PRIVATE KEY-----\n"
    )
    for pair in ((certificate, other), (text, key), (certificate, text), (certificate, locked)):
        message = fault(TlsFiles("tls-", *pair))
        assert message.startswith(f"--tls-certificate ({pair[0]}) and --tls-key ({pair[1]}): not a")
    assert f"--tls-ca ({text}): no certificate in PEM" == fault(TlsFiles("tls-", ca=text))


def test_no_files_is_plaintext() -> None:
    """For both ends."""
    assert server_credentials(TlsFiles("tls-")) is None
    assert client_credentials(TlsFiles("tier-")).get() is None


def test_half_of_an_end(certificates: Certificates) -> None:
    """A server cannot check callers without a certificate, nor a client show one to anybody."""
    certificate, key = certificates.issue("gateway", "gateway")
    with pytest.raises(FailedPrecondition, match=r"--tls-certificate \(not given\)"):
        server_credentials(TlsFiles("tls-", ca=certificates.ca))
    with pytest.raises(FailedPrecondition, match=r"--tier-ca \(not given\)"):
        client_credentials(TlsFiles("tier-", certificate, key)).get()


def test_a_client_reads_anew(certificates: Certificates) -> None:
    """The same credentials until the files change."""
    credentials = client_credentials(TlsFiles("tier-", ca=certificates.ca))
    first = credentials.get()
    assert first is credentials.get()
    certificates.rotate()
    assert first is not credentials.get()
