"""Log lines: for people on a terminal, JSON elsewhere, always on stderr.

Standard output belongs to the lines that a parent process reads (`server.py`). Which events are
worth a line is not known here.
"""

from __future__ import annotations

import logging
import sys
import uuid
from collections.abc import Iterable, Sequence

import structlog
from structlog.typing import Processor

MAX_REQUEST_ID_LENGTH = 128
REQUEST_ID_KEY = "x-request-id"


def configure(level: str, log_format: str) -> None:
    """Sets up structlog and the standard library's log alike. May be called again.

    Args:
        level: lowest level shown, "debug" to "error".
        log_format: "console", "json", or "auto": console where stderr is a terminal.
    """
    is_console = log_format == "console" or (log_format == "auto" and sys.stderr.isatty())
    shared: Sequence[Processor] = (
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    )
    console = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(),
        # The default prints every local variable, prompts among them.
        exception_formatter=structlog.dev.plain_traceback,
    )
    ending: Sequence[Processor] = (
        (console,)
        if is_console
        else (structlog.processors.format_exc_info, structlog.processors.JSONRenderer())
    )
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, *ending],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        # A cached logger would keep the settings of the first call.
        cache_logger_on_first_use=False,
    )
    _configure_libraries(shared, ending)


def _configure_libraries(shared: Sequence[Processor], ending: Sequence[Processor]) -> None:
    """Sends what libraries log through the same processors, from warnings up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *ending],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)


def bind_call(rpc: str, metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """Names the running call in every line that its task logs, and gives its request id.

    The caller's `x-request-id` is kept, if it is printable ASCII; else one is made.
    """
    sent = (value for key, value in metadata or () if key == REQUEST_ID_KEY)
    request_id = str(next(sent, ""))[:MAX_REQUEST_ID_LENGTH]
    if not request_id or not is_request_id(request_id):
        request_id = uuid.uuid4().hex
    structlog.contextvars.bind_contextvars(rpc=rpc, request_id=request_id)
    return request_id


def is_request_id(text: str) -> bool:
    """Whether a text can be one: it travels from tier to tier as metadata."""
    return len(text) <= MAX_REQUEST_ID_LENGTH and text.isascii() and text.isprintable()


def current_request_id() -> str:
    """The id of the call that runs in this task; empty outside of one."""
    return str(structlog.contextvars.get_contextvars().get("request_id", ""))
