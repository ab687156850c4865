"""What every command shares at the terminal: running a coroutine, printing an error status.

Knows no command. Exit codes: 0 success, 1 an error status, 2 wrong usage (click's own), 130 when
interrupted.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

import click
import grpc.aio

from paceline.errors import InvalidArgument, RetryableError
from paceline.serving.statuses import error_of

T = TypeVar("T")
EXIT_ERROR = 1
EXIT_INTERRUPTED = 130


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a command's coroutine; an error status is printed and ends the process with 1."""
    try:
        return asyncio.run(coroutine)
    except grpc.aio.AioRpcError as error:
        click.echo(describe(error), err=True)
        sys.exit(EXIT_ERROR)
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(EXIT_INTERRUPTED)


def describe(error: grpc.aio.AioRpcError) -> str:
    """An error status with its details, one fact a line."""
    cause = error_of(error)
    lines = [f"error: {error.code().name}: {error.details() or 'no message'}"]
    lines.append(f"  reason: {cause.reason}")
    if isinstance(cause, InvalidArgument):
        lines.append(f"  field: {cause.field}")
    if isinstance(cause, RetryableError):
        lines.append(f"  retry after: {cause.retry_after_s:g} s")
    lines += [f"  {key}: {value}" for key, value in sorted(cause.metadata.items())]
    return "\n".join(lines)
