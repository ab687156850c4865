"""Settings of a service, from flags, environment and a file; the one reader of the environment.

A setting has one name in three spellings: `--drain-timeout-s`, `PACELINE_VERIFY_DRAIN_TIMEOUT_S`,
and `drain_timeout_s` in the table `[verify]` of a TOML file. Flags go before the environment, that
before the file, that before the default. What a setting does is not known here.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn, TypeVar, get_origin

from pydantic import Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from paceline.errors import FailedPrecondition
from paceline.serving.credentials import TlsFiles
from paceline.serving.placement import CORES_PATTERN
from paceline.serving.tracing import Tracer, Untraced

FILE_VARIABLE = "PACELINE_CONFIG"
SECTIONS = ("verify", "draft", "gateway")
CACHE_DIR = Path("~/.cache/paceline")
"""Where what was fetched or converted is kept, unless a setting says otherwise."""
Settings = Mapping[str, Any]


class ServerConfig(BaseSettings):
    """What every service needs to run. Each service adds its own in a subclass with a `section`."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid")

    section: ClassVar[str]
    """The service's word in flags' usage, variables and the file: verify, draft or gateway."""

    config: Path | None = Field(
        default=None, description=f"TOML file of settings (or {FILE_VARIABLE})"
    )
    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(
        default=0, ge=0, le=65535, description="port to listen on; 0 takes a free one"
    )
    tls_certificate: Path | None = Field(
        default=None, description="PEM file with this server's certificate chain; unset: plaintext"
    )
    tls_key: Path | None = Field(default=None, description="PEM file with its key, unencrypted")
    tls_ca: Path | None = Field(
        default=None,
        description="PEM file of authorities; with it every caller must show a certificate that "
        "one of them signed",
    )
    health_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="port for health checks alone, on the same address and never with TLS; 0 takes "
        "a free one, unset serves none",
    )
    metrics_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="port for /metrics, on the same address; 0 takes a free one, unset serves none",
    )
    zone: str = Field(
        default="",
        description="where this process runs; a gateway prefers replicas of its own zone",
    )
    cores: str = Field(
        default="",
        pattern=CORES_PATTERN,
        description="cores that this process keeps to, as 0-3,8; unset: all that it may use",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="lowest level that is logged"
    )
    log_format: Literal["auto", "console", "json"] = Field(
        default="auto", description="console, json, or auto: console on a terminal"
    )
    reflection: bool = Field(default=False, description="serve gRPC reflection, for grpcurl")
    otlp_endpoint: str = Field(
        default="",
        pattern=r"^(|https?://.+)$",
        description="where traces go, OTLP over gRPC, as http://HOST:4317; unset sends none",
    )
    trace_share: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="share of calls traced, of those that bring no trace of their own",
    )
    trace_round_share: float = Field(
        default=0.1, ge=0, le=1, description="share of a traced session's rounds that get a span"
    )
    drain_timeout_s: float = Field(
        default=60.0,
        ge=0,
        allow_inf_nan=False,
        description="seconds that running sessions get to end",
    )
    lame_duck_s: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="seconds between not ready and draining"
    )
    max_connection_age_s: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="seconds after which a client is asked to connect anew, and so to find new "
        "replicas; calls that run go on; 0 never asks",
    )
    max_message_mib: int = Field(default=16, ge=1, le=63, description="largest message in MiB")

    def tls(self) -> TlsFiles:
        """What this server shows its callers, and whom it believes."""
        return TlsFiles("tls-", self.tls_certificate, self.tls_key, self.tls_ca)

    def tracer(self) -> Tracer:
        """Where this process sends its spans.

        Raises:
            FailedPrecondition: traces are wanted, and their packages are not installed.
        """
        if not self.otlp_endpoint:
            return Untraced()
        try:  # only here, so that a process without traces pays nothing for them
            from paceline.serving.otel import open_otlp
        except ImportError as error:
            raise FailedPrecondition(f"traces need the extra `tracing`: {error}") from None
        service = f"paceline-{self.section}"
        return open_otlp(service, self.otlp_endpoint, self.trace_share, self.trace_round_share)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Values that are passed, and nothing else: only `load` looks around."""
        return (init_settings,)


ConfigT = TypeVar("ConfigT", bound=ServerConfig)


def load(
    cls: type[ConfigT], argv: Sequence[str], environ: Mapping[str, str] = os.environ
) -> ConfigT:
    """The settings of one service, merged and checked.

    Raises:
        SystemExit: 0 after `--help`; 2 for a wrong value or an unknown name, after one line per
            fault on stderr.
    """
    try:
        flags = _from_flags(cls, argv)
        own = environ.get(_variable(cls, "config"))
        path = flags.get("config") or own or environ.get(FILE_VARIABLE)
        file = _from_file(cls, Path(path)) if path else {}
        return cls(**{**file, **_from_environment(cls, environ), **flags})
    except ValidationError as error:
        _refuse(cls, [_fault(cls, fault["loc"], fault) for fault in error.errors()])
    except (SettingsError, OSError, tomllib.TOMLDecodeError, ValueError) as error:
        _refuse(cls, [str(error)])


def _from_flags(cls: type[ServerConfig], argv: Sequence[str]) -> dict[str, Any]:
    source: CliSettingsSource[Any] = CliSettingsSource(
        cls,
        cli_prog_name=cls.section,
        cli_parse_args=list(argv),
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_exit_on_error=False,
        cli_hide_none_type=True,
    )
    # An empty text for a list is an empty list, as in the environment.
    return {
        name: [part for part in value if part] if isinstance(value, list) else value
        for name, value in source().items()
    }


def _from_environment(cls: type[ServerConfig], environ: Mapping[str, str]) -> dict[str, Any]:
    """Values of the variables with the service's prefix; lists are separated by commas."""
    prefix = _variable(cls, "")
    values: dict[str, Any] = {}
    for variable, text in environ.items():
        if variable.startswith(prefix):
            name = variable.removeprefix(prefix).lower()
            values[name] = _split(text) if _is_list(cls, name) else text
    return values


