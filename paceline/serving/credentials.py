"""TLS: what an end of a connection shows, and whom it believes, from PEM files that may change.

A server reads its files at every handshake, a client for every new channel; connections that are
open go on. Where the files come from is not known here.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import grpc

from paceline.errors import FailedPrecondition
from paceline.serving.files import FileValue

ClientTls: TypeAlias = FileValue[grpc.ChannelCredentials | None]
"""Credentials for a new channel, by the files as they are now; None for plaintext."""


@dataclass(frozen=True, slots=True)
class Pems:
    """The contents of the files, each empty where there is none."""

    certificate: bytes
    key: bytes
    ca: bytes


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where one end's certificate, key and authorities are."""

    prefix: str
    """What the settings' names begin with, as in `--PREFIXcertificate`."""
    certificate: Path | None = None
    key: Path | None = None
    ca: Path | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that there are."""
        return tuple(path for path in (self.certificate, self.key, self.ca) if path is not None)

    def read(self) -> Pems:
        """Their contents, checked.

        Raises:
            FailedPrecondition: one is missing or is no PEM, or the key is not the certificate's;
                the settings at fault are named.
        """
        if (self.certificate is None) is not (self.key is None):
            raise self.fault("certificate", "key", problem="one is useless without the other")
        pems = Pems(*(self._content(name) for name in ("certificate", "key", "ca")))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key, password=_no_password)
        except (ssl.SSLError, ValueError):
            problem = "not a certificate and the unencrypted key that belongs to it, both PEM"
            raise self.fault("certificate", "key", problem=problem) from None
        try:
            if self.ca is not None:
                context.load_verify_locations(self.ca)
        except ssl.SSLError:
            raise self.fault("ca", problem="no certificate in PEM") from None
        return pems

    def _content(self, name: str) -> bytes:
        path: Path | None = getattr(self, name)
        try:
            return b"" if path is None else path.read_bytes()
        except OSError as error:
            raise self.fault(name, problem=error.strerror or str(error)) from None

    def fault(self, *names: str, problem: str) -> FailedPrecondition:
        """The error of files whose settings are named."""
        flags = " and ".join(
            f"--{self.prefix}{name} ({getattr(self, name) or 'not given'})" for name in names
        )
        return FailedPrecondition(f"{flags}: {problem}", reason="TLS_FILES")


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials | None:
    """What a server shows; None, for plaintext, without files.

    With authorities, callers must show a certificate that one of them signed. The files are read
    again when they change.

    Raises:
        FailedPrecondition: as `TlsFiles.read`, or there is no certificate.
    """
    if not files.paths:
        return None
    if files.certificate is None:
        problem = "callers cannot be checked without a certificate of one's own"
        raise files.fault("certificate", problem=problem)
    configuration = FileValue(lambda: _server_configuration(files.read()), files.paths)
    return grpc.dynamic_ssl_server_credentials(
        configuration.get(),
        configuration.get,
        require_client_authentication=files.ca is not None,
    )


def client_credentials(files: TlsFiles) -> ClientTls:
    """What a client shows and believes.

    Its `get` raises FailedPrecondition as `TlsFiles.read`, or where there are no authorities.
    """

    def make() -> grpc.ChannelCredentials | None:
        if not files.paths:
            return None
        if files.ca is None:
            raise files.fault("ca", problem="a server cannot be believed without it")
        pems = files.read()
        return grpc.ssl_channel_credentials(pems.ca, pems.key or None, pems.certificate or None)

    return FileValue(make, files.paths)


def _server_configuration(pems: Pems) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(pems.key, pems.certificate)], root_certificates=pems.ca or None
    )


def _no_password() -> str:
    raise ValueError("the key is encrypted")
