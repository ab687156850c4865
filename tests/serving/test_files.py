"""Values of files: read once, anew after a change, and never worse than the last good ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.errors import FailedPrecondition
from paceline.serving.files import FileValue


def replace(path: Path, text: str) -> None:
    """Another file in its place."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


class Reader:
    """Makes a tuple of the texts of files, counts how often, and refuses a bad one."""

    def __init__(self, *paths: Path) -> None:
        self.paths = paths
        self.num_reads = 0
        self.before_end: Callable[[], None] = lambda: None
        """Called when the files have been read."""

    def __call__(self) -> tuple[str, ...]:
        """The texts."""
        self.num_reads += 1
        try:
            texts = tuple(path.read_text() for path in self.paths)
        except OSError as error:
            raise FailedPrecondition(str(error)) from None
        if "bad" in texts:
            raise FailedPrecondition("bad")
        self.before_end()
        return texts


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path]:
    """Two files, `a1` and `b1`."""
    for name in "ab":
        (tmp_path / name).write_text(f"{name}1")
    return tmp_path / "a", tmp_path / "b"


def test_it_is_read_once(paths: tuple[Path, Path]) -> None:
    """Files that stay as they are are looked at, not read."""
    reader = Reader(*paths)
    value = FileValue(reader, paths)
    assert 0 == reader.num_reads
    assert value.get() is value.get()
    assert (1, ("a1", "b1")) == (reader.num_reads, value.get())


def test_a_change_is_seen(paths: tuple[Path, Path]) -> None:
    """Each of the files counts, also one of the same length."""
    value = FileValue(Reader(*paths), paths)
    value.get()
    replace(paths[1], "b2")
    assert ("a1", "b2") == value.get()
    replace(paths[0], "a2")
    assert ("a2", "b2") == value.get()


def test_a_link_that_moves_is_a_change(tmp_path: Path) -> None:
    """A mounted Secret: the file is a link through a folder that is swapped."""
    for number in "12":
        (tmp_path / number).mkdir()
        (tmp_path / number / "a").write_text(f"a{number}")
    (tmp_path / "data").symlink_to("1")
    (tmp_path / "a").symlink_to("data/a")
    value = FileValue(Reader(tmp_path / "a"), [tmp_path / "a"])
    assert ("a1",) == value.get()
    (tmp_path / "new").symlink_to("2")
    (tmp_path / "new").replace(tmp_path / "data")
    assert ("a2",) == value.get()


def test_bad_files_change_nothing(paths: tuple[Path, Path]) -> None:
    """The last good value stays, and a bad one is not read again and again."""
    reader = Reader(*paths)
    value = FileValue(reader, paths)
    value.get()
    replace(paths[0], "bad")
    assert [("a1", "b1")] * 3 == [value.get() for _ in range(3)]
    assert 2 == reader.num_reads
    paths[0].unlink()
    assert ("a1", "b1") == value.get()
    replace(paths[0], "a3")
    assert ("a3", "b1") == value.get()


def test_files_that_were_never_good(paths: tuple[Path, Path]) -> None:
    """Every look tells, until they are good."""
    replace(paths[0], "bad")
    value = FileValue(Reader(*paths), paths)
    for _ in range(2):
        with pytest.raises(FailedPrecondition):
            value.get()
    replace(paths[0], "a2")
    assert ("a2", "b1") == value.get()


def test_half_of_a_rotation_is_not_taken(paths: tuple[Path, Path]) -> None:
    """A file that changes while they are read: the next look takes both."""
    reader = Reader(*paths)
    value = FileValue(reader, paths)
    value.get()
    replace(paths[0], "a2")
    reader.before_end = lambda: replace(paths[1], "b2")
    assert ("a1", "b1") == value.get()
    reader.before_end = lambda: None
    assert ("a2", "b2") == value.get()


def test_no_files_at_all() -> None:
    """A value of nothing is made once."""
    reader = Reader()
    value = FileValue(reader, ())
    assert [(), ()] == [value.get(), value.get()]
    assert 1 == reader.num_reads
