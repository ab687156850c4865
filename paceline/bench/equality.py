"""Greedy ids through the services against transformers' own `generate`, id by id.

`python -m paceline.bench.equality --address HOST:PORT --prompts FILE.jsonl`. For every draft source
and proposal length: how many prompts differ, with the logit margin where the first one does, and
how many rounds were accepted in full, in part, and not at all. It does not know how rounds are run.
"""

from __future__ import annotations

import asyncio
import io
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from paceline.bench.prompts import Question
from paceline.cli.client import GenerationOptions, Stub, connect, generate, ids_prompt
from paceline.cli.options import (
    address_option,
    choose_model,
    choose_questions,
    prompts_option,
)
from paceline.serving.config import CACHE_DIR
from paceline.serving.placement import num_cores
from paceline.v1 import gateway_pb2

LENGTHS: tuple[int | None, ...] = (0, 1, 4, 8, None)
_OUTCOMES = ("full", "partial", "none")


@dataclass(frozen=True, slots=True)
class Reference:
    """What the target says by itself."""

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]


@dataclass(slots=True)
class Comparison:
    """One source and length against the references."""

    source: str
    num_draft_tokens: int | None
    num_tokens: int = 0
    differences: list[tuple[int, int]] = field(default_factory=list)
    """Index of the prompt, and of the first differing token."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """Rounds with a proposal by how much of it was accepted."""


class Target:
    """The target in this process."""

    def __init__(self, name: str, num_threads: int, cache_dir: Path) -> None:
        import torch

        from paceline.engine import models

        torch.set_num_threads(num_threads)
        loaded = models.load(name, models.LoadOptions(cache_dir), lambda _: None)
        self._network: Any = loaded.network
        self._tokenizer = load_tokenizer(loaded.tokenizer_archive)

    def references(self, questions: Sequence[Question], max_tokens: int) -> Iterator[Reference]:
        """Greedy ids of every question, through the chat template."""
        for question in questions:
            prompt = self._tokenizer.apply_chat_template(
                [{"role": "user", "content": question.text}],
                add_generation_prompt=True,
                return_dict=True,
                return_tensors="pt",
            )
            output = self._network.generate(
                **prompt, max_new_tokens=max_tokens, do_sample=False, repetition_penalty=1.0
            )
            ids = output[0].tolist()
            num_prompt = prompt["input_ids"].shape[1]
            yield Reference(tuple(ids[:num_prompt]), tuple(ids[num_prompt:]))

    def margin(self, token_ids: Sequence[int]) -> float:
        """Distance of the two largest logits after these ids."""
        import torch

        with torch.inference_mode():
            logits = self._network(input_ids=torch.tensor([list(token_ids)])).logits[0, -1]
        first, second = logits.topk(2).values.tolist()
        return float(first - second)


def load_tokenizer(archive: bytes) -> Any:
    """The tokenizer in a verify tier's archive."""
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(io.BytesIO(archive)).extractall(folder)
        return transformers.AutoTokenizer.from_pretrained(folder)


async def compare(
    gateway: Stub, references: Sequence[Reference], comparison: Comparison, options: dict[str, Any]
) -> None:
    """Fills in a comparison, `concurrency` prompts at a time."""
    slots = asyncio.Semaphore(options["concurrency"])

    async def run(index: int, reference: Reference) -> None:
        async def note(tokens: gateway_pb2.Tokens) -> None:
            _count(tokens, comparison.outcomes)

        wanted = GenerationOptions(
            max_tokens=options["max_tokens"],
            temperature=0.0,
            draft=comparison.source,
            num_draft_tokens=comparison.num_draft_tokens,
        )
        async with slots:
            request = wanted.request(ids_prompt(reference.prompt_token_ids))
            generation = await generate(gateway, request, note)
        comparison.num_tokens += len(generation.token_ids)
        pairs = zip(reference.token_ids, generation.token_ids, strict=False)
        first = next((i for i, (theirs, ours) in enumerate(pairs) if theirs != ours), None)
        if first is None and len(reference.token_ids) != len(generation.token_ids):
            first = min(len(reference.token_ids), len(generation.token_ids))
        if first is not None:
            comparison.differences.append((index, first))

    await asyncio.gather(*(run(i, reference) for i, reference in enumerate(references)))


def _count(tokens: gateway_pb2.Tokens, outcomes: Counter[str]) -> None:
    """Counts the round that committed these tokens, if it had a proposal."""
    last, num_tokens = tokens.origins[-1], len(tokens.origins)
    # A round that ends with an accepted end token has no bonus: proposals end there too.
    if last in (gateway_pb2.TOKEN_ORIGIN_BONUS, gateway_pb2.TOKEN_ORIGIN_DRAFT):
        outcomes["full"] += 1
    elif last == gateway_pb2.TOKEN_ORIGIN_RECOVERED:
        outcomes["partial" if num_tokens > 1 else "none"] += 1


def table(comparisons: Sequence[Comparison]) -> Table:
    """The comparisons for people."""
    grid = Table("source", "length", "tokens", "differing prompts", *_OUTCOMES)
    for c in comparisons:
        length = "window" if c.num_draft_tokens is None else str(c.num_draft_tokens)
        counts = [str(c.outcomes[name]) for name in _OUTCOMES]
        grid.add_row(c.source, length, str(c.num_tokens), str(len(c.differences)), *counts)
    return grid


async def _compare_all(
    references: Sequence[Reference], options: dict[str, Any]
) -> list[Comparison]:
    async with connect(options["access"]) as gateway:
        models = await gateway.ListModels(gateway_pb2.ListModelsRequest())
        sources = choose_model(models, "").draft_sources
        comparisons = [Comparison("none", 0)]
        comparisons += [Comparison(s, n) for s in sources for n in LENGTHS if n != 0]
        for comparison in track(comparisons, "comparing", console=Console(stderr=True)):
            await compare(gateway, references, comparison, options)
    return comparisons


@click.command()
@address_option
@prompts_option
@click.option("--limit", type=int, default=40, show_default=True, help="Prompts, by category.")
@click.option("--max-tokens", type=int, default=64, show_default=True, help="Longest output.")
@click.option("--concurrency", type=int, default=4, show_default=True, help="Prompts at once.")
@click.option("--target", default="smollm2", show_default=True, help="The target's name.")
@click.option("--threads", type=int, default=num_cores, help="Threads of the reference.")
def main(**options: Any) -> None:
    """Exits with 1 on a difference, or when some outcome of a round never occurred."""
    questions = choose_questions(options["prompts"], options["limit"])
    target = Target(options["target"], options["threads"], CACHE_DIR.expanduser())
    console = Console(stderr=True)
    references = list(
        track(
            target.references(questions, options["max_tokens"]),
            "transformers generate",
            total=len(questions),
            console=console,
        )
    )
    comparisons = asyncio.run(_compare_all(references, options))
    Console().print(table(comparisons))
    for comparison in comparisons:
        for index, first in comparison.differences:
            reference = references[index]
            ids = reference.prompt_token_ids + reference.token_ids[:first]
            click.echo(
                f"{comparison.source} {comparison.num_draft_tokens}: prompt {questions[index].id} "
                f"differs at token {first}, logit margin {target.margin(ids):.2g}"
            )
    outcomes = sum((c.outcomes for c in comparisons), Counter[str]())
    is_complete = all(outcomes[name] for name in _OUTCOMES)
    if not is_complete:
        click.echo(f"INCONCLUSIVE: rounds by outcome were {dict(outcomes)}")
    sys.exit(not is_complete or any(c.differences for c in comparisons))


if __name__ == "__main__":
    main()
