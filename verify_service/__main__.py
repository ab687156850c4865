"""`python -m verify_service`: runs one verify replica."""

from __future__ import annotations

import sys

from paceline.serving.config import load
from paceline.serving.server import run
from verify_service.config import VerifyConfig
from verify_service.service import VerifyService


def main() -> None:
    """Runs until a signal ends it."""
    config = load(VerifyConfig, sys.argv[1:])
    run(VerifyService(config), config)


if __name__ == "__main__":
    main()
