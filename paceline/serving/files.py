"""Values that are made of files, and made anew when the files change: secrets are rotated in place.

What is in the files is not known here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar, cast

import structlog

from paceline.errors import FailedPrecondition

ValueT = TypeVar("ValueT")
_log = structlog.get_logger(__name__)


class FileValue(Generic[ValueT]):
    """Owns one such value. Files that have gone bad change nothing: the last good value stays."""

    def __init__(self, make: Callable[[], ValueT], paths: Sequence[Path]) -> None:
        self._make = make
        self._paths = paths
        self._stamp: tuple[object, ...] | None = None
        """What the files looked like when they were read last; None before the first time."""
        self._value: ValueT | None = None

    def get(self) -> ValueT:
        """The value of the files as they are now. Costs a look at each of them.

        Raises:
            FailedPrecondition: they were never good.
        """
        stamp = tuple(map(_look, self._paths))
        if stamp != self._stamp:
            self._read(stamp)
        return cast(ValueT, self._value)

    def _read(self, stamp: tuple[object, ...]) -> None:
        is_first = self._stamp is None
        try:
            value = self._make()
        except FailedPrecondition as error:
            if is_first:
                raise
            _log.error("files_unusable", paths=list(map(str, self._paths)), error=str(error))
        else:
            if not is_first and stamp != tuple(map(_look, self._paths)):
                return  # in the middle of a rotation; the next look sees all of it
            self._value = value
            if not is_first:
                _log.info("files_read_anew", paths=list(map(str, self._paths)))
        self._stamp = stamp


def _look(path: Path) -> object:
    """What changes whenever a file does; a mounted Secret is a link that moves to another file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