def _from_file(cls: type[ServerConfig], path: Path) -> dict[str, Any]:
    tables = tomllib.loads(path.read_text())
    for name in tables:
        if name not in SECTIONS:
            raise ValueError(f"{path}: unknown table [{name}]; known are {', '.join(SECTIONS)}")
    return find_table(tables, cls.section, path)


def find_table(tables: Mapping[str, Any], section: str, path: Path) -> dict[str, Any]:
    """The settings that a file has for one service; none without a table of its.

    Raises:
        ValueError: it is no table, or names another file.
    """
    table = tables.get(section, {})
    if not isinstance(table, dict):
        raise ValueError(f"{path}: {section} must be a table")
    if "config" in table:
        raise ValueError(f"{path}: a file names no other file")
    return table


def _is_list(cls: type[ServerConfig], name: str) -> bool:
    field = cls.model_fields.get(name)
    return field is not None and get_origin(field.annotation) in (list, tuple)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _variable(cls: type[ServerConfig], name: str) -> str:
    return f"PACELINE_{cls.section}_{name}".upper()


def _fault(
    cls: type[ServerConfig], location: tuple[int | str, ...], fault: Mapping[str, Any]
) -> str:
    """One line that says where a wrong value can have come from, and what is wrong with it."""
    name = str(location[0])
    flag, variable = f"--{name.replace('_', '-')}", _variable(cls, name)
    if name not in cls.model_fields:
        return f"{variable} (or {name} in the file): no such setting"
    if fault["type"] == "missing":
        return f"{flag} ({variable}): must be given"
    return f"{flag} ({variable}): {fault['msg']}, got {fault['input']!r}"


def _refuse(cls: type[ServerConfig], faults: Sequence[str]) -> NoReturn:
    for fault in faults:
        sys.stderr.write(f"{cls.section}: {fault}\n")
    raise SystemExit(2)
