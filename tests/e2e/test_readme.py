"""What the README prints works as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.e2e.conftest import Running

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(600)]

README = Path(__file__).parents[2] / "README.md"


def test_python_client_works_as_printed(smollm2_pair: Running, tmp_path: Path) -> None:
    """The client of the README, unchanged, streams an answer and its figures."""
    (client,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    assert len(client.splitlines()) <= 25
    path = tmp_path / "client.py"
    path.write_text(client)
    command = [sys.executable, str(path), smollm2_pair.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (0, "") == (done.returncode, done.stderr)
    *answer, figures = done.stdout.strip().splitlines()
    assert len(" ".join(answer)) > 20
    assert re.fullmatch(r"\d+ tokens/s, \d+\.\d per round", figures)
