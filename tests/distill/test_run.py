"""The whole of it on a tiny target: a draft comes out, it serves, and a stop costs nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from paceline.distill import run
from paceline.distill.collect import CollectOptions
from paceline.distill.run import DistillOptions, distill
from paceline.distill.shards import Sample, shard_path, write_shard
from paceline.distill.train import Trainer, TrainOptions
from paceline.errors import FailedPrecondition, InvalidArgument
from paceline.records import Advance, VerificationRule


def ignore(_: str) -> None:
    """Takes progress and says nothing."""


@pytest.fixture
def options(target: Path, tmp_path: Path) -> DistillOptions:
    """A small run in two rounds."""
    return DistillOptions(
        target=str(target),
        directory=tmp_path / "draft",
        cache_dir=tmp_path,
        layers=(1,),
        num_head_ids=100,
        num_tokens=300,
        num_rounds=2,
        collecting=CollectOptions(batch_size=8, max_prompt_tokens=40, max_new_tokens=16),
        training=TrainOptions(num_steps=24, batch_tokens=400, learning_rate=1e-2),
    )


async def test_a_draft_comes_out_and_serves(
    options: DistillOptions, target: Path, tiers: Any, rounds: Any
) -> None:
    """It beats the layers that it began with, and drafts for its target, which emits its own law.

    The draft is a directory that a source names.
    """
    said: list[str] = []
    figures = distill(options, said.append)
    directory = options.directory
    curve = json.loads((directory / "work" / "curve.json").read_text())
    assert [12, 24] == [entry["num_steps"] for entry in curve]
    assert curve[0]["num_tokens"] < 300 <= curve[1]["num_tokens"]
    assert curve[1]["figures"]["loss"] < curve[0]["figures"]["loss"]
    assert curve[1]["figures"]["greedy_agreement"] == figures.greedy_agreement > 0.1
    assert "round 2 of 2" in " ".join(said)
    assert f"| {curve[1]['num_tokens']:,} | 24 |" in (directory / "README.md").read_text()
    size = sum(path.stat().st_size for path in directory.iterdir() if path.is_file())
    assert size < 120_000

    draft = await tiers.draft(str(directory), target=str(target))
    verify = await tiers.verify(str(target))
    identity = await verify.identity()
    source = await draft.identity()
    assert ("int4-per-group", identity.tokenizer_fingerprint, identity.vocabulary_size) == (
        source.quantization,
        source.tokenizer_fingerprint,
        source.vocabulary_size,
    )
    prompt = list(b"Tell me about maps.")
    session = rounds.spec(prompt, rule=VerificationRule.REJECTION_TOKEN)
    plain = await rounds.run(await verify.open(session), None, len(prompt), 24, lambda _: 0)
    both = await rounds.run(
        await verify.open(session),
        await draft.open(session, target=identity),
        len(prompt),
        24,
        lambda _: 4,
    )
    assert plain.token_ids == both.token_ids
    assert both.num_accepted > 0


async def test_a_draft_proposes_only_what_its_head_scores(
    options: DistillOptions, target: Path, tiers: Any, rounds: Any
) -> None:
    """At temperature 1, too, and it ships the law over the target's ids."""
    from paceline.engine.law import decode_laws
    from paceline.records import SamplingParams

    distill(replace(options, num_head_ids=9, num_rounds=1), ignore)
    scored = set(load_file(options.directory / "draft.safetensors")["head_ids"].tolist())
    assert 9 == len(scored)
    draft = await tiers.draft(str(options.directory), target=str(target))
    session = rounds.spec([5, 6, 7], sampling=SamplingParams(1.0))
    proposal = await (await draft.open(session)).draft(Advance(1, 3, (), 12))
    laws = decode_laws(proposal, 258)
    assert set(proposal.token_ids) <= scored
    assert scored >= {int(i) for law in laws for i in law.token_ids} != set()


