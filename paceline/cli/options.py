"""Options that several commands share. Knows how they are written, not what they do."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from paceline.bench.prompts import Question, own_questions, read_questions, spread
from paceline.cli.client import RULE_NAMES, Access, GenerationOptions
from paceline.errors import FailedPrecondition
from paceline.serving.credentials import TlsFiles, client_credentials
from paceline.v1 import gateway_pb2

DEFAULT_ADDRESS = "127.0.0.1:50051"
UINT64 = click.IntRange(0, 2**64 - 1)
_BY_SERVICE = "chosen by the service"
_Command = Callable[..., Any]


class DraftLength(click.ParamType[Any]):
    """A number of draft tokens, or `auto`, which becomes None."""

    name = "N|auto"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | None:
        """The number, or None.

        Raises:
            click.BadParameter: neither.
        """
        if value in (None, "auto"):
            return None
        if not str(value).isdecimal():
            self.fail(f"{value!r} is neither a number from 0 up nor auto", param, ctx)
        return int(value)


class Bias(click.ParamType[Any]):
    """A token id and what is added to its logit, written ID=VALUE."""

    name = "ID=VALUE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, float]:
        """The pair.

        Raises:
            click.BadParameter: it is no pair of an id and a number.
        """
        token_id, _, bias = str(value).partition("=")
        try:
            if token_id.isdecimal() and int(token_id) < 2**32:
                return int(token_id), float(bias)
        except ValueError:
            pass
        self.fail(f"{value!r} is not an id and a number, as in 42=-1.5", param, ctx)


def address_option(command: _Command) -> _Command:
    """Adds `--address` and what a gateway may ask for; the command takes them as `access`."""

    @functools.wraps(command)
    def with_access(*args: Any, **options: Any) -> Any:
        ca, certificate, key = (options.pop(name) for name in ("ca", "certificate", "key"))
        address, server_name, token = (
            options.pop(name) for name in ("address", "server_name", "token")
        )
        try:
            credentials = client_credentials(TlsFiles("", certificate, key, ca)).get()
        except FailedPrecondition as error:
            raise click.UsageError(str(error)) from None
        access = Access(address, credentials, server_name, token)
        return command(*args, access=access, **options)

    added = (
        click.option(
            "--address",
            default=DEFAULT_ADDRESS,
            envvar="PACELINE_ADDRESS",
            help="HOST:PORT of the gateway.",
        ),
        _file("--ca", "Speak TLS, with a gateway whose certificate comes from these authorities."),
        _file("--certificate", "Certificate chain to show the gateway."),
        _file("--key", "The certificate's key."),
        click.option(
            "--server-name",
            default="",
            envvar="PACELINE_SERVER_NAME",
            show_default="host of the address",
            help="Name that the gateway's certificate must be for.",
        ),
        click.option(
            "--token",
            default="",
            envvar="PACELINE_TOKEN",
            show_default="none",
            help="Access token; a variable keeps it out of the list of processes.",
        ),
    )
    decorated: _Command = with_access
    for decorate in reversed(added):
        decorated = decorate(decorated)
    return decorated


def prompts_option(command: _Command) -> _Command:
    """Adds `--prompts`, which `choose_questions` reads."""
    return click.option(
        "--prompts",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        show_default="prompts of the project",
        help="Prompts, one JSON object a line: question_id, category, turns (the first is used).",
    )(command)


def choose_questions(path: Path | None, limit: int | None) -> list[Question]:
    """The questions of a file, or the project's own; `limit` of them, spread over the categories.

    Raises:
        click.BadParameter: a line of the file is malformed; it is named.
    """
    try:
        questions = read_questions(path) if path else own_questions()
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--prompts") from None
    return spread(questions, len(questions) if limit is None else limit)


def model_option(command: _Command) -> _Command:
    """Adds `--model`, the target that is asked."""
    return click.option(
        "--model",
        default="",
        envvar="PACELINE_MODEL",
        show_default="the first that is served",
        help="Target, where the gateway serves several; `paceline status` lists them.",
    )(command)


def choose_model(served: gateway_pb2.ListModelsResponse, name: str) -> gateway_pb2.ServedModel:
    """The target of this name, the first one without a name.

    Raises:
        click.ClickException: it is not served, or none is ready.
    """
    for model in served.models:
        if name in ("", model.model.name):
            return model
    names = ", ".join(sorted({model.model.name for model in served.models}))
    if names:
        raise click.BadParameter(f"{name!r} is not served; served: {names}", param_hint="--model")
    raise click.ClickException("no target is ready")


def json_option(command: _Command) -> _Command:
    """Adds `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def generation_options(command: _Command) -> _Command:
    """Adds what a generation can be asked; `collect` gathers it."""
    added = (
        _optional("--max-tokens", click.INT, "Largest number of output tokens.", "up to the model"),
        _optional("--temperature", click.FLOAT, "Divisor of the logits; 0 is greedy.", "1"),
        _optional("--top-p", click.FLOAT, "Probability mass kept, in (0, 1].", "1"),
        _optional("--top-k", click.INT, "Number of likeliest tokens kept.", "all"),
        _optional("--min-p", click.FLOAT, "Least share of the largest probability kept.", "0"),
        _optional("--repetition-penalty", click.FLOAT, "Divisor of logits already seen.", "1"),
        _optional("--presence-penalty", click.FLOAT, "Taken from logits in the output.", "0"),
        _optional("--frequency-penalty", click.FLOAT, "The same, per occurrence.", "0"),
        click.option(
            "--logit-bias", type=Bias(), multiple=True, help="Added to a token's logit; repeatable."
        ),
        click.option(
            "--min-tokens", type=click.INT, default=0, help="Output tokens before any stop token."
        ),
        click.option("--ignore-eos", is_flag=True, help="Go on past the model's own end."),
        _optional("--seed", UINT64, "Seed of every draw.", "fresh"),
        model_option,
        click.option("--stop", multiple=True, help="String that ends the output; repeatable."),
        click.option(
            "--rule",
            type=click.Choice(RULE_NAMES),
            default=None,
            show_default=_BY_SERVICE,
            help="Verification rule.",
        ),
        click.option(
            "--draft",
            default="",
            show_default=_BY_SERVICE,
            help="Draft source, or none; `paceline status` lists them.",
        ),
        click.option(
            "--num-draft-tokens",
            type=DraftLength(),
            default="auto",
            help="Length of every proposal in tokens; 0 is plain decoding.",
        ),
    )
    for decorate in reversed(added):
        command = decorate(command)
    return command


def collect(options: dict[str, Any]) -> GenerationOptions:
    """The record of what `generation_options` added, taken out of `options`."""
    names = GenerationOptions.__dataclass_fields__.keys() & options.keys()
    values = {name: options.pop(name) for name in names}
    return GenerationOptions(**{**values, "rule": values["rule"] or ""})


def _optional(flag: str, kind: click.ParamType[Any], text: str, unset: str) -> Callable[..., Any]:
    return click.option(flag, type=kind, default=None, show_default=unset, help=text)


def _file(flag: str, text: str) -> Callable[..., Any]:
    variable = f"PACELINE_{flag.removeprefix('--').upper()}"
    path = click.Path(dir_okay=False, path_type=Path)
    return click.option(flag, type=path, envvar=variable, show_default="none", help=f"{text} PEM.")
