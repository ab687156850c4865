"""Log lines: their form, their level, and that stdout stays free of them."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from paceline.serving.logging import bind_call, configure, current_request_id, is_request_id


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Whether it is one."""
        return True


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Leaves logging as it was for other tests."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The JSON lines on stderr; nothing may be on stdout."""
    captured = capsys.readouterr()
    assert "" == captured.out
    return [json.loads(line) for line in captured.err.splitlines()]


def test_json_has_the_bound_call(capsys: pytest.CaptureFixture[str]) -> None:
    """A line is one JSON object with time, level, event, its values and the running call."""
    configure("info", "auto")
    bind_call("Verify", [("x-request-id", "r-1")])
    structlog.get_logger().info("round", accepted=3)
    (line,) = lines(capsys)
    assert line.pop("timestamp").endswith("Z")
    assert {
        "event": "round",
        "level": "info",
        "accepted": 3,
        "rpc": "Verify",
        "request_id": "r-1",
    } == line


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("debug", ["debug", "info", "warning", "error"]),
        ("info", ["info", "warning", "error"]),
        ("warning", ["warning", "error"]),
        ("error", ["error"]),
    ],
)
def test_levels(capsys: pytest.CaptureFixture[str], level: str, expected: list[str]) -> None:
    """Lines below the level are not written."""
    configure(level, "json")
    log = structlog.get_logger()
    for name in ("debug", "info", "warning", "error"):
        log.log(logging.getLevelNamesMapping()[name.upper()], name)
    assert expected == [line["event"] for line in lines(capsys)]


def test_auto_is_for_people_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal a line is text."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    configure("info", "auto")
    structlog.get_logger().info("hello", answer=42)
    assert "hello" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_console_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """The form can be chosen against the stream; colours stay for terminals."""
    configure("info", "console")
    structlog.get_logger().info("hello")
    text = capsys.readouterr().err
    assert "hello" in text
    assert "\x1b" not in text


def test_a_trace_is_inside_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    """An exception stays one line of JSON."""
    configure("info", "json")
    structlog.get_logger().error("call_failed", exc_info=ValueError("boom"))
    (line,) = lines(capsys)
    assert "ValueError: boom" in line["exception"]


def test_a_trace_shows_no_variables(capsys: pytest.CaptureFixture[str]) -> None:
    """What people see of an exception is where it was raised, not what prompts were at hand."""
    prompt = "".join(["a ", "private ", "prompt"])
    configure("info", "console")
    try:
        raise ValueError(len(prompt))
    except ValueError:
        structlog.get_logger().exception("call_failed")
    text = capsys.readouterr().err
    assert "ValueError: 16" in text
    assert "a private prompt" not in text


def test_libraries_log_in_the_same_form(capsys: pytest.CaptureFixture[str]) -> None:
    """The standard library's log is JSON too, from warnings up."""
    configure("debug", "json")
    logging.getLogger("some.library").info("chatter")
    logging.getLogger("some.library").warning("careful: %d", 7)
    (line,) = lines(capsys)
    assert ("careful: 7", "warning") == (line["event"], line["level"])


def test_configure_may_be_called_again(capsys: pytest.CaptureFixture[str]) -> None:
    """A logger that exists follows the last call, and no line is written twice."""
    log = structlog.get_logger()
    configure("error", "console")
    log.info("hidden")
    configure("info", "json")
    log.info("shown")
    logging.getLogger("some.library").warning("once")
    assert ["shown", "once"] == [line["event"] for line in lines(capsys)]


def test_current_request_id() -> None:
    """Known inside a call, empty outside."""
    assert "" == current_request_id()
    assert bind_call("Do", None) == current_request_id() != ""


@pytest.mark.parametrize("sent", ["", "caf\u00e9", "a\tb"])
def test_an_id_that_could_not_travel_on_is_replaced(sent: str) -> None:
    """It becomes metadata of the calls behind this one; what is too long is cut."""
    made = bind_call("Verify", [("x-request-id", sent)])
    assert made == current_request_id() != sent
    assert is_request_id(made) and 32 == len(made)
    assert "x" * 128 == bind_call("Verify", [("x-request-id", "x" * 200)])
