"""What can be said of the images without building them; that they run is in test_cluster.py."""

from __future__ import annotations

import subprocess

import pytest

from tests.deploy.tools import ROOT, find

pytestmark = pytest.mark.deploy
DOCKERFILE = ROOT / "deploy" / "Dockerfile"


def lint(text: str) -> subprocess.CompletedProcess[str]:
    """What hadolint says of a Dockerfile."""
    return subprocess.run((find("hadolint"), "-"), input=text, capture_output=True, text=True)


def test_the_dockerfile_is_clean() -> None:
    """The linter has nothing to say of it, and no rule is switched off."""
    text = DOCKERFILE.read_text()
    done = lint(text)
    assert (0, "") == (done.returncode, done.stdout)
    assert "hadolint ignore" not in text


def test_mistakes_are_seen() -> None:
    """The check can fail: a base without a version, a shell that goes nowhere."""
    done = lint("FROM python\nRUN cd /tmp\n")
    assert 1 == done.returncode
    assert all(rule in done.stdout for rule in ("DL3006", "DL3003"))
