"""The mailbox: every future is settled, whoever hands in what, and when."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from paceline.engine.mailbox import Mailbox
from paceline.errors import Aborted


def test_letters_are_done_in_order() -> None:
    """What was handed in first is done first, and its result comes back."""
    mailbox, done = Mailbox(), list[int]()

    def note(number: int) -> int:
        done.append(number)
        return 10 * number

    futures = [mailbox.post(lambda n=n: note(n)) for n in range(4)]  # type: ignore[misc]  # a default binds n
    assert [] == done
    mailbox.read(0)
    assert [0, 1, 2, 3] == done
    assert [0, 10, 20, 30] == [future.result(0) for future in futures]


def test_reading_waits_for_a_letter() -> None:
    """A reader that waits goes on when something is handed in from another thread."""
    mailbox = Mailbox()
    reader = threading.Thread(target=mailbox.read, args=(None,))
    reader.start()
    assert 7 == mailbox.post(lambda: 7).result(10)
    reader.join(10)
    assert not reader.is_alive()


def test_a_letter_s_fault_is_its_own() -> None:
    """An exception reaches the future of its letter; the next letter is done."""
    mailbox = Mailbox()
    bad, good = mailbox.post(lambda: 1 // 0), mailbox.post(lambda: 1)
    mailbox.read(0)
    with pytest.raises(ZeroDivisionError):
        bad.result(0)
    assert 1 == good.result(0)


def test_a_fault_after_settling_is_no_second_result() -> None:
    """An action that settles its future and then fails leaves the result as it is."""
    mailbox, future = Mailbox(), Future[int]()

    def settle_and_fail() -> None:
        future.set_result(3)
        raise ValueError

    mailbox.send(settle_and_fail, future)
    mailbox.read(0)
    assert 3 == future.result(0)


def test_nothing_waits_for_a_reader_that_is_gone() -> None:
    """Letters unread at the end, and later ones, fail with Aborted and are not done."""
    mailbox, done = Mailbox(), list[int]()
    unread = mailbox.post(lambda: done.append(1))
    mailbox.shut()
    late = mailbox.post(lambda: done.append(2))
    for future in (unread, late):
        with pytest.raises(Aborted, match="stopped"):
            future.result(0)
    assert [] == done
