"""What a run says of itself: rates without the first tokens, waits shared among a block."""

from __future__ import annotations

from collections.abc import Callable

from paceline.bench.runs import Group, Run

MakeRun = Callable[..., Run]


def test_rate_leaves_out_the_first_tokens(make_run: MakeRun) -> None:
    """Tokens that came together first are left out, as is the time to them."""
    run = make_run((1.0, 4), (2.0, 3), (3.0, 7))
    assert (14, 1.0, 3.0) == (run.num_tokens, run.first_token_s, run.end_s)
    assert 5.0 == run.tokens_per_second


def test_one_block_has_no_rate(make_run: MakeRun) -> None:
    """Where all came at once there is no time to count by."""
    assert None is make_run((1.0, 4)).tokens_per_second
    assert [] == make_run((1.0, 4)).between_tokens_s


def test_a_block_shares_its_wait(make_run: MakeRun) -> None:
    """Four tokens after 80 ms are four waits of 20 ms; a late one is its own."""
    run = make_run((0.0, 1), (0.25, 1), (0.75, 4))
    assert [0.25, 0.125, 0.125, 0.125, 0.125] == run.between_tokens_s


def test_rates_of_a_group(make_run: MakeRun) -> None:
    """All tokens over the whole time; decoding counts from the last prompt's first token."""
    runs = (make_run((1.0, 1), (2.0, 1), (3.0, 2)), make_run((2.0, 1), (4.0, 3)))
    group = Group("x", 2, 0, runs)
    assert 8 / 4.0 == group.tokens_per_second
    assert 5 / 2.0 == group.decode_tokens_per_second


def test_a_group_of_one_decodes_at_the_rate_of_its_run(make_run: MakeRun) -> None:
    """With one prompt at once both definitions are the same."""
    run = make_run((1.0, 2), (1.5, 3), (3.0, 1))
    assert run.tokens_per_second == Group("x", 1, 0, (run,)).decode_tokens_per_second
    assert None is Group("x", 1, 0, (make_run((1.0, 2)),)).decode_tokens_per_second
