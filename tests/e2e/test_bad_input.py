"""Bad requests get a status that names the fault, and touch nobody else."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from paceline.cli.client import GenerationOptions, connect, generate, text_prompt
from paceline.serving.channels import open_channel
from paceline.v1 import gateway_pb2

if TYPE_CHECKING:
    from tests.e2e.conftest import Running, Start

pytestmark = pytest.mark.e2e

INVALID, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND


def base() -> gateway_pb2.GenerateRequest:
    """A request that is fine."""
    return GenerationOptions(max_tokens=5, temperature=0.0).request(text_prompt("abc"))


def with_(change: Callable[[gateway_pb2.GenerateRequest], Any]) -> bytes:
    """A request that is fine but for one thing, as bytes."""
    message = base()
    change(message)
    return message.SerializeToString()


def chat(message: gateway_pb2.GenerateRequest, role: str) -> None:
    """Makes the prompt a conversation of one message."""
    turn = gateway_pb2.ChatMessage(role=role, content="abc")
    message.prompt.chat.CopyFrom(gateway_pb2.Chat(messages=[turn]))


def ids(message: gateway_pb2.GenerateRequest, *token_ids: int) -> None:
    """Makes the prompt a list of ids."""
    message.prompt.token_ids.CopyFrom(gateway_pb2.TokenIds(token_ids=token_ids))


CASES: dict[str, tuple[bytes, grpc.StatusCode, str]] = {
    "no prompt": (with_(lambda m: m.ClearField("prompt")), INVALID, "prompt"),
    "empty prompt": (with_(lambda m: m.prompt.__setattr__("text", "")), INVALID, "prompt"),
    "unknown letter": (with_(lambda m: m.prompt.__setattr__("text", "a?b")), INVALID, "prompt"),
    "id out of range": (with_(lambda m: ids(m, 0, 99)), INVALID, "prompt.token_ids"),
    "no messages": (with_(lambda m: m.prompt.chat.SetInParent()), INVALID, "prompt.chat"),
    "NaN temperature": (
        with_(lambda m: m.sampling.__setattr__("temperature", float("nan"))),
        INVALID,
        "temperature",
    ),
    "negative temperature": (
        with_(lambda m: m.sampling.__setattr__("temperature", -1.0)),
        INVALID,
        "temperature",
    ),
    "top_p 0": (with_(lambda m: m.sampling.__setattr__("top_p", 0.0)), INVALID, "top_p"),
    "top_k 0": (with_(lambda m: m.sampling.__setattr__("top_k", 0)), INVALID, "top_k"),
    "max_tokens 0": (with_(lambda m: m.__setattr__("max_tokens", 0)), INVALID, "max_tokens"),
    "max_tokens 10^8": (with_(lambda m: m.__setattr__("max_tokens", 10**8)), INVALID, "max_tokens"),
    "prompt over the context": (
        with_(lambda m: m.prompt.__setattr__("text", "a" * 5000)),
        INVALID,
        "prompt",
    ),
    "empty stop string": (with_(lambda m: m.stop_strings.append("")), INVALID, "stop_strings"),
    "unknown rule": (
        with_(lambda m: m.speculation.__setattr__("rule", 9)),
        INVALID,
        "speculation.rule",
    ),
    "min_p": (with_(lambda m: m.sampling.__setattr__("min_p", 1.5)), INVALID, "min_p"),
    "penalty": (
        with_(lambda m: m.sampling.__setattr__("presence_penalty", math.nan)),
        INVALID,
        "presence_penalty",
    ),
    "log-probs": (
        with_(lambda m: m.sampling.__setattr__("log_prob_count", -1)),
        INVALID,
        "log_prob_count",
    ),
    "bias outside the vocabulary": (
        with_(lambda m: m.sampling.logit_bias.__setitem__(8, 1.0)),
        INVALID,
        "logit_bias",
    ),
    "everything banned": (
        with_(lambda m: [m.sampling.banned_sequences.add(token_ids=[i]) for i in range(8)]),
        INVALID,
        "sampling",
    ),
    "no sample": (with_(lambda m: m.__setattr__("sample_count", 0)), INVALID, "sample_count"),
    "99 samples": (with_(lambda m: m.__setattr__("sample_count", 99)), INVALID, "sample_count"),
    "unknown model": (with_(lambda m: m.__setattr__("model", "no such")), NOT_FOUND, ""),
    "unknown source": (
        with_(lambda m: m.speculation.__setattr__("draft_source", "no such")),
        NOT_FOUND,
        "",
    ),
    "invalid UTF-8": (b"\x0a\x02\xff\xfe", INVALID, ""),
    "malformed bytes": (b"\xff\xff\xff\xff\xff", INVALID, ""),
    "20 MB": (b"\x0a" + b"\x80\x80\x80\x0a" + b"a" * (20 << 20), INVALID, ""),
}


async def refused(address: str, data: bytes) -> grpc.aio.AioRpcError:
    """The error that the gateway answers these bytes with."""
    async with open_channel(address) as channel:
        start: Any = channel.unary_stream("/paceline.v1.GatewayService/Generate")  # bytes in
        call = start(data)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            async for _ in call:
                pass
    return failure.value


def details(error: grpc.aio.AioRpcError) -> tuple[error_details_pb2.ErrorInfo, str]:
    """The ErrorInfo, of which there is exactly one, and the field that BadRequest names."""
    status = rpc_status.from_call(error)
    assert status is not None
    infos, fields = [], [""]
    for detail in status.details:
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            infos.append(error_details_pb2.ErrorInfo())
            detail.Unpack(infos[-1])
        if detail.Is(error_details_pb2.BadRequest.DESCRIPTOR):
            bad = error_details_pb2.BadRequest()
            detail.Unpack(bad)
            fields = [violation.field for violation in bad.field_violations]
    assert 1 == len(infos)
    return infos[0], fields[0]


@pytest.mark.parametrize("name", CASES)
async def test_bad_requests_are_named(pair: Running, name: str) -> None:
    """B66, B67, B68, B120: a code of the table, one ErrorInfo of our domain, the field named."""
    data, code, field = CASES[name]
    error = await refused(pair.address, data)
    assert code == error.code()
    info, named = details(error)
    assert "paceline" == info.domain
    assert field in named


async def test_bad_requests_touch_nobody_else(pair: Running) -> None:
    """B66: twenty generations run on while every bad request is refused."""
    address = pair.address
    request = GenerationOptions(max_tokens=120, temperature=0.0).request(text_prompt("abc"))
    async with connect(address) as gateway:
        alone = await generate(gateway, request)
        running = [asyncio.create_task(generate(gateway, request)) for _ in range(20)]
        for data, code, _ in CASES.values():
            assert code == (await refused(address, data)).code()
        for generation in await asyncio.gather(*running):
            assert alone.token_ids == generation.token_ids


@pytest.mark.timeout(600)  # the first to start the pair converts its model
async def test_unknown_role_is_named(smollm2_pair: Running) -> None:
    """B50: a template that cannot render a role says so. Uses a model with a real template."""
    message = base()
    chat(message, "")
    error = await refused(smollm2_pair.address, message.SerializeToString())
    assert INVALID == error.code()
    assert details(error)[1].startswith("prompt.chat")


def test_a_draft_with_other_tokens_is_refused(start_pair: Start, tmp_path: Path) -> None:
    """B46: a draft whose ids mean something else does not start, and says both texts of an id."""
    path = tmp_path / "other.json"
    path.write_text(json.dumps({"alphabet": "hgfedcba", "eos": "h", "default": [0.125] * 8}))
    with pytest.raises(AssertionError, match="draft ended with exit code 1") as ended:
        start_pair("--draft", f"table:{path}")
    message = str(ended.value)
    assert "other.json" in message and "target.json" in message
    assert "id 0 is 'h' there and 'a' here" in message
