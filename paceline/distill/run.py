"""`paceline distill` without its flags: collects, trains, evaluates and writes, in rounds.

Each round collects its share of the tokens, trains its share of the steps on all there is, and
writes the draft, so that there is always one to serve. Everything goes on where it stopped: shards
are whole or absent, and the training's state is saved as it goes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from paceline.distill.card import Entry, read_curve, write_card, write_curve
from paceline.distill.collect import CollectOptions, Collector
from paceline.distill.evaluate import Acceptance, evaluate
from paceline.distill.prompts import PromptWriter
from paceline.distill.shards import Sample, count_tokens, read_shard, shard_path
from paceline.distill.targets import build_runner, list_words, read_target
from paceline.distill.train import Trainer, TrainOptions, batches, most_likely_ids
from paceline.engine.draft_files import Recipe, write_draft
from paceline.engine.tokenizer_archive import fingerprint_tokenizer
from paceline.errors import InvalidArgument

Progress = Callable[[str], None]

_SAVE_EVERY_STEPS = 50
_REPORT_EVERY_S = 30.0
_MAX_HELD_OUT = 128
"""Samples that are held out, one of each of the first shards, of each place in turn."""


@dataclass(frozen=True, slots=True)
class DistillOptions:
    """What a draft is made from, and how."""

    target: str
    directory: Path
    """Where the draft goes; what it is made of goes into `work` below it."""
    cache_dir: Path
    device: str = "cpu"
    num_threads: int = 0
    """Threads on the CPU; 0 leaves torch's choice."""
    layers: tuple[int, ...] = ()
    """Layers of the target to begin with; empty takes the first, the middle and the last."""
    num_head_ids: int = 8192
    num_tokens: int = 1_000_000
    """Tokens that the target writes."""
    num_rounds: int = 8
    own_prompts: tuple[str, ...] = ()
    collecting: CollectOptions = field(default_factory=CollectOptions)
    training: TrainOptions = field(default_factory=TrainOptions)

    @property
    def shards(self) -> Path:
        """Where the target's text is."""
        return self.directory / "work" / "shards"

    @property
    def state(self) -> Path:
        """Where the training's state is."""
        return self.directory / "work" / "state.pt"

    @property
    def curve(self) -> Path:
        """Where the learning curve is."""
        return self.directory / "work" / "curve.json"


@dataclass(frozen=True, slots=True)
class Data:
    """What there is to train on, and what is held out."""

    train: Sequence[Sample]
    held_out: Sequence[Sample]
    num_shards: int
    num_tokens: int
    """Tokens of the outputs, held-out ones included."""


def distill(options: DistillOptions, progress: Progress) -> Acceptance:
    """Makes a draft; returns its held-out figures.

    Raises:
        NotFound, InvalidArgument, FailedPrecondition: as `targets.read_target`; InvalidArgument
            also for layers that the target does not have.
    """
    if options.num_threads:
        torch.set_num_threads(options.num_threads)
    options.shards.mkdir(parents=True, exist_ok=True)
    trainer, recipe = _begin(options, progress)
    num_shards, seconds = _resume(options, trainer, progress)
    num_steps, num_rounds = options.training.num_steps, options.num_rounds
    curve = read_curve(options.curve)
    for number in range(num_rounds):
        first, last = num_steps * number // num_rounds, num_steps * (number + 1) // num_rounds
        if trainer.num_steps >= last:
            continue
        started_at = time.monotonic() - seconds
        if trainer.num_steps <= first:
            wanted = options.num_tokens * (number + 1) // num_rounds
            num_shards = _collect(options, wanted, progress)
        data = _read_data(options.shards, num_shards)
        progress(
            f"round {number + 1} of {num_rounds}: {data.num_tokens:,} tokens, to step {last:,}"
        )
        head_ids = most_likely_ids(data.train, trainer.vocabulary_size, options.num_head_ids)
        trainer.set_head(head_ids)
        _train(options, trainer, data, (first, last), started_at, progress)
        figures = evaluate(trainer, data.held_out)
        progress(f"step {trainer.num_steps:,}: {figures.describe()}")
        entry = Entry(trainer.num_steps, data.num_tokens, time.monotonic() - started_at, figures)
        curve = [*(one for one in curve if one.num_steps < entry.num_steps), entry]
        write_curve(options.curve, curve)
        write_draft(options.directory, recipe, trainer.own, trainer.head_ids)
        write_card(options.directory, recipe, curve, len(head_ids))
        # Last, so that a round that was stopped before is written when it goes on.
        seconds = 0.0
        _save(options, trainer, num_shards, seconds)
    return curve[-1].figures


