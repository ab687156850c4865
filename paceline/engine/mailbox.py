"""Work for one thread, handed in by any: done in order, or failed at once when it is too late.

It knows neither what the work is nor when the thread reads.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from paceline.errors import Aborted

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Letter:
    """What to do, and the future that fails when it raises or is never done."""

    action: Callable[[], None]
    future: Future[Any]


class Mailbox:
    """Letters from any thread to one."""

    def __init__(self) -> None:
        self._letters: queue.SimpleQueue[_Letter] = queue.SimpleQueue()
        self._gate = threading.Lock()  # so that no letter slips in behind the last reading
        self._is_open = True

    def post(self, function: Callable[[], T]) -> Future[T]:
        """Hands in a function; the future has its result."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        self.send(lambda: future.set_result(function()), future)
        return future

    def send(self, action: Callable[[], None], future: Future[Any]) -> None:
        """Hands in an action that settles `future` itself, now or later.

        The future fails with what the action raises, or with Aborted when nobody reads any more.
        """
        with self._gate:
            if self._is_open:
                self._letters.put(_Letter(action, future))
                return
        future.set_exception(Aborted("the engine has stopped"))

    def read(self, timeout_s: float | None) -> None:
        """Does what was handed in so far, after waiting so long for a first letter.

        None waits for ever.
        """
        if timeout_s != 0:
            with contextlib.suppress(queue.Empty):
                _do(self._letters.get(timeout=timeout_s))
        while not self._letters.empty():  # nobody else reads
            _do(self._letters.get())

    def shut(self) -> None:
        """Takes no more letters, and fails those that were not read."""
        with self._gate:
            self._is_open = False
        while not self._letters.empty():
            self._letters.get().future.set_exception(Aborted("the engine has stopped"))


def _do(letter: _Letter) -> None:
    try:
        letter.action()
    except Exception as error:  # one letter's fault is not the next one's
        if not letter.future.done():
            letter.future.set_exception(error)
