"""Histories: each row of a sequence stands behind one token more than the row before it."""

from __future__ import annotations

import pytest

from paceline.engine.history import row_histories

IDS = [5, 6, 7, 8, 9]


@pytest.mark.parametrize("num_rows", range(1, 6))
def test_each_row_is_one_token_longer(num_rows: int) -> None:
    """The last row sees everything, the first all but the others' own tokens."""
    histories = row_histories(IDS, prompt_length=2, num_rows=num_rows)
    first = len(IDS) - num_rows + 1
    assert [IDS[:length] for length in range(first, 6)] == [h.token_ids.tolist() for h in histories]


def test_output_begins_behind_the_prompt() -> None:
    """Rows inside the prompt have no output yet."""
    histories = row_histories(IDS, prompt_length=3, num_rows=4)
    assert [[], [], [8], [8, 9]] == [history.output.tolist() for history in histories]


def test_the_sequence_may_change_afterwards() -> None:
    """B32: a history is a value: what is rejected or committed later does not reach it."""
    token_ids = list(IDS)
    (history,) = row_histories(token_ids, prompt_length=3, num_rows=1)
    token_ids[3:] = [1]
    assert [8, 9] == history.output.tolist()
