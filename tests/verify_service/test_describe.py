"""What a verify replica says of itself."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import grpc
import pytest
from transformers import AutoTokenizer

from paceline.engine.coupling import NOISE_VERSION
from paceline.errors import InvalidArgument, NotFound
from paceline.records import VerificationRule
from paceline.serving.statuses import error_of
from paceline.v1 import verify_pb2


async def test_describe_model(tiers: Any, networks: Any) -> None:
    """B45, B95: all that a pair is judged by, the longest proposal, and the rules that work."""
    tier = await tiers.verify(networks.find(), max_draft_tokens=5, max_length=100)
    response = await tier.stub.DescribeModel(verify_pb2.VerifyServiceDescribeModelRequest())
    identity = await tier.identity()
    assert (networks.find(), 258, (1,), 100, "float32", "", False) == (
        identity.name,
        identity.vocabulary_size,
        identity.eos_token_ids,
        identity.max_length,
        identity.dtype,
        identity.quantization,
        identity.exact,
    )
    assert identity.fingerprint
    assert identity.tokenizer_fingerprint
    assert 5 == response.max_draft_tokens
    rules = [VerificationRule(rule) for rule in response.rules]
    assert list(VerificationRule) == rules
    assert NOISE_VERSION == identity.noise_version


async def fetch_tokenizer(tier: Any) -> list[bytes]:
    """The chunks of the tokenizer's archive."""
    call = tier.stub.GetTokenizer(verify_pb2.GetTokenizerRequest())
    return [response.chunk async for response in call]


async def test_tokenizer_can_be_loaded(
    tiers: Any, networks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B49: the archive, put together from its chunks, is the target's tokenizer."""
    monkeypatch.setattr("verify_service.service._CHUNK_BYTES", 1000)
    tier = await tiers.verify(networks.find())
    chunks = await fetch_tokenizer(tier)
    assert [1000] * (len(chunks) - 1) == [len(chunk) for chunk in chunks[:-1]]
    assert len(chunks) > 1
    with zipfile.ZipFile(io.BytesIO(b"".join(chunks))) as archive:
        archive.extractall(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    stock = AutoTokenizer.from_pretrained(networks.find())
    assert stock.get_vocab() == loaded.get_vocab()
    text = "riders äöü</s> one behind the other"
    assert stock(text)["input_ids"] == loaded(text)["input_ids"]


async def test_tokenizer_of_a_table(tiers: Any, cycle: str, tmp_path: Path) -> None:
    """A scripted model has a tokenizer like any other: one id per character."""
    tier = await tiers.verify(cycle)
    with zipfile.ZipFile(io.BytesIO(b"".join(await fetch_tokenizer(tier)))) as archive:
        archive.extractall(tmp_path)
    assert [0, 2, 1] == AutoTokenizer.from_pretrained(tmp_path)("acb")["input_ids"]


@pytest.mark.parametrize("period_ms", [-1, 1, 60_001])
async def test_load_period_out_of_range(tiers: Any, cycle: str, period_ms: int) -> None:
    """The field and its limits are named."""
    tier = await tiers.verify(cycle)
    call = tier.stub.WatchLoad(verify_pb2.VerifyServiceWatchLoadRequest(period_ms=period_ms))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    error = error_of(caught.value)
    assert isinstance(error, InvalidArgument)
    assert "period_ms" == error.field


async def test_load_of_an_idle_replica(tiers: Any, cycle: str) -> None:
    """Nothing is held after the warm-up."""
    load = await (await tiers.verify(cycle)).load()
    assert (0, 0, 0, False) == (
        load.num_open_sessions,
        load.num_queued,
        load.num_held_blocks,
        load.is_draining,
    )
    assert load.num_free_blocks > 0


async def test_model_that_is_not_there(tiers: Any, tmp_path: Path) -> None:
    """A start that fails says why, and nothing is left running."""
    with pytest.raises(NotFound, match="there is no such directory"):
        await tiers.verify(str(tmp_path / "nothing"))
