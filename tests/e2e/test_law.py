"""The law of the output through the three services: it is the target's, whatever the draft does.

Seeds are fixed and proposals pinned to a length, so nearly the same tokens are judged on every run;
only whether a draft is there in time for the very first proposals may differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from paceline.bench.law import Case, cases, measure
from paceline.cli.client import connect

if TYPE_CHECKING:
    from tests.e2e.conftest import Running

pytestmark = pytest.mark.e2e

NUM_TOKENS = 10_000


@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case.rule}-{case.num_draft_tokens}")
async def test_output_follows_the_target(
    independent_pair: tuple[Running, tuple[list[float], list[float]]], case: Case
) -> None:
    """B01, B04, B12: neighbours at p > 1e-3, and as many draft tokens accepted as must be."""
    running, laws = independent_pair
    async with connect(running.address) as gateway:
        finding = await measure(gateway, case, laws, NUM_TOKENS)
    assert NUM_TOKENS == finding.num_tokens
    assert finding.holds, finding
