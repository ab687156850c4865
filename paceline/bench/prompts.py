"""What is measured with: a few prompts of our own, or a file in the Spec-Bench line format.

A line is `{"question_id": ..., "category": ..., "turns": [...]}`; the first turn is the prompt.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt, as the user's turn of a chat."""

    id: str
    category: str
    text: str


OWN_TEXTS = {
    "chat": (
        "Suggest three names for a bakery next to a river, and say what each one makes you think.",
        "My neighbour plays the drums at night. How do I bring it up politely?",
        "Plan a rainy afternoon for two children, aged five and nine.",
        "What should I look at before I buy a used bicycle?",
    ),
    "code": (
        "Write a Python function that returns the median of a list of numbers, with a docstring.",
        "Rename x to total in this function:\n\n"
        "def f(values):\n    x = 0\n    for value in values:\n        x += value\n    return x",
        "Explain what this line does: squares = {n: n * n for n in range(10) if n % 2}",
        "Write an SQL query for the ten customers with the largest sum of orders in 2023.",
    ),
    "summary": (
        "Summarize in one sentence: The ferry used to cross the bay every hour. After the bridge "
        "opened, most drivers stopped taking it, and the company now runs it only at weekends, "
        "mainly for visitors who like the view.",
        "Summarize in one sentence: The committee met for three hours. Two members wanted a new "
        "roof this year, three wanted to repair the old one, and in the end they agreed to ask "
        "for two offers and decide in March.",
        "List the main points: Sourdough needs flour, water, salt and time. The starter must be "
        "lively, the dough is folded rather than kneaded, and a hot pot gives the crust.",
        "Give this a title: A lighthouse keeper finds letters from the 1890s behind a wall and "
        "writes back to the families of those who sent them.",
    ),
    "rewrite": (
        "Correct the mistakes and change nothing else: Yesterday I have went to the market, but "
        "their was no apples left so I buyed pears instead of.",
        "Turn this into a list: we need bread, two litres of milk, a dozen eggs and some basil.",
        "Make this more formal: hey, can't make it tomorrow, something came up, let's do friday?",
        "Repeat this sentence and then write it in the past tense: The river bends behind the "
        "old mill and runs into the lake.",
    ),
    "reasoning": (
        "A train leaves at 9:40 and arrives at 13:05. How long is the journey? Think step by step.",
        "A box holds 12 eggs. How many boxes are needed for 150 eggs, and how many eggs are over?",
        "Anna is older than Ben and younger than Carla. Who is the youngest? Say why.",
        "If a shirt costs 40 euros after a discount of 20 percent, what did it cost before?",
    ),
}


def own_questions() -> list[Question]:
    """The prompts that come with the project."""
    return [
        Question(f"{category}-{number}", category, text)
        for category, texts in OWN_TEXTS.items()
        for number, text in enumerate(texts, 1)
    ]


def read_lines(path: Path) -> list[str]:
    """The lines of a file. U+2028 and its like, where str.splitlines would end one, do not."""
    return path.read_text(encoding="utf-8").split("\n")


def read_questions(path: Path) -> list[Question]:
    """The questions of a file in the Spec-Bench line format.

    Raises:
        ValueError: a line is not in that format; it is named.
    """
    questions = []
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            text = entry["turns"][0]
            questions.append(Question(str(entry["question_id"]), str(entry["category"]), text))
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise ValueError(f"{path}, line {number}: not a Spec-Bench line: {error!r}") from None
    return questions


def spread(questions: Sequence[Question], limit: int) -> list[Question]:
    """The first `limit` questions, taking turns between the categories in file order."""
    by_category: dict[str, list[Question]] = {}
    for question in questions:
        by_category.setdefault(question.category, []).append(question)
    turns = chain.from_iterable(zip_longest(*by_category.values()))
    return [question for question in turns if question is not None][:limit]
