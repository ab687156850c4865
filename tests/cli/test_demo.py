"""The demo's table: honest about speed and about equality."""

from __future__ import annotations

from rich.console import Console

from paceline.cli.client import Generation
from paceline.cli.demo import comparison
from paceline.v1 import gateway_pb2


def _generation(rate: float, token_ids: tuple[int, ...] = (1, 2), drafted: int = 0) -> Generation:
    stats = gateway_pb2.GenerationStats(
        tokens_per_second=rate, drafted_token_count=drafted, acceptance_rate=0.75
    )
    finished = gateway_pb2.Finished(stats=stats)
    return Generation("x", token_ids, (), gateway_pb2.Started(), finished)


def _print(plain: Generation, speculative: Generation) -> str:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(comparison(plain, speculative))
    return capture.get()


def test_faster_and_identical() -> None:
    """The ratio is speculative over plain."""
    text = _print(_generation(10), _generation(25, drafted=8))
    assert "2.50 times the speed of plain decoding" in text
    assert "identical to plain decoding: yes" in text
    (rate,) = [line for line in text.splitlines() if "acceptance rate" in line]
    assert rate.split()[2:] == ["-", "0.75"]


def test_slower_is_said() -> None:
    """A slower run is below one, not turned around."""
    assert "0.50 times the speed" in _print(_generation(10), _generation(5))


def test_difference_is_said() -> None:
    """Other ids are not identical, whatever the text."""
    text = _print(_generation(10), _generation(10, token_ids=(1, 3)))
    assert "identical to plain decoding: NO" in text


def test_no_speed_to_compare_with() -> None:
    """One token has no rate after the first; nothing is divided by it."""
    assert "0.00 times" in _print(_generation(0), _generation(0))
