"""Runs the gateway as a process: `python -m gateway --verify HOST:PORT [--draft HOST:PORT]`."""

from __future__ import annotations

import sys

from gateway.config import GatewayConfig
from gateway.service import GatewayService
from paceline.serving.config import load
from paceline.serving.server import run


def main() -> None:
    """Reads the settings and serves until a signal ends the process."""
    config = load(GatewayConfig, sys.argv[1:])
    run(GatewayService(config), config)


if __name__ == "__main__":
    main()
