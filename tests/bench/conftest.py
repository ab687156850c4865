"""A gateway that counts, served on loopback inside the test's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
import pytest

from paceline.bench.prompts import Question
from paceline.bench.runs import Arrival, Run
from paceline.cli.client import connect
from paceline.v1 import gateway_pb2, speculation_pb2


@dataclass
class CountingGateway:
    """Answers with one id per round, and remembers who was running when."""

    requests: list[gateway_pb2.GenerateRequest] = field(default_factory=list)
    num_running: int = 0
    most_running: int = 0
    vocabulary_size: int = 8
    is_cut: bool = False
    """Whether the last round ends with an accepted token, as one does that an end token cuts."""
    together: asyncio.Barrier = field(default_factory=lambda: asyncio.Barrier(1))
    """Every generation waits until as many run as this has parties."""

    async def generate(
        self, request: gateway_pb2.GenerateRequest, context: object
    ) -> AsyncIterator[gateway_pb2.GenerateResponse]:
        """Three rounds, the first of them plain; all of them where no draft is asked for."""
        self.requests.append(request)
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        await self.together.wait()
        yield gateway_pb2.GenerateResponse(started=gateway_pb2.Started())
        drafted = request.speculation.draft_source not in ("", "none")
        for token_id in range(3):
            is_plain = token_id == 0 or not drafted
            origin = (
                gateway_pb2.TOKEN_ORIGIN_PLAIN if is_plain else gateway_pb2.TOKEN_ORIGIN_RECOVERED
            )
            if self.is_cut and drafted and token_id == 2:
                origin = gateway_pb2.TOKEN_ORIGIN_DRAFT
            tokens = gateway_pb2.Tokens(token_ids=[token_id], origins=[origin], text="x")
            yield gateway_pb2.GenerateResponse(tokens=tokens)
        stats = gateway_pb2.GenerationStats(round_count=2, plain_round_count=1, tokens_per_second=9)
        self.num_running -= 1
        yield gateway_pb2.GenerateResponse(finished=gateway_pb2.Finished(stats=stats))

    async def list_models(
        self, request: gateway_pb2.ListModelsRequest, context: object
    ) -> gateway_pb2.ListModelsResponse:
        """One target."""
        model = speculation_pb2.ModelIdentity(vocabulary_size=self.vocabulary_size)
        return gateway_pb2.ListModelsResponse(models=[gateway_pb2.ServedModel(model=model)])

    async def tokenize(
        self, request: gateway_pb2.TokenizeRequest, context: object
    ) -> gateway_pb2.TokenizeResponse:
        """One id: the length of what the user says."""
        (turn,) = request.prompt.chat.messages
        return gateway_pb2.TokenizeResponse(token_ids=[len(turn.content)])


@pytest.fixture
async def counting() -> AsyncIterator[tuple[CountingGateway, object]]:
    """The gateway and a stub for it."""
    gateway = CountingGateway()
    tokenizer = grpc.unary_unary_rpc_method_handler(
        gateway.tokenize,
        request_deserializer=gateway_pb2.TokenizeRequest.FromString,
        response_serializer=gateway_pb2.TokenizeResponse.SerializeToString,
    )
    lister = grpc.unary_unary_rpc_method_handler(
        gateway.list_models,
        request_deserializer=gateway_pb2.ListModelsRequest.FromString,
        response_serializer=gateway_pb2.ListModelsResponse.SerializeToString,
    )
    handler = grpc.unary_stream_rpc_method_handler(
        gateway.generate,
        request_deserializer=gateway_pb2.GenerateRequest.FromString,
        response_serializer=gateway_pb2.GenerateResponse.SerializeToString,
    )
    server = grpc.aio.server()
    name = gateway_pb2.DESCRIPTOR.services_by_name["GatewayService"].full_name
    methods: dict[str, Any] = {"Generate": handler, "Tokenize": tokenizer, "ListModels": lister}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, methods)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with connect(f"127.0.0.1:{port}") as stub:
        yield gateway, stub
    await server.stop(None)


@pytest.fixture
def make_run() -> Callable[..., Run]:
    """Runs by their arrivals, as (seconds, tokens)."""

    def make(
        *arrivals: tuple[float, int], category: str = "a", question_id: str = "1", **fields: Any
    ) -> Run:
        question = Question(question_id, category, "?")
        return Run(question, tuple(Arrival(*arrival) for arrival in arrivals), **fields)

    return make
