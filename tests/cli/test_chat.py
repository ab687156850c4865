"""`paceline chat`: history goes with every turn, and a failed turn leaves it."""

from __future__ import annotations

from typing import Any

import grpc

from paceline.v1 import gateway_pb2


def _turns(request: gateway_pb2.GenerateRequest) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in request.prompt.chat.messages]


def test_history_is_kept(gateway: Any, paceline: Any) -> None:
    """The second turn carries the first and its answer."""
    result = paceline("chat", "--system", "be brief", stdin="one\ntwo\n")
    assert (result.exit_code, result.stdout) == (0, "abcdefghi\nabcdefghi\n")
    assert [
        ("system", "be brief"),
        ("user", "one"),
        ("assistant", "abcdefghi"),
        ("user", "two"),
    ] == _turns(gateway.requests[1])


def test_reset_forgets(gateway: Any, paceline: Any) -> None:
    """/reset goes back to the system message."""
    paceline("chat", "--system", "be brief", stdin="one\n/reset\ntwo\n")
    assert [("system", "be brief"), ("user", "two")] == _turns(gateway.requests[1])


def test_quit_leaves(gateway: Any, paceline: Any) -> None:
    """Nothing after /quit is asked; empty lines ask nothing."""
    assert paceline("chat", stdin="\n/quit\none\n").exit_code == 0
    assert gateway.requests == []


def test_failed_turn_is_not_history(gateway: Any, paceline: Any) -> None:
    """An error is printed and the conversation goes on without the turn."""
    gateway.failure = grpc.StatusCode.UNAVAILABLE
    result = paceline("chat", stdin="one\ntwo\n")
    assert result.exit_code == 0
    assert 2 == result.stderr.count("error: UNAVAILABLE")
    assert [("user", "two")] == _turns(gateway.requests[1])
