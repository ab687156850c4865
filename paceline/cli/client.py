"""The gateway as the commands see it: connect, build a request, run one generation.

Knows the messages of gateway.proto and nothing of the two tiers behind it. Failures stay gRPC's
`AioRpcError`; `terminal.py` prints them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, cast

import grpc

from paceline.serving.channels import open_channel
from paceline.v1 import gateway_pb2, gateway_pb2_grpc, speculation_pb2
from paceline.wire import seconds

# In quotes: the class exists for type checkers only.
Stub: TypeAlias = "gateway_pb2_grpc.GatewayServiceAsyncStub"
OnTokens = Callable[[gateway_pb2.Tokens], Awaitable[None]]

RULES = {
    "": speculation_pb2.VERIFICATION_RULE_UNSPECIFIED,
    "rejection-block": speculation_pb2.VERIFICATION_RULE_REJECTION_BLOCK,
    "rejection-token": speculation_pb2.VERIFICATION_RULE_REJECTION_TOKEN,
    "coupled": speculation_pb2.VERIFICATION_RULE_COUPLED,
}
RULE_NAMES = tuple(filter(None, RULES))


@dataclass(frozen=True, slots=True)
class Access:
    """Where the gateway is, and what it asks of its callers."""

    address: str
    """HOST:PORT."""
    credentials: grpc.ChannelCredentials | None = None
    """None for plaintext."""
    server_name: str = ""
    """Whom its certificate must be for; empty for the host of the address."""
    token: str = field(default="", repr=False)
    """Empty where it asks for none."""


@asynccontextmanager
async def connect(access: Access | str) -> AsyncIterator[Stub]:
    """A stub for the gateway, at least its HOST:PORT; its channel closes at the block's end."""
    if isinstance(access, str):
        access = Access(access)
    async with open_channel(access.address, access.credentials, access.server_name) as channel:
        authorized = _Authorized(channel, access.token) if access.token else channel
        yield gateway_pb2_grpc.GatewayServiceStub(cast(grpc.aio.Channel, authorized))