def _begin(options: DistillOptions, progress: Progress) -> tuple[Trainer, Recipe]:
    """A trainer that has learnt nothing yet, and what is to be made."""
    network, tokenizer = read_target(options.target, options.cache_dir, progress)
    num_layers = network.config.num_hidden_layers
    layers = options.layers or tuple(sorted({0, (num_layers - 1) // 2, num_layers - 1}))
    for layer in layers:
        if not 0 <= layer < num_layers:
            raise InvalidArgument(
                "layers", f"there is no layer {layer}: it has {num_layers} layers"
            )
    recipe = Recipe(options.target, fingerprint_tokenizer(tokenizer), layers)
    return Trainer(network, recipe, options.training, options.device), recipe


def _resume(options: DistillOptions, trainer: Trainer, progress: Progress) -> tuple[int, float]:
    """Restores a saved state; returns the shards that its round trains on, and its seconds."""
    if not options.state.exists():
        return 0, 0.0
    state: dict[str, Any] = torch.load(options.state, map_location="cpu")
    trainer.restore(state["trainer"])
    progress(f"going on behind step {trainer.num_steps:,}")
    return state["num_shards"], state["seconds"]


def _save(options: DistillOptions, trainer: Trainer, num_shards: int, seconds: float) -> None:
    aside = options.state.with_suffix(".part")
    state = {"trainer": trainer.state(), "num_shards": num_shards, "seconds": seconds}
    torch.save(state, aside)
    aside.rename(options.state)


def _collect(options: DistillOptions, wanted: int, progress: Progress) -> int:
    """Lets the target write until there are enough tokens; returns the number of shards."""
    collector: Collector | None = None
    num_shards = num_tokens = num_new = 0
    started_at = reported_at = time.monotonic()
    while num_tokens < wanted or shard_path(options.shards, num_shards).exists():
        path = shard_path(options.shards, num_shards)
        if not path.exists():
            if collector is None:
                collector = _build_collector(options, progress)
                started_at = time.monotonic()
            num_new += collector.collect(options.shards, num_shards)
        num_tokens += count_tokens(path)
        num_shards += 1
        now = time.monotonic()
        if now - reported_at > _REPORT_EVERY_S:
            rate = num_new / (now - started_at)
            progress(f"collected {num_tokens:,} of {wanted:,} tokens, {rate:.0f} a second")
            reported_at = now
    return num_shards


def _build_collector(options: DistillOptions, progress: Progress) -> Collector:
    runner, identity, tokenizer = build_runner(
        options.target, options.cache_dir, options.device, progress
    )
    writer = PromptWriter(options.collecting.seed, options.own_prompts, list_words(tokenizer))
    collecting = options.collecting.within(identity.max_length)
    return Collector(runner, tokenizer, identity.eos_token_ids, writer, collecting)


def _read_data(shards: Path, num_shards: int) -> Data:
    train: list[Sample] = []
    held_out: list[Sample] = []
    for wave in range(num_shards):
        samples = read_shard(shard_path(shards, wave))
        if len(held_out) < _MAX_HELD_OUT:
            # A place has one temperature, and figures are to be about all of them.
            held_out.append(samples.pop(wave % len(samples)))
        train += samples
    num_tokens = sum(len(one.top_ids) for one in (*train, *held_out))
    # What was held out is held out wherever it was asked: greedy answers would be the same.
    prompts = {_prompt(one) for one in held_out}
    train = [one for one in train if _prompt(one) not in prompts]
    return Data(train, held_out, num_shards, num_tokens)


def _prompt(sample: Sample) -> tuple[int, ...]:
    return tuple(sample.token_ids[: sample.prompt_length].tolist())


def _train(
    options: DistillOptions,
    trainer: Trainer,
    data: Data,
    steps: tuple[int, int],
    started_at: float,
    progress: Progress,
) -> None:
    """Takes a round's steps that are not yet taken, in an order that the round alone decides."""
    first, last = steps
    order = batches(data.train, options.training, options.training.seed + first)
    losses: list[float] = []
    reported_at, num_tokens = time.monotonic(), 0
    for batch in islice(order, trainer.num_steps - first, last - first):
        losses.append(trainer.step(batch))
        num_tokens += sum(len(one.token_ids) for one in batch)
        now = time.monotonic()
        if now - reported_at > _REPORT_EVERY_S or trainer.num_steps == last:
            rate = num_tokens / (now - reported_at)
            loss = sum(losses) / len(losses)
            progress(f"step {trainer.num_steps:,}: loss {loss:.3f}, {rate:.0f} tokens a second")
            losses, num_tokens, reported_at = [], 0, now
        if trainer.num_steps % _SAVE_EVERY_STEPS == 0 and trainer.num_steps < last:
            _save(options, trainer, data.num_shards, now - started_at)
