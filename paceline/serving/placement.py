"""Which cores a process computes on. Which process should get which is not known here.

Cores are written as the system writes them in /proc: `0-3,8`.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from paceline.errors import FailedPrecondition

CORES_PATTERN = r"^(\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*)?$"
_TASKS = Path("/proc/self/task")


def parse_cores(text: str) -> frozenset[int]:
    """The cores that a text of `CORES_PATTERN` names; a range that runs down is empty."""
    ranges = [part.partition("-") for part in text.split(",") if part]
    return frozenset(
        core for first, _, last in ranges for core in range(int(first), int(last or first) + 1)
    )


def num_cores() -> int:
    """Cores that this process may use, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def keep_to(text: str) -> None:
    """Keeps this process, with every thread that it has or starts, to some of its cores.

    Raises:
        FailedPrecondition: it may not use one of them, or the system cannot do it.
    """
    if not text:
        return
    if not hasattr(os, "sched_setaffinity"):
        raise FailedPrecondition("--cores: this system does not bind processes to cores")
    cores, allowed = parse_cores(text), os.sched_getaffinity(0)
    if not cores or not cores <= allowed:
        has = ",".join(str(core) for core in sorted(allowed))
        raise FailedPrecondition(f"--cores {text}: this process may use the cores {has}")
    for task in _TASKS.iterdir():  # a library's threads may have been started by its import
        with contextlib.suppress(ProcessLookupError):  # and have ended meanwhile
            os.sched_setaffinity(int(task.name), cores)
