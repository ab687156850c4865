"""How far the laws of quantized models are from those of the weights that they were made of.

`python -m paceline.bench.distance --address HOST:PORT`: what the running target writes greedily is
read by each model in this process, and at every place of an output two laws are compared whole.
llama.cpp may read it too. It knows no round.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from paceline.bench.llama_cpp import LlamaCppLaws
from paceline.bench.measure import tokenize
from paceline.bench.prompts import Question
from paceline.cli.client import GenerationOptions, Stub, connect, generate, ids_prompt
from paceline.cli.options import (
    address_option,
    choose_model,
    choose_questions,
    json_option,
    prompts_option,
)
from paceline.errors import PacelineError
from paceline.records import ModelIdentity
from paceline.serving.config import CACHE_DIR
from paceline.serving.placement import num_cores
from paceline.v1 import gateway_pb2
from paceline.wire.replicas import decode_identity

if TYPE_CHECKING:
    import torch

_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and what was written behind it."""

    token_ids: tuple[int, ...]
    prompt_length: int

    @classmethod
    def of(cls, prompt: Sequence[int], output: Sequence[int]) -> Text:
        """Puts an output behind its prompt."""
        return cls((*prompt, *output), len(prompt))

    @property
    def num_places(self) -> int:
        """Tokens of the output."""
        return len(self.token_ids) - self.prompt_length


@dataclass(frozen=True, slots=True)
class Distance:
    """Two models over the places of some outputs, at temperature 1."""

    mean_tv: float
    """Mean total variation distance of their laws, in [0, 1]."""
    agreement: float
    """Share of the places where both think the same token likeliest."""
    num_places: int


Laws = Callable[[Text], "torch.Tensor"]
"""Float64 [places of the output, V]: the law of each of its tokens."""


def load_laws(name: str, cache_dir: Path, longest: int) -> Laws:
    """Loads a model into this process, for texts of at most `longest` tokens.

    Raises:
        NotFound, InvalidArgument, FailedPrecondition: as `models.load`.
    """
    from paceline.engine import models, runners
    from paceline.engine.step import Span, Step

    runner = runners.build_runner(models.load(name, models.LoadOptions(cache_dir), lambda _: None))
    blocks = tuple(range(-(-longest // _BLOCK_SIZE)))
    runner.allocate(len(blocks), _BLOCK_SIZE)

    def laws(text: Text) -> torch.Tensor:
        ids = text.token_ids[:-1]  # behind the last one nothing was written
        table = blocks[: -(-len(ids) // _BLOCK_SIZE)]
        span = Span(ids, 0, table, text.num_places, text.prompt_length)
        return runner.run(Step((span,), _BLOCK_SIZE)).double().softmax(dim=1)

    return laws


def compare(laws: Laws, others: Laws, texts: Iterable[Text]) -> Distance:
    """Reads every text with both."""
    total = same = count = 0.0
    for text in texts:
        own, other = laws(text), others(text)
        total += 0.5 * float((own - other).abs().sum())
        same += float((own.argmax(dim=1) == other.argmax(dim=1)).sum())
        count += len(own)
    return Distance(total / count, same / count, int(count))


def whole_name(name: str) -> str:
    """A model's name without what quantizes it."""
    from paceline.engine.model_source import split_quantization

    return split_quantization(name)[0]


def describe_distance(name: str, texts: Sequence[Text]) -> dict[str, Any]:
    """A quantized model's distance to its whole weights; or why that is unknown."""
    if importlib.util.find_spec("torch") is None:
        return {"unknown": "the engine is not installed here"}
    if whole_name(name) == name:
        return {"unknown": "its weights were quantized before they came here"}
    cache_dir, longest = CACHE_DIR.expanduser(), max(len(text.token_ids) for text in texts)
    try:
        whole, own = (load_laws(one, cache_dir, longest) for one in (whole_name(name), name))
    except PacelineError as error:
        return {"unknown": error.message}
    return asdict(compare(whole, own, texts))


def load_llama_cpp_laws(name: str, longest: int, vocabulary_size: int) -> Laws:
    """Lets llama.cpp read a model's own file; most of its time goes into telling whole laws.

    Raises:
        NotFound: it has none, or llama.cpp is not installed.
    """
    import torch

    from paceline.engine.model_source import find_gguf

    server = LlamaCppLaws.load(find_gguf(name), num_cores(), longest)

    def laws(text: Text) -> torch.Tensor:
        ends = range(text.prompt_length, len(text.token_ids))
        rows = [server.law(text.token_ids[:end], vocabulary_size) for end in ends]
        return torch.tensor(rows, dtype=torch.float64).softmax(dim=1)

    return laws


async def write(gateway: Stub, questions: Sequence[Question], max_tokens: int) -> list[Text]:
    """What the target writes greedily behind each question."""
    options = GenerationOptions(max_tokens=max_tokens, temperature=0.0, num_draft_tokens=0)
    texts = []
    for prompt in await tokenize(gateway, questions):
        written = await generate(gateway, options.request(ids_prompt(prompt.token_ids)))
        texts.append(Text.of(prompt.token_ids, written.token_ids))
    return texts


async def _write(options: dict[str, Any], *, has_others: bool) -> tuple[ModelIdentity, list[Text]]:
    questions = choose_questions(options["prompts"], options["limit"])
    async with connect(options["access"]) as gateway:
        served = await gateway.ListModels(gateway_pb2.ListModelsRequest())
        target = decode_identity(choose_model(served, "").model)
        if not has_others and whole_name(target.name) == target.name:
            raise click.UsageError(f"{target.name} is not quantized: name a --model that is")
        return target, await write(gateway, questions, options["max_tokens"])


@click.command()
@address_option
@prompts_option
@click.option("--limit", type=click.IntRange(min=1), default=13, help="Number of prompts.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=32, help="Longest output.")
@click.option("--model", "names", multiple=True, help="Quantized models; by default the target.")
@click.option("--llama-cpp", "with_llama_cpp", is_flag=True, help="Compares llama.cpp too.")
@json_option
def main(names: tuple[str, ...], with_llama_cpp: bool, as_json: bool, **options: Any) -> None:
    """Prints the distance of each model's laws to those of the target's whole weights."""
    target, texts = asyncio.run(_write(options, has_others=bool(names) or with_llama_cpp))
    cache_dir, whole = CACHE_DIR.expanduser(), whole_name(target.name)
    longest = max(len(text.token_ids) for text in texts)
    read = {one: load_laws(one, cache_dir, longest) for one in (whole, *(names or (target.name,)))}
    if with_llama_cpp:
        read["llama.cpp"] = load_llama_cpp_laws(whole, longest, target.vocabulary_size)
    console, reference = Console(stderr=True), read.pop(whole)
    found = {
        name: compare(reference, laws, track(texts, name, console=console))
        for name, laws in read.items()
    }
    if as_json:
        click.echo(json.dumps({name: asdict(one) for name, one in found.items()}))
        return
    grid = Table("model", f"mean TV to {whole}", "same likeliest token", "places")
    for name, one in found.items():
        grid.add_row(name, f"{one.mean_tv:.4f}", f"{one.agreement:.3f}", str(one.num_places))
    Console(width=120).print(grid)


if __name__ == "__main__":
    main()