def test_a_stopped_run_ends_where_a_whole_one_does(
    options: DistillOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped inside a round and then as a round is written, bit for bit."""
    monkeypatch.setattr(run, "_SAVE_EVERY_STEPS", 5)
    distill(options, ignore)
    stopped = replace(options, directory=tmp_path / "stopped")
    step = Trainer.step

    def failing_step(self: Trainer, batch: Any) -> float:
        if self.num_steps == 18:
            raise KeyboardInterrupt
        return step(self, batch)

    def failing_write(*_: Any) -> None:
        raise KeyboardInterrupt

    module = "paceline.distill.run"
    for name, fails in ((".Trainer.step", failing_step), (".write_draft", failing_write)):
        with monkeypatch.context() as patches, pytest.raises(KeyboardInterrupt):
            patches.setattr(module + name, fails)
            distill(stopped, ignore)
    said: list[str] = []
    figures = distill(stopped, said.append)
    assert "going on behind step 20" in said
    for name in ("draft.safetensors", "draft.json"):
        assert (options.directory / name).read_bytes() == (stopped.directory / name).read_bytes()
    curve = json.loads((stopped.directory / "work" / "curve.json").read_text())
    assert [12, 24] == [entry["num_steps"] for entry in curve]
    assert distill(stopped, ignore) == figures


def write_waves(directory: Path, *waves: Sequence[Sequence[int]]) -> None:
    """Writes a shard of each list of prompts, of two tokens each; answers are the wave's number."""
    for wave, prompts in enumerate(waves):
        samples = [
            Sample(
                torch.tensor([*prompt, wave]),
                2,
                torch.zeros(1, 4, dtype=torch.int32),
                torch.zeros(1, 4).half(),
            )
            for prompt in prompts
        ]
        write_shard(shard_path(directory, wave), samples, [])


def test_what_is_held_out_is_of_all_temperatures(tmp_path: Path) -> None:
    """A place of a wave has one temperature: each place is held out in its turn, the rest is not.

    The wave's number decides alone, so that a run that goes on holds out the same.
    """
    write_waves(tmp_path, *([[wave, place] for place in range(3)] for wave in range(4)))
    for num_shards in (2, 4):
        data = run._read_data(tmp_path, num_shards)
        held_out = [tuple(one.token_ids[:2].tolist()) for one in data.held_out]
        assert [(0, 0), (1, 1), (2, 2), (3, 0)][:num_shards] == held_out
    train = {tuple(one.token_ids[:2].tolist()) for one in data.train}
    assert (8, set()) == (len(train), train & set(held_out))


def test_no_more_is_held_out_than_there_is_use_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later waves are trained on whole."""
    monkeypatch.setattr(run, "_MAX_HELD_OUT", 1)
    write_waves(tmp_path, [[1, 2], [3, 4]], [[5, 6], [7, 8]])
    data = run._read_data(tmp_path, 2)
    assert [[1, 2, 0]] == [one.token_ids.tolist() for one in data.held_out]
    assert [[3, 4, 0], [5, 6, 1], [7, 8, 1]] == [one.token_ids.tolist() for one in data.train]


def test_a_prompt_is_held_out_wherever_it_was_asked(tmp_path: Path) -> None:
    """Whatever else answers the prompt of a sample that is held out is dropped."""
    write_waves(tmp_path, ([1, 2], [3, 4], [5, 6]), ([1, 2], [3, 4], [7, 8]))
    data = run._read_data(tmp_path, 2)
    assert [[1, 2, 0], [3, 4, 1]] == [one.token_ids.tolist() for one in data.held_out]
    assert [[5, 6, 0], [7, 8, 1]] == [one.token_ids.tolist() for one in data.train]
    assert (2, 6) == (data.num_shards, data.num_tokens)


def test_tables_and_drafts_are_no_targets(options: DistillOptions, tmp_path: Path) -> None:
    """Neither has layers of its own to begin with."""
    with pytest.raises(InvalidArgument, match="table"):
        distill(replace(options, target="table:x.json"), ignore)
    (tmp_path / "draft.json").touch()
    with pytest.raises(InvalidArgument, match="draft"):
        distill(replace(options, target=str(tmp_path)), ignore)


def test_layers_that_are_not_there(options: DistillOptions) -> None:
    """The layer and the number of layers are named."""
    with pytest.raises(InvalidArgument, match=r"layer 2: it has 2 layers"):
        distill(replace(options, layers=(0, 2)), ignore)


def test_other_families_are_refused(options: DistillOptions, tmp_path: Path, networks: Any) -> None:
    """By the name of the architecture, before anything is collected."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config

    config = GPT2Config(vocab_size=264, n_layer=1, n_head=2, n_embd=16, n_positions=64)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "gpt2")
    AutoTokenizer.from_pretrained(networks.find()).save_pretrained(tmp_path / "gpt2")
    with pytest.raises(FailedPrecondition, match="GPT2LMHeadModel"):
        distill(replace(options, target=str(tmp_path / "gpt2")), ignore)
