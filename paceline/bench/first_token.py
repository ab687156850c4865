"""How long a long prompt takes to its first token: unseen, behind a kept prefix, and elsewhere.

`python -m paceline.bench.first_token --address HOST:PORT --target smollm2`: the services and
transformers in this process, by turns, each time with another prompt of ids drawn at random, since
what a prompt says costs nothing. It does not know what a prefix is kept in.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import torch

from paceline.bench.peers import load_network
from paceline.cli.client import GenerationOptions, Stub, connect, generate, ids_prompt
from paceline.cli.options import address_option, choose_model, json_option
from paceline.serving.config import CACHE_DIR
from paceline.serving.placement import num_cores
from paceline.v1 import gateway_pb2

_OPTIONS = GenerationOptions(max_tokens=1, temperature=0.0, num_draft_tokens=0)
Times = dict[str, list[float]]
"""Milliseconds of each repeat, by what was timed."""


async def measure(gateway: Stub, network: Any, num_tokens: int, repeats: int) -> Times:
    """Times prompts of `num_tokens`; the repeat prompt differs from the first in its last id."""
    served = await gateway.ListModels(gateway_pb2.ListModelsRequest())
    size = choose_model(served, "").model.vocabulary_size
    # Unseeded: the services may still keep the prompts of the last measurement.
    ids = random.SystemRandom()
    times: Times = {"unseen": [], "kept prefix": [], "transformers": []}
    for repeat in range(repeats + 1):
        prompt = [ids.randrange(size) for _ in range(num_tokens)]
        again = [*prompt[:-1], (prompt[-1] + 1) % size]
        taken = {
            "unseen": await _first_token_ms(gateway, prompt),
            "kept prefix": await _first_token_ms(gateway, again),
            "transformers": _prefill_ms(network, prompt),
        }
        for name, value in taken.items() if repeat else ():  # the first one warms up
            times[name].append(value)
    return times


def ratio(times: Times, name: str, other: str) -> float:
    """Of two medians."""
    return statistics.median(times[name]) / statistics.median(times[other])


async def _first_token_ms(gateway: Stub, prompt: Sequence[int]) -> float:
    started = time.perf_counter()
    await generate(gateway, _OPTIONS.request(ids_prompt(prompt)))
    return 1e3 * (time.perf_counter() - started)


def _prefill_ms(network: Any, prompt: Sequence[int]) -> float:
    started = time.perf_counter()
    with torch.inference_mode():
        network(torch.tensor([prompt]), use_cache=True, logits_to_keep=1).logits.argmax().item()
    return 1e3 * (time.perf_counter() - started)


@click.command()
@address_option
@click.option("--target", default="smollm2", show_default=True, help="The target's name.")
@click.option("--num-tokens", type=click.IntRange(2), default=1000, show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=9, show_default=True)
@click.option("--threads", type=click.IntRange(1), default=num_cores, help="Of transformers.")
@click.option("--cache-dir", type=Path, default=CACHE_DIR, show_default=True)
@json_option
def main(target: str, as_json: bool, **options: Any) -> None:
    """Prints median milliseconds with least and most, and two ratios of medians."""
    torch.set_num_threads(options["threads"])
    network = load_network(target, options["cache_dir"].expanduser())

    async def run() -> Times:
        async with connect(options["access"]) as gateway:
            return await measure(gateway, network, options["num_tokens"], options["repeats"])

    times = asyncio.run(run())
    ratios = {
        "unseen / transformers": ratio(times, "unseen", "transformers"),
        "kept prefix / unseen": ratio(times, "kept prefix", "unseen"),
    }
    if as_json:
        click.echo(json.dumps({"ms": times, "ratios": ratios}))
        return
    for name, values in times.items():
        spread = f"({min(values):.0f}-{max(values):.0f})"
        click.echo(f"{name:>12}: {statistics.median(values):.0f} ms {spread}")
    for name, value in ratios.items():
        click.echo(f"{name}: {value:.2f}")


if __name__ == "__main__":
    main()
