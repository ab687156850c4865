"""The same models in this process, without services: transformers' own generation.

Imports torch and transformers, and the engine's loader, only when asked to run. Greedy, batch 1,
the same prompts and number of tokens; prompts go through the model's own chat template.
"""

from __future__ import annotations

import io
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline.bench.prompts import Question
from paceline.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """What to run."""

    target: str
    draft: str
    """Model name of the draft for assisted generation; empty leaves it out."""
    max_tokens: int
    num_threads: int
    cache_dir: Path


@dataclass(frozen=True, slots=True)
class PeerRun:
    """One generation."""

    name: str
    question_id: str
    num_tokens: int
    num_first_tokens: int
    """Tokens that came together first: one, or a block of an assisted generation."""
    first_token_s: float
    wall_s: float

    @property
    def tokens_per_second(self) -> float:
        """Output tokens after the first ones, over the time after them, as the gateway counts."""
        rest_s = self.wall_s - self.first_token_s
        return (self.num_tokens - self.num_first_tokens) / rest_s if rest_s > 0 else 0.0

    def as_json(self) -> dict[str, Any]:
        """The run with its rate."""
        return {**asdict(self), "tokens_per_second": self.tokens_per_second}


def peer_draft(source: str, target: str) -> str:
    """The draft of assisted generation that corresponds to a draft source of `target`."""
    return f"{source}:{target}" if source == "quantized:int8" else source


def run_peers(questions: Sequence[Question], settings: PeerSettings) -> Iterator[PeerRun]:
    """Generates every question with transformers, plainly and, with a draft, assisted.

    Raises:
        PacelineError: a model cannot be loaded, or is not one of transformers.
    """
    import torch

    from paceline.engine import models

    torch.set_num_threads(settings.num_threads)
    options = models.LoadOptions(cache_dir=settings.cache_dir)
    target = models.load(settings.target, options, lambda _: None)
    network: Any = target.network
    if not hasattr(network, "generate"):
        raise InvalidArgument("target", f"{target.name} is not a model of transformers")
    tokenizer = load_tokenizer(target.tokenizer_archive)
    ways: dict[str, dict[str, Any]] = {"transformers generate": {}}
    if settings.draft == "ngram":
        ways["transformers prompt lookup"] = {"prompt_lookup_num_tokens": 4}
    elif settings.draft:
        draft = models.load(settings.draft, options, lambda _: None)
        ways["transformers assisted"] = {"assistant_model": draft.network}
    for question in questions:
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": question.text}],
            add_generation_prompt=True,
            return_dict=True,
            return_tensors="pt",
        )
        for name, arguments in ways.items():
            clock = _Clock()
            output = network.generate(
                **prompt,
                **arguments,
                max_new_tokens=settings.max_tokens,
                do_sample=False,
                streamer=clock,
            )
            num_tokens = output.shape[1] - prompt["input_ids"].shape[1]
            yield clock.finish(name, question.id, num_tokens)


def load_tokenizer(archive: bytes) -> Any:
    """The tokenizer in a verify tier's archive."""
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(io.BytesIO(archive)).extractall(folder)
        return transformers.AutoTokenizer.from_pretrained(folder)


class _Clock:
    """A streamer of transformers: it is handed the prompt first, then tokens as they come."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._first: tuple[float, int] | None = None
        self._has_prompt = False

    def put(self, value: Any) -> None:
        """Notes when the first tokens came, and how many they were."""
        if not self._has_prompt:
            self._has_prompt = True
        elif self._first is None:
            self._first = (time.perf_counter() - self._start, value.numel())

    def end(self) -> None:
        """Called at the end of a generation; the caller knows it too."""

    def finish(self, name: str, question_id: str, num_tokens: int) -> PeerRun:
        """The run, ending now."""
        wall_s = time.perf_counter() - self._start
        first_s, num_first = self._first or (wall_s, num_tokens)
        return PeerRun(name, question_id, num_tokens, num_first, first_s, wall_s)
