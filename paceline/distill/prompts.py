"""Chats to ask a target for its own text: written seeds, filled in, and what it answered before.

Twelve kinds of task about written subjects and the words of the target's own vocabulary, some with
a system prompt, some behind an earlier answer; passages to summarize, to search and to answer from
are partly the target's own. The same
seed gives the same chats. Knows no model and no tokenizer.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from string import Formatter
from typing import Any

Chat = tuple[Mapping[str, str], ...]
"""Messages with `role` and `content`, the last of them the user's."""

_SYSTEM_SHARE = 0.3
_FOLLOW_UP_SHARE = 0.15
_OWN_TEXT_SHARE = 0.5
"""Share of prompts that are the user's, where the user gave any."""
_WORD_SHARE = 0.6
"""Share of topics that are any word: a hundred topics would teach a hundred topics' words."""
_PASSAGE_WORDS = (30, 120)
_NUMBERS = {"a": (2, 20), "b": (2, 30), "c": (2, 9), "d": (30, 400)}
_LISTS = {
    "topic": "topics",
    "person": "people",
    "place": "places",
    "thing": "things",
    "role": "roles",
    "language": "languages",
    "program": "programs",
    "foreign": "foreign",
    "passage": "passages",
}


@dataclass(frozen=True, slots=True)
class Exchange:
    """A chat and what the target answered."""

    chat: Chat
    answer: str


class PromptWriter:
    """Writes chats."""

    def __init__(
        self, seed: int, own_prompts: Sequence[str] = (), words: Sequence[str] = ()
    ) -> None:
        """Reads the seeds; `own_prompts` are texts to ask beside them, `words` more topics."""
        text = resources.files(__package__).joinpath("seeds.json").read_text(encoding="utf-8")
        self._seeds: Mapping[str, Any] = json.loads(text)
        self._seed = seed
        self._own_prompts = own_prompts
        self._words = words

    def write(self, pool: int, count: int, earlier: Sequence[Exchange]) -> list[Chat]:
        """The chats of a pool, which may take up what was answered earlier."""
        generator = random.Random(f"{self._seed} {pool}")
        return [self._chat(generator, earlier) for _ in range(count)]

    def _chat(self, generator: random.Random, earlier: Sequence[Exchange]) -> Chat:
        if earlier and generator.random() < _FOLLOW_UP_SHARE:
            before = generator.choice(earlier)
            follow_up = self._fill(generator.choice(self._seeds["follow_ups"]), generator, ())
            answer = {"role": "assistant", "content": before.answer}
            # Only the last turns: chats that are followed up again and again would grow.
            return (before.chat[-1], answer, {"role": "user", "content": follow_up})
        if self._own_prompts and generator.random() < _OWN_TEXT_SHARE:
            question = generator.choice(self._own_prompts)
        else:
            tasks: Mapping[str, Sequence[str]] = self._seeds["tasks"]
            kind = generator.choice(sorted(tasks))
            passages = [passage for one in earlier if (passage := _passage(one.answer))]
            question = self._fill(generator.choice(tasks[kind]), generator, passages)
        chat: Chat = ({"role": "user", "content": question},)
        if generator.random() < _SYSTEM_SHARE:
            system = generator.choice(self._seeds["systems"])
            return ({"role": "system", "content": system}, *chat)
        return chat

    def _fill(self, template: str, generator: random.Random, passages: Sequence[str]) -> str:
        """Fills in the places of a template: `{topic}` and `{topic2}` are two different topics."""
        values: dict[str, str] = {}
        for _, name, _, _ in Formatter().parse(template):
            if name is None:
                continue
            kind = name.rstrip("23")
            if kind in _NUMBERS:
                values[name] = str(generator.randint(*_NUMBERS[kind]))
                continue
            choices: Sequence[str] = self._seeds[_LISTS[kind]]
            if kind == "passage":
                choices = [*choices, *passages]
            elif kind == "topic" and self._words and generator.random() < _WORD_SHARE:
                choices = self._words
            value = generator.choice(choices)
            while value in values.values():
                value = generator.choice(choices)
            values[name] = value
        return template.format_map(values)


def _passage(answer: str) -> str:
    """The beginning of an answer as a passage of one paragraph; empty if there is too little."""
    least, most = _PASSAGE_WORDS
    words = answer.split()
    return " ".join(words[:most]) if len(words) >= least else ""
