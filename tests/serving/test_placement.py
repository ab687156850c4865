"""Cores: how they are written, and which a process may be kept to."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
from pydantic import ValidationError

from paceline.errors import FailedPrecondition
from paceline.serving.placement import keep_to, num_cores, parse_cores
from verify_service.config import VerifyConfig


@pytest.mark.parametrize(
    ("text", "cores"),
    [("", set()), ("3", {3}), ("0-2", {0, 1, 2}), ("0-1,4,6-7", {0, 1, 4, 6, 7}), ("3-1", set())],
)
def test_cores_as_the_system_writes_them(text: str, cores: set[int]) -> None:
    """Single cores and ranges with both ends."""
    assert cores == parse_cores(text)


@pytest.mark.parametrize("text", ["a", "1-", "-1", "1,,2", "1 2", "1-2-3", "99999"])
def test_what_names_no_cores(text: str) -> None:
    """A text that cannot be read is refused with the settings."""
    with pytest.raises(ValidationError, match="cores"):
        VerifyConfig(model="m", cores=text)


@pytest.mark.parametrize("text", ["9999", "0-9999", "3-1"])
def test_cores_that_are_not_there(text: str) -> None:
    """The refusal names the setting and what there is; nothing is changed."""
    before = os.sched_getaffinity(0)
    with pytest.raises(FailedPrecondition) as refused:
        keep_to(text)
    assert refused.value.message.startswith(f"--cores {text}: this process may use the cores ")
    assert before == os.sched_getaffinity(0)


def test_all_cores_unless_said_otherwise() -> None:
    """Without a setting the process keeps what it has."""
    before = os.sched_getaffinity(0)
    keep_to("")
    assert (before, len(before)) == (os.sched_getaffinity(0), num_cores())


@pytest.mark.parametrize(
    ("cores", "threads", "expected"),
    [("", 0, 0), ("", 3, 3), ("0-1", 0, 2), ("0-1", 1, 1), ("0-1", 8, 2)],
)
def test_threads_follow_the_cores(cores: str, threads: int, expected: int) -> None:
    """A step has no more threads than cores: those that wait would be in the way of the others."""
    config = VerifyConfig(model="m", cores=cores, threads=threads)
    assert expected == config.engine_settings().num_threads


def test_threads_that_are_there_move_too() -> None:
    """Libraries start threads at their import, before any setting is read."""
    core = max(os.sched_getaffinity(0))
    code = f"""
        import os, threading
        from paceline.serving.placement import keep_to

        is_kept, found = threading.Event(), []
        def look():
            is_kept.wait()
            found.append(os.sched_getaffinity(0))
        thread = threading.Thread(target=look)
        thread.start()
        keep_to("{core}")
        is_kept.set()
        thread.join()
        print(found == [{{{core}}}] == [os.sched_getaffinity(0)])
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], check=True, capture_output=True, text=True
    )
    assert "True\n" == ran.stdout
