"""`python -m draft_service`: runs one draft replica."""

from __future__ import annotations

import sys

from draft_service.config import DraftConfig
from draft_service.service import DraftService
from paceline.serving.config import load
from paceline.serving.server import run


def main() -> None:
    """Runs until a signal ends it."""
    config = load(DraftConfig, sys.argv[1:])
    run(DraftService(config), config)


if __name__ == "__main__":
    main()
