"""The table runner reads the text through the block table, so a wrong one shows."""

from __future__ import annotations

import random

import pytest
import torch

from paceline.engine.step import Span, Step
from paceline.engine.table_model import TableModel, TableRunner, parse_table

BLOCK_SIZE = 4
NUM_BLOCKS = 32


def one_hot(index: int) -> list[float]:
    """A law that allows one token of four."""
    return [float(index == place) for place in range(4)]


@pytest.fixture
def model() -> TableModel:
    """Laws for suffixes of one, two and six characters (over a block's edge), and positions."""
    return parse_table(
        {
            "alphabet": "abcd",
            "default": [0.25] * 4,
            "suffixes": {"a": one_hot(1), "ba": one_hot(2), "abcabc": one_hot(3)},
            "positions": [one_hot(0), one_hot(3)],
        }
    )


@pytest.fixture
def runner(model: TableModel) -> TableRunner:
    """A runner with an empty cache."""
    runner = TableRunner(model)
    runner.allocate(NUM_BLOCKS, BLOCK_SIZE)
    return runner


def reference(model: TableModel, ids: list[int], position: int, prompt_length: int) -> list[float]:
    """The law after `ids[: position + 1]`, found in the plainest way."""
    index = position + 1 - prompt_length
    if 0 <= index < len(model.position_rows):
        return model.logits[model.position_rows[index]].tolist()
    text = tuple(ids[: position + 1])
    matches = [s for s in model.suffix_rows if text[max(0, len(text) - len(s)) :] == s]
    row = model.suffix_rows[max(matches, key=len)] if matches else 0
    return model.logits[row].tolist()


def test_chunks_give_the_same_laws(model: TableModel, runner: TableRunner) -> None:
    """A text fed in random chunks, beside another, has the law of its own prefix in each row."""
    rng = random.Random(0)
    tables = [tuple(rng.sample(range(16), 8)), tuple(rng.sample(range(16, 32), 8))]
    texts = [[rng.randrange(3) for _ in range(32)] for _ in tables]
    texts[0][10:16] = [0, 1, 2, 0, 1, 2]
    starts = [0, 0]
    seen = set()
    while min(starts) < 32:
        spans, expected = [], []
        for which, start in enumerate(starts):
            num_rows = min(rng.randrange(0, 6), 32 - start)
            num_logits = rng.randrange(num_rows + 1)
            ids = tuple(texts[which][start : start + num_rows])
            spans.append(Span(ids, start, tables[which], num_logits, prompt_length=20))
            starts[which] = end = start + num_rows
            expected += [
                reference(model, texts[which], p, 20) for p in range(end - num_logits, end)
            ]
        logits = runner.run(Step(tuple(spans), BLOCK_SIZE))
        assert (len(expected), 4) == logits.shape
        assert expected == logits.tolist()
        seen |= {tuple(row) for row in expected}
    assert len(seen) == 5


def test_longest_suffix_just_fits(runner: TableRunner) -> None:
    """A row that is fed alone still sees the whole of the longest suffix, over a block's edge."""
    runner.run(Step((Span((0, 1, 2, 0, 1), 0, (9, 2), 0, 9),), BLOCK_SIZE))
    logits = runner.run(Step((Span((2,), 5, (9, 2), 1, 9),), BLOCK_SIZE))
    assert one_hot(3) == logits[0].exp().tolist()


def test_wrong_block_table_shows(runner: TableRunner) -> None:
    """History is what the cache holds: with the right table `ba`, with another only `a`."""
    runner.run(Step((Span((2, 2, 2, 1), 0, (3,), 0, 5),), BLOCK_SIZE))
    right = runner.run(Step((Span((0,), 4, (3, 4), 1, 9),), BLOCK_SIZE))
    wrong = runner.run(Step((Span((0,), 4, (5, 4), 1, 9),), BLOCK_SIZE))
    assert [2, 1] == [right.argmax().item(), wrong.argmax().item()]


def test_truncated_text_is_overwritten(runner: TableRunner) -> None:
    """After a rollback the tokens fed again are what counts."""
    runner.run(Step((Span((1, 1, 1), 0, (0,), 3, 9),), BLOCK_SIZE))
    logits = runner.run(Step((Span((2, 0), 1, (0,), 1, 9),), BLOCK_SIZE))
    assert 1 == logits.argmax().item()


def test_copied_block_is_its_own(runner: TableRunner) -> None:
    """A copy keeps the text of its source when the source is written again."""
    runner.run(Step((Span((1, 2, 1), 0, (0,), 0, 9),), BLOCK_SIZE))
    runner.copy_blocks([(0, 7)])
    runner.run(Step((Span((2, 2), 1, (0,), 0, 9),), BLOCK_SIZE))
    logits = runner.run(Step((Span((0,), 3, (7,), 1, 9), Span((0,), 3, (0,), 1, 9)), BLOCK_SIZE))
    assert [2, 1] == logits.argmax(dim=1).tolist()


def test_positions_count_from_the_prompt(runner: TableRunner) -> None:
    """Index 0 of `positions` is the token after the prompt, whatever the prompt's length."""
    for prompt_length in (1, 4, 7):
        ids = (1,) * (prompt_length + 2)
        logits = runner.run(Step((Span(ids, 0, (0, 1, 2), 3, prompt_length),), BLOCK_SIZE))
        assert [0, 3] == logits[:2].argmax(dim=1).tolist()
        assert torch.equal(torch.full((4,), 0.25).log(), logits[2])


def test_step_without_logits(runner: TableRunner) -> None:
    """A chunk of a prompt that wants no logits gets none."""
    logits = runner.run(Step((Span((1, 2), 0, (0,), 0, 9),), BLOCK_SIZE))
    assert (0, 4) == logits.shape
