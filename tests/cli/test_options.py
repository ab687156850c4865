"""Which target the commands ask, where a gateway serves several."""

from __future__ import annotations

from typing import Any

import pytest

COMMANDS = {
    "generate": ("generate", "hi"),
    "check": ("check",),
    "bench": ("bench", "--limit", "1", "--max-tokens", "9"),
    "plan": ("plan", "--limit", "1", "--max-tokens", "9"),
}
MEASURING = tuple(name for name in COMMANDS if name != "generate")


@pytest.fixture(autouse=True)
def no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake's models have no files to be measured."""
    unknown = {"model": "letters", "unknown": "not here"}
    monkeypatch.setattr("paceline.cli.plan.describe_memory", lambda *_: unknown)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_model_that_is_named(gateway: Any, paceline: Any, name: str) -> None:
    """Every request names it, those for ids too."""
    gateway.model_names = ("letters", "others")
    paceline(*COMMANDS[name], "--model", "others")
    assert {"others"} == {request.model for request in gateway.requests}
    assert gateway.tokenized_for <= {"others"}


@pytest.mark.parametrize("name", MEASURING)
def test_a_model_that_is_not_served(gateway: Any, paceline: Any, name: str) -> None:
    """Wrong usage, with the names of those that are."""
    gateway.model_names = ("letters", "others")
    result = paceline(*COMMANDS[name], "--model", "nobody")
    assert (2, []) == (result.exit_code, gateway.requests)
    assert "'nobody' is not served; served: letters, others" in result.stderr


@pytest.mark.parametrize("name", MEASURING)
def test_no_target_is_ready(gateway: Any, paceline: Any, name: str) -> None:
    """A line, and no trace."""
    gateway.model_names = ()
    result = paceline(*COMMANDS[name])
    assert (1, []) == (result.exit_code, gateway.requests)
    assert "Error: no target is ready" in result.stderr
