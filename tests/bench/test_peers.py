"""Peers: the ids that the network itself chooses, alone and in a batch; what is missing is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.bench.peers import (
    PROMPT_LOOKUP,
    PeerSettings,
    TransformersRow,
    load_peers,
    load_transformers,
    peer_draft,
)
from paceline.bench.prompts import Question
from paceline.bench.runs import Prompt
from paceline.cli.client import GenerationOptions
from paceline.errors import InvalidArgument

PROMPTS = [
    Prompt(Question(str(number), "a", "?"), ids)
    for number, ids in enumerate([(3, 4, 5), (6, 7, 8, 9, 10), (11,)])
]
GREEDY = GenerationOptions(max_tokens=8, temperature=0.0)


def settings(target: str, tmp_path: Path, **fields: Any) -> PeerSettings:
    """One thread, no draft unless said otherwise."""
    values: dict[str, Any] = {"drafts": (), "options": GREEDY, "num_threads": 1}
    values |= {"max_concurrency": 1, "max_prompt_length": 8} | fields
    return PeerSettings(target=target, cache_dir=tmp_path, **values)


@pytest.fixture
def network(networks: Any) -> Any:
    """A tiny network whose greedy text ends by itself for none of the prompts."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(networks.find())


async def test_a_batch_gives_the_ids_of_its_prompts(network: Any) -> None:
    """Padding at the left changes nothing, and every step is an arrival of each."""
    row = TransformersRow("x", network, GREEDY)
    batch = await row.run(PROMPTS)
    alone = [(await row.run([prompt]))[0] for prompt in PROMPTS]
    assert [run.token_ids for run in alone] == [run.token_ids for run in batch]
    assert ["0", "1", "2"] == [run.question.id for run in batch]
    assert len({run.token_ids for run in batch}) > 1
    for run in batch + alone:
        assert run.token_ids is not None
        assert len(run.token_ids) == run.num_tokens == len(run.arrivals)


async def test_a_batch_row_ends_at_its_own_end(network: Any) -> None:
    """What fills up a row after its end token is not counted; the end token is."""
    row = TransformersRow("x", network, GREEDY)
    first, second, third = await row.run(PROMPTS)
    assert first.token_ids and second.token_ids and third.token_ids
    end = first.token_ids[1]
    network.generation_config.eos_token_id = [end]
    network.generation_config.pad_token_id = end
    cut, *others = await row.run(PROMPTS)
    assert cut.token_ids is not None
    assert first.token_ids[: len(cut.token_ids)] == cut.token_ids
    assert end == cut.token_ids[-1] and len(cut.token_ids) == cut.num_tokens <= 2
    assert all(end not in (run.token_ids or ())[:-1] for run in others)


@pytest.mark.parametrize("kind", ["lookup", "assisted"])
async def test_other_ways_give_the_same_ids(network: Any, kind: str) -> None:
    """In blocks: fewer arrivals than tokens where the draft is the target itself."""
    keywords = PROMPT_LOOKUP if kind == "lookup" else {"assistant_model": network}
    row = TransformersRow("x", network, GREEDY, keywords, 1)
    plain = TransformersRow("x", network, GREEDY)
    for prompt in PROMPTS:
        (run,) = await row.run([prompt])
        assert (await plain.run([prompt]))[0].token_ids == run.token_ids
        assert 8 == run.num_tokens
        assert kind == "lookup" or len(run.arrivals) < 8


@pytest.mark.parametrize("kind", ["plain", "lookup"])
async def test_a_models_own_penalty_is_not_applied(network: Any, kind: str) -> None:
    """The services are asked for none, and transformers would apply it to greedy ids too."""
    keywords = PROMPT_LOOKUP if kind == "lookup" else {}
    row = TransformersRow("x", network, GREEDY, keywords, 1)
    expected = [(await row.run([prompt]))[0].token_ids for prompt in PROMPTS]
    network.generation_config.repetition_penalty = 9.0
    assert expected == [(await row.run([prompt]))[0].token_ids for prompt in PROMPTS]


async def test_sampling_draws(network: Any) -> None:
    """At a temperature the ids are drawn, not chosen."""
    import torch

    torch.manual_seed(0)
    row = TransformersRow("x", network, GenerationOptions(max_tokens=8, temperature=1.0))
    drawn = {(await row.run(PROMPTS[:1]))[0].token_ids for _ in range(4)}
    assert len(drawn) > 1


def test_rows_of_transformers(networks: Any, tmp_path: Path) -> None:
    """Plain, prompt lookup, and assisted by each draft that is a model and can be loaded."""
    said: list[str] = []
    drafts = ("ngram", networks.find(), "quantized:int8", str(tmp_path / "nowhere"))
    rows = load_transformers(settings(networks.find(), tmp_path, drafts=drafts), said.append)
    names = ["transformers", "prompt lookup"]
    names += [f"assisted {networks.find()}", "assisted quantized:int8"]
    assert names == [row.name for row in rows]
    assert [False, True, True, True] == [row.max_concurrency == 1 for row in rows]
    assert 1 == len(said) and "nowhere" in said[0]


async def test_ignoring_the_end(networks: Any, tmp_path: Path) -> None:
    """Every output is as long as asked for, the end token notwithstanding."""
    options = GenerationOptions(max_tokens=8, temperature=0.0, ignore_eos=True)
    rows = load_transformers(settings(networks.find(), tmp_path, options=options), print)
    for row in rows:
        assert isinstance(row, TransformersRow)
        assert None is row.network.generation_config.eos_token_id
    assert [8, 8, 8] == [run.num_tokens for run in await rows[0].run(PROMPTS)]


def test_tables_are_no_peers(write_table: Any, tmp_path: Path) -> None:
    """A table cannot generate by itself; the measurement goes on without peers, saying so."""
    table = write_table(0.5, 0.5)
    with pytest.raises(InvalidArgument, match="not a model of transformers"):
        load_transformers(settings(table, tmp_path), print)
    said: list[str] = []
    assert [] == load_peers(settings(table, tmp_path), said.append)
    assert ["no transformers", "no llama.cpp"] == [line.partition(":")[0] for line in said]


def test_draft_of_a_peer() -> None:
    """The target's own weights quantized need the target's name; other models stand alone."""
    assert "quantized:int8:smollm2" == peer_draft("quantized:int8", "smollm2")
    assert "quantized:int4:smollm2" == peer_draft("quantized:int4", "quantized:int8:smollm2")
    assert "org/small" == peer_draft("org/small", "smollm2")
    assert "" == peer_draft("ngram", "smollm2") == peer_draft("hybrid:ngram+org/small", "smollm2")
