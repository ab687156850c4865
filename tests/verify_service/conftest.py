"""Scripted targets of the verify tier's tests."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def cycle(write_table: Any) -> str:
    """A target over a, b, c that says what must come next: abcabc..."""
    name: str = write_table(
        1, 0, 0, suffixes={"a": [0, 1, 0], "b": [0, 0, 1], "c": [1, 0, 0]}, eos=None
    )
    return name
