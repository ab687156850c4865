"""From the names of sources to drafters, and what a draft replica says of them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import grpc
import pytest

from draft_service.config import DraftConfig
from draft_service.sources import load_drafters
from paceline import wire
from paceline.errors import InvalidArgument, NotFound
from paceline.pairing import check_pair
from paceline.records import VerificationRule
from paceline.serving.statuses import error_of
from paceline.v1 import draft_pb2


def num_engines() -> int:
    """Engines that run in this process."""
    return sum(thread.name == "engine" for thread in threading.enumerate())


async def test_describe_lists_sources_in_order(tiers: Any, networks: Any) -> None:
    """The default comes first; the target's own weights, quantized, fit the target."""
    tier = await tiers.draft(
        "quantized:int8", "ngram", target=networks.find(), max_draft_tokens=5, max_length=99
    )
    response = await tier.stub.DescribeModel(draft_pb2.DraftServiceDescribeModelRequest())
    sources = wire.decode_sources(response.sources)
    assert (5, ["quantized:int8", "ngram"]) == (
        response.max_draft_tokens,
        [source.name for source in sources],
    )
    model = sources[0].model
    assert model is not None
    assert ("int8-per-row", 99) == (model.quantization, model.max_length)
    assert sources[1].model is None
    target = await (await tiers.verify(networks.find())).identity()
    for rule in VerificationRule:
        check_pair(model, target, rule)


@pytest.mark.parametrize("name", ["quantized:int4", "early-exit:1", "quantized:int8:early-exit:1"])
async def test_the_weights_of_a_quantized_target(tiers: Any, networks: Any, name: str) -> None:
    """They are those that it was made of, and the draft fits it."""
    target = f"quantized:int8:{networks.find()}"
    tier = await tiers.draft(name, target=target)
    model = await tier.identity()
    assert f"{name}:{networks.find()}" == model.name
    check_pair(model, await (await tiers.verify(target)).identity())


@pytest.mark.parametrize("name", ["early-exit:1", "quantized:int8:early-exit:1"])
async def test_early_exit_of_the_target(tiers: Any, rounds: Any, networks: Any, name: str) -> None:
    """The target's own first layers, without a training of their own, fit the target."""
    tier = await tiers.draft(name, target=networks.find())
    model = await tier.identity()
    assert f"{name}:{networks.find()}" == model.name
    verify = await tiers.verify(networks.find())
    check_pair(model, await verify.identity())
    session = rounds.spec([5, 6, 7])
    transcript = await rounds.run(
        await verify.open(session), await tier.open(session), 3, 24, lambda _: 3
    )
    assert networks.generate([5, 6, 7], 24) == transcript.token_ids
    assert transcript.num_drafted > 0


def test_source_that_is_not_there(write_table: Any, tmp_path: Path) -> None:
    """A start that fails names the model, and stops what it had started."""
    before = num_engines()
    config = DraftConfig(source=[write_table(1.0), str(tmp_path / "nothing")], memory_mib=64)
    with pytest.raises(NotFound, match="nothing"):
        load_drafters(config)
    assert before == num_engines()


def test_source_that_is_named_twice(write_table: Any) -> None:
    """It is loaded once."""
    name = write_table(1.0)
    before = num_engines()
    drafters = load_drafters(DraftConfig(source=[name, "ngram", name], memory_mib=64))
    assert [name, "ngram"] == list(drafters)
    assert 1 == num_engines() - before
    for drafter in drafters.values():
        drafter.stop()
    assert before == num_engines()


async def test_load_of_all_sources(tiers: Any, write_table: Any) -> None:
    """Blocks of every engine are added up."""
    one = await tiers.draft(write_table(1.0))
    two = await tiers.draft(write_table(1.0), write_table(1.0), "ngram")
    assert 2 * (await one.load()).num_free_blocks == (await two.load()).num_free_blocks


async def test_load_period_out_of_range(tiers: Any) -> None:
    """The field and its limits are named."""
    tier = await tiers.draft("ngram")
    call = tier.stub.WatchLoad(draft_pb2.DraftServiceWatchLoadRequest(period_ms=5))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    error = error_of(caught.value)
    assert isinstance(error, InvalidArgument)
    assert "period_ms" == error.field