class _Authorized:
    """The part of a channel that a stub uses; its calls carry a token.

    gRPC's own credentials for calls want TLS on this hop, where a proxy may be the one that has it.
    """

    def __init__(self, channel: grpc.aio.Channel, token: str) -> None:
        self._channel = channel
        self._metadata = (("authorization", f"Bearer {token}"),)

    def unary_unary(self, *arguments: Any, **options: Any) -> partial[Any]:
        return partial(self._channel.unary_unary(*arguments, **options), metadata=self._metadata)

    def unary_stream(self, *arguments: Any, **options: Any) -> partial[Any]:
        return partial(self._channel.unary_stream(*arguments, **options), metadata=self._metadata)


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """What a client may ask of one generation; None leaves the choice to the gateway."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    rule: str = ""
    """A key of RULES; empty leaves it to the gateway."""
    draft: str = ""
    """Name of the draft source, or `none`."""
    num_draft_tokens: int | None = None
    """Length of every proposal, 0 for plain decoding; None adapts it."""
    ignore_eos: bool = False
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, what is added to its logit)."""
    min_tokens: int = 0
    num_log_probs: int | None = None
    """Likeliest tokens told with each token's log-probability; None tells none."""
    constraint: tuple[str, str] | None = None
    """(json_schema, regex or grammar; its text) that the output must meet."""
    num_samples: int | None = None
    model: str = ""
    """Name of the target; empty takes the first that is served."""
    num_prompt_log_probs: int | None = None
    """The same as `num_log_probs` for the prompt."""

    def request(self, prompt: gateway_pb2.Prompt) -> gateway_pb2.GenerateRequest:
        """The message for one prompt."""
        form = dict([self.constraint]) if self.constraint else None
        return gateway_pb2.GenerateRequest(
            model=self.model,
            prompt=prompt,
            sampling=speculation_pb2.SamplingParams(
                temperature=self.temperature,
                top_p=self.top_p,
                top_k=self.top_k,
                ignore_eos=self.ignore_eos,
                min_p=self.min_p,
                repetition_penalty=self.repetition_penalty,
                presence_penalty=self.presence_penalty,
                frequency_penalty=self.frequency_penalty,
                logit_bias=dict(self.logit_bias),
                min_tokens=self.min_tokens,
                log_prob_count=self.num_log_probs,
                prompt_log_prob_count=self.num_prompt_log_probs,
                constraint=speculation_pb2.Constraint(**form) if form else None,
            ),
            max_tokens=self.max_tokens,
            stop_strings=self.stop,
            seed=self.seed,
            sample_count=self.num_samples,
            speculation=gateway_pb2.SpeculationParams(
                draft_source=self.draft,
                draft_token_count=self.num_draft_tokens,
                rule=RULES[self.rule],
            ),
        )


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation that ended well."""

    text: str
    token_ids: tuple[int, ...]
    origins: tuple[int, ...] = field(repr=False)
    """gateway_pb2.TokenOrigin of each id."""
    started: gateway_pb2.Started
    finished: gateway_pb2.Finished
    log_probs: tuple[speculation_pb2.TokenLogProbs, ...] = ()
    """One per id where asked for, else empty."""
    prompt_log_probs: tuple[speculation_pb2.TokenLogProbs, ...] = ()
    """One per id of the prompt but the first where asked for; with the first sample."""

    @property
    def stats(self) -> gateway_pb2.GenerationStats:
        """What speculation did."""
        return self.finished.stats

    def as_json(self) -> dict[str, Any]:
        """The object that `paceline generate --json` prints."""
        reason = gateway_pb2.FinishReason.Name(self.finished.finish_reason)
        told = {
            name: _log_probs_as_json(values)
            for name in ("log_probs", "prompt_log_probs")
            if (values := getattr(self, name))
        }
        return {
            "text": self.text,
            "token_ids": list(self.token_ids),
            "finish_reason": reason.removeprefix("FINISH_REASON_"),
            "usage": {
                "prompt_tokens": self.finished.usage.prompt_token_count,
                "completion_tokens": self.finished.usage.completion_token_count,
            },
            "stats": stats_as_json(self.stats),
            **told,
        }


def stats_as_json(stats: gateway_pb2.GenerationStats) -> dict[str, Any]:
    """The statistics under the names that the commands print."""
    return {
        "rounds": stats.round_count,
        "drafted_tokens": stats.drafted_token_count,
        "accepted_tokens": stats.accepted_token_count,
        "acceptance_rate": stats.acceptance_rate,
        "acceptance_length": stats.acceptance_length,
        "tokens_per_second": stats.tokens_per_second,
        "time_to_first_token_ms": 1e3 * seconds(stats.time_to_first_token),
        "round_ms_p50": 1e3 * seconds(stats.round_duration_p50),
        "overhead_ms_p50": 1e3 * seconds(stats.overhead_duration_p50),
        "wire_bytes_per_token": stats.wire_bytes_per_token,
        "fallbacks": dict(stats.fallbacks),
    }


def _log_probs_as_json(
    log_probs: Sequence[speculation_pb2.TokenLogProbs],
) -> list[dict[str, Any]]:
    """One object per token: its own log-probability, and those of the likeliest ids."""
    return [
        {
            "chosen": one.chosen,
            "top": [
                {"token_id": token_id, "log_prob": log_prob}
                for token_id, log_prob in zip(one.top_token_ids, one.top_log_probs, strict=True)
            ],
        }
        for one in log_probs
    ]


def text_prompt(text: str) -> gateway_pb2.Prompt:
    """A prompt of plain text."""
    return gateway_pb2.Prompt(text=text)


def chat_prompt(messages: Sequence[tuple[str, str]]) -> gateway_pb2.Prompt:
    """A prompt of (role, content) messages."""
    turns = [gateway_pb2.ChatMessage(role=role, content=content) for role, content in messages]
    return gateway_pb2.Prompt(chat=gateway_pb2.Chat(messages=turns))


def ids_prompt(token_ids: Sequence[int]) -> gateway_pb2.Prompt:
    """A prompt of token ids."""
    return gateway_pb2.Prompt(token_ids=gateway_pb2.TokenIds(token_ids=token_ids))


async def generate(
    gateway: Stub, request: gateway_pb2.GenerateRequest, on_tokens: OnTokens | None = None
) -> Generation:
    """Runs one generation to its end, handing each Tokens event to `on_tokens` as it comes."""
    (generation,) = await generate_samples(gateway, request, on_tokens)
    return generation


async def generate_samples(
    gateway: Stub, request: gateway_pb2.GenerateRequest, on_tokens: OnTokens | None = None
) -> list[Generation]:
    """The same for every sample that the request asks for, in order of their indices."""
    started = gateway_pb2.Started()
    prompt: list[speculation_pb2.TokenLogProbs] = []
    pieces: defaultdict[int, list[gateway_pb2.Tokens]] = defaultdict(list)
    finished: dict[int, gateway_pb2.Finished] = {}
    async for event in gateway.Generate(request):
        match event.WhichOneof("event"):
            case "started":
                started = event.started
            case "prompt_log_probs":
                prompt += event.prompt_log_probs.log_probs
            case "tokens":
                pieces[event.tokens.sample_index].append(event.tokens)
                if on_tokens is not None:
                    await on_tokens(event.tokens)
            case "finished":
                finished[event.finished.sample_index] = event.finished
    return [
        Generation(
            "".join(one.text for one in pieces[index]),
            tuple(token_id for one in pieces[index] for token_id in one.token_ids),
            tuple(origin for one in pieces[index] for origin in one.origins),
            started,
            finished[index],
            tuple(each for one in pieces[index] for each in one.log_probs),
            () if number else tuple(prompt),
        )
        for number, index in enumerate(sorted(finished))
    ]
