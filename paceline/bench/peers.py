"""Peers in this process, without services: transformers plain, assisted, with prompt lookup.

Imports torch, transformers and the engine's loader only when asked to load. Peers generate as the
services are asked to, from the same ids; several prompts are one static batch, filled up at the
left. llama.cpp is loaded from here too, and runs in a file of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.bench.llama_cpp import load_llama_cpp
from paceline.bench.runs import Arrival, Prompt, Row, Run
from paceline.cli.client import GenerationOptions
from paceline.errors import InvalidArgument, PacelineError

MAX_BATCH = 256
PROMPT_LOOKUP = {"prompt_lookup_num_tokens": 4}

_OURS_ALONE = ("ngram", "suffix", "grammar", "hybrid:", "early-exit:")
"""Sources, or how their names begin, that are no model; the peer of ngram is prompt lookup."""

Report = Callable[[str], None]
"""Called with each line that says which peer is missing, and why."""


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """What to load."""

    target: str
    drafts: tuple[str, ...]
    """Draft sources of the services; those that are models are drafts of assisted generation."""
    options: GenerationOptions
    num_threads: int
    cache_dir: Path
    max_concurrency: int
    max_prompt_length: int
    """Tokens of the longest prompt."""


def load_peers(settings: PeerSettings, report: Report) -> list[Row]:
    """The peers that can be loaded; why others cannot is reported."""
    from paceline.engine.model_source import find_gguf

    rows: list[Row] = []
    try:
        rows += load_transformers(settings, report)
    except PacelineError as error:
        report(f"no transformers: {error}")
    try:
        bounds = settings.max_concurrency, settings.max_prompt_length
        file = find_gguf(settings.target)
        rows.append(load_llama_cpp(file, settings.options, settings.num_threads, bounds))
    except PacelineError as error:
        report(f"no llama.cpp: {error}")
    return rows


def load_transformers(settings: PeerSettings, report: Report) -> list[Row]:
    """The rows of transformers: plain, prompt lookup, and assisted with each draft model.

    Raises:
        PacelineError: the target cannot be loaded, or is not one of transformers.
    """
    import torch

    torch.set_num_threads(settings.num_threads)
    target = _load(settings.target, settings)
    rows: list[Row] = [TransformersRow("transformers", target, settings.options)]
    rows.append(TransformersRow("prompt lookup", target, settings.options, PROMPT_LOOKUP, 1))
    for source in settings.drafts:
        name = peer_draft(source, settings.target)
        if not name:
            continue
        try:
            draft = _load(name, settings)
        except PacelineError as error:
            report(f"no assisted generation with {source}: {error}")
            continue
        keywords = {"assistant_model": draft}
        rows.append(TransformersRow(f"assisted {source}", target, settings.options, keywords, 1))
    return rows


def peer_draft(source: str, target: str) -> str:
    """The model behind a draft source of `target`; empty where transformers has nothing like it."""
    if source.startswith(_OURS_ALONE):
        return ""
    from paceline.engine.model_source import name_own_draft

    return name_own_draft(source, target) if source.startswith("quantized:") else source


def load_network(name: str, cache_dir: Path) -> Any:
    """A model as transformers has it.

    Raises:
        PacelineError: it cannot be loaded, or is not one of transformers.
    """
    from paceline.engine import models

    loaded = models.load(name, models.LoadOptions(cache_dir), lambda _: None)
    if not hasattr(loaded.network, "generate"):
        raise InvalidArgument("target", f"{name} is not a model of transformers")
    return loaded.network


def _load(name: str, settings: PeerSettings) -> Any:
    network = load_network(name, settings.cache_dir)
    end_ids = network.generation_config.eos_token_id
    network.generation_config.pad_token_id = end_ids[0] if isinstance(end_ids, list) else end_ids
    if settings.options.ignore_eos:
        network.generation_config.eos_token_id = None
    return network


@dataclass(frozen=True, slots=True)
class TransformersRow:
    """`generate` of one network with some keywords."""

    name: str
    network: Any = field(repr=False)
    options: GenerationOptions
    keywords: dict[str, Any] = field(default_factory=dict)
    max_concurrency: int = MAX_BATCH

    async def run(self, prompts: Sequence[Prompt]) -> list[Run]:
        """See Row."""
        return await asyncio.to_thread(self._run, prompts)

    def _run(self, prompts: Sequence[Prompt]) -> list[Run]:
        import torch

        width = max(len(prompt.token_ids) for prompt in prompts)
        pads = [width - len(prompt.token_ids) for prompt in prompts]
        ids = [[0] * pad + list(p.token_ids) for pad, p in zip(pads, prompts, strict=True)]
        mask = [[0] * pad + [1] * (width - pad) for pad in pads]
        temperature = 1.0 if self.options.temperature is None else self.options.temperature
        drawing = {"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
        clock = _Clock()
        output = self.network.generate(
            input_ids=torch.tensor(ids),
            attention_mask=torch.tensor(mask),
            max_new_tokens=self.options.max_tokens,
            do_sample=temperature > 0,
            # A model's own default would hold for greedy ids too.
            repetition_penalty=1.0,
            streamer=clock,
            **drawing,
            **self.keywords,
        )
        outputs = output[:, width:].tolist()
        if len(prompts) == 1:
            return [Run(prompts[0].question, tuple(clock.arrivals), tuple(outputs[0]))]
        return [self._of_batch(p, ids, clock) for p, ids in zip(prompts, outputs, strict=True)]

    def _of_batch(self, prompt: Prompt, token_ids: list[int], clock: _Clock) -> Run:
        """One row of a batch: a token per step until its end, then padding."""
        end_ids = self.network.generation_config.eos_token_id
        ends = set(end_ids if isinstance(end_ids, list) else [end_ids])
        stops = (place for place, token_id in enumerate(token_ids, 1) if token_id in ends)
        length = next(stops, len(token_ids))
        arrivals = tuple(Arrival(arrival.at_s, 1) for arrival in clock.arrivals[:length])
        return Run(prompt.question, arrivals, tuple(token_ids[:length]))


class _Clock:
    """A streamer of transformers: it is handed the prompt first, then tokens as they come."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._has_prompt = False
        self.arrivals: list[Arrival] = []

    def put(self, value: Any) -> None:
        """Notes when tokens came, and how many they were."""
        if self._has_prompt:
            self.arrivals.append(Arrival(time.perf_counter() - self._start, value.numel()))
        self._has_prompt = True

    def end(self) -> None:
        """Called at the end of a generation; the caller knows it too."""
