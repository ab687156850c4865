"""The deployment tests run where they are asked for: they need programs that are fetched."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves tests with the marker `deploy` out unless the marker is named on the command line."""
    if "deploy" not in config.option.markexpr:
        left_out = [item for item in items if item.get_closest_marker("deploy")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
