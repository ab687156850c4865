"""The two model tiers in this process, behind real gRPC on loopback, and models for them.

Heavy modules are imported where they are used: most tests of this tree need no torch.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import grpc
import pytest
import trustme
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from paceline import wire
from paceline.errors import PacelineError
from paceline.records import (
    Advance,
    ModelIdentity,
    Opened,
    Proposal,
    ReplicaLoad,
    SamplingParams,
    SessionSpec,
    Verdict,
    VerificationRule,
)
from paceline.serving.channels import SERVER_OPTIONS, open_channel
from paceline.serving.endpoints import Gate, add_endpoints
from paceline.serving.server import Service
from paceline.serving.statuses import error_of
from paceline.v1 import draft_pb2, draft_pb2_grpc, verify_pb2, verify_pb2_grpc

_SMALL = {"memory_mib": 64, "threads": 1}
GREEDY = SamplingParams(temperature=0.0)
NUM_TINY_IDS = 258
"""Ids of the tiny tokenizer; the heads of the tiny networks have more rows."""


def spec(token_ids: Sequence[int], **fields: Any) -> SessionSpec:
    """A session, greedy unless said otherwise; all its tokens are prompt unless said otherwise."""
    defaults = {
        "prompt_length": len(token_ids),
        "sampling": GREEDY,
        "rule": VerificationRule.REJECTION_BLOCK,
        "seed": 0,
    }
    return SessionSpec(token_ids=tuple(token_ids), **{**defaults, **fields})


class Peer:
    """A session's stream, as the gateway holds it."""

    def __init__(self, call: Any, request_type: Callable[..., Any]) -> None:
        self._call = call
        self._request_type = request_type
        self.opened = Opened(0, 0, 0)

    async def send(self, **message: Any) -> None:
        """Sends one message."""
        await self._call.write(self._request_type(**message))

    async def receive(self) -> Any:
        """The next message, or None at the end of the stream; an error status is raised."""
        message = await self._call.read()
        return None if message is grpc.aio.EOF else message

    async def failure(self) -> grpc.aio.AioRpcError:
        """What the stream ends with; whatever comes before is passed over."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            while await self.receive() is not None:
                pass
        return caught.value

    async def refusal(self) -> PacelineError:
        """The error that the stream ends with."""
        return error_of(await self.failure())

    async def half_close(self) -> None:
        """Says that nothing more will be sent."""
        await self._call.done_writing()

    def cancel(self) -> None:
        """Ends the session at once."""
        self._call.cancel()


class VerifyPeer(Peer):
    """A session of the verify tier."""

    async def send_proposal(self, proposal: Proposal) -> None:
        """Sends a proposal."""
        await self.send(proposal=wire.encode_proposal(proposal))

    async def verify(self, proposal: Proposal) -> Verdict:
        """The verdict on a proposal."""
        await self.send_proposal(proposal)
        response = await self.receive()
        return wire.decode_verdict(response.verdict)


class DraftPeer(Peer):
    """A session of the draft tier."""

    async def send_advance(self, advance: Advance) -> None:
        """Sends an advance."""
        await self.send(advance=wire.encode_advance(advance))

    async def draft(self, advance: Advance) -> Proposal:
        """The proposal for an advance."""
        await self.send_advance(advance)
        response = await self.receive()
        return wire.decode_proposal(response.proposal)


@dataclass(frozen=True)
class Tier:
    """A served tier and the stub of a client."""

    service: Any
    stub: Any

    async def watch(self, is_wanted: Callable[[ReplicaLoad], bool]) -> ReplicaLoad:
        """The first load report that is as wanted; those before it are passed over."""
        message = (
            verify_pb2.VerifyServiceWatchLoadRequest
            if isinstance(self, VerifyTier)
            else draft_pb2.DraftServiceWatchLoadRequest
        )
        call = self.stub.WatchLoad(message(period_ms=10))
        async for response in call:  # reports come until one is wanted: nothing sleeps here
            load = wire.decode_load(response.load)
            if is_wanted(load):
                call.cancel()
                return load
        raise AssertionError("the reports ended")

    async def load(self) -> ReplicaLoad:
        """A load report."""
        return await self.watch(lambda _: True)


class VerifyTier(Tier):
    """A verify tier."""

    def connect(self) -> VerifyPeer:
        """A stream on which nothing was sent."""
        return VerifyPeer(self.stub.Verify(), verify_pb2.VerifyRequest)

    async def open(self, session: SessionSpec, fingerprint: str = "") -> VerifyPeer:
        """An open session."""
        peer = self.connect()
        await self.send_open(peer, session, fingerprint)
        response = await peer.receive()
        peer.opened = wire.decode_opened(response.opened)
        return peer

    @staticmethod
    async def send_open(peer: Peer, session: SessionSpec, fingerprint: str = "") -> None:
        """Opens a session and waits for nothing."""
        await peer.send(
            open=verify_pb2.VerifyOpen(
                session=wire.encode_session(session), model_fingerprint=fingerprint
            )
        )

    async def identity(self) -> ModelIdentity:
        """The target's identity."""
        response = await self.stub.DescribeModel(verify_pb2.VerifyServiceDescribeModelRequest())
        return wire.decode_identity(response.model)


class DraftTier(Tier):
    """A draft tier."""

    def connect(self) -> DraftPeer:
        """A stream on which nothing was sent."""
        return DraftPeer(self.stub.Draft(), draft_pb2.DraftRequest)

    async def open(
        self, session: SessionSpec, source: str = "", target: ModelIdentity | None = None
    ) -> DraftPeer:
        """An open session; without a target, for one of the source's own kind."""
        peer = self.connect()
        await self.send_open(peer, session, source, target)
        response = await peer.receive()
        peer.opened = wire.decode_opened(response.opened)
        return peer

    async def send_open(
        self,
        peer: Peer,
        session: SessionSpec,
        source: str = "",
        target: ModelIdentity | None = None,
    ) -> None:
        """Opens a session and waits for nothing."""
        message = draft_pb2.DraftOpen(session=wire.encode_session(session), source=source)
        target = target or await self.identity(source)
        if target is not None:
            message.target.CopyFrom(wire.encode_identity(target))
        await peer.send(open=message)

    async def identity(self, source: str = "") -> ModelIdentity | None:
        """The identity of a source's model; of the first source without a name."""
        response = await self.stub.DescribeModel(draft_pb2.DraftServiceDescribeModelRequest())
        for found in wire.decode_sources(response.sources):
            if source in ("", found.name):
                return found.model
        return None


@dataclass
class Transcript:
    """What rounds of draft and verify committed, and how."""

    token_ids: list[int] = field(default_factory=list)
    rounds: list[tuple[Proposal, Verdict]] = field(default_factory=list)

    def add(self, proposal: Proposal, verdict: Verdict) -> tuple[int, ...]:
        """Takes a round in and gives what it committed."""
        committed = (*proposal.token_ids[: verdict.num_accepted], verdict.next_token_id)
        self.token_ids.extend(committed)
        self.rounds.append((proposal, verdict))
        return committed

    @property
    def num_drafted(self) -> int:
        """Draft tokens in all."""
        return sum(len(proposal.token_ids) for proposal, _ in self.rounds)

    @property
    def num_accepted(self) -> int:
        """Accepted draft tokens in all."""
        return sum(verdict.num_accepted for _, verdict in self.rounds)

    @property
    def outcomes(self) -> Counter[str]:
        """Rounds with draft tokens by how many were accepted: none, some or all."""
        shares = [
            verdict.num_accepted / len(proposal.token_ids)
            for proposal, verdict in self.rounds
            if proposal.token_ids
        ]
        return Counter({0.0: "none", 1.0: "all"}.get(share, "some") for share in shares)


async def run_rounds(
    verify: VerifyPeer,
    draft: DraftPeer | None,
    prompt_length: int,
    num_tokens: int,
    num_draft_tokens: Callable[[int], int],
) -> Transcript:
    """Runs rounds until `num_tokens` are committed, and cuts what is more from the last one.

    Args:
        verify: The session on the verify tier.
        draft: The session on the draft tier, if there is one.
        prompt_length: Tokens that both sessions were opened with.
        num_tokens: How many to generate.
        num_draft_tokens: From the number of the round to the length of its proposal.
    """
    transcript = Transcript()
    new_token_ids: tuple[int, ...] = ()
    while len(transcript.token_ids) < num_tokens:
        number, length = len(transcript.rounds) + 1, prompt_length + len(transcript.token_ids)
        proposal = Proposal(number, length)
        if draft is not None:
            advance = Advance(number, length, new_token_ids, num_draft_tokens(number))
            if advance.num_draft_tokens:
                proposal = await draft.draft(advance)
            else:
                await draft.send_advance(advance)
        verdict = await verify.verify(proposal)
        new_token_ids = transcript.add(proposal, verdict)
        assert length + len(new_token_ids) == verdict.committed_length
    del transcript.token_ids[num_tokens:]
    return transcript


class Tiers:
    """Starts tiers, and ends them with the test."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.addresses: list[str] = []
        """Of the tiers, in order of start."""

    async def verify(self, model: str, **settings: Any) -> VerifyTier:
        """Serves a target."""
        from verify_service.config import VerifyConfig
        from verify_service.service import VerifyService

        service = VerifyService(VerifyConfig(model=model, **{**_SMALL, **settings}))
        channel = await self._serve(service)
        return VerifyTier(service, verify_pb2_grpc.VerifyServiceStub(channel))

    async def draft(self, *source: str, **settings: Any) -> DraftTier:
        """Serves draft sources."""
        from draft_service.config import DraftConfig
        from draft_service.service import DraftService

        config = DraftConfig(source=list(source), **{**_SMALL, **settings})
        service = DraftService(config)
        channel = await self._serve(service)
        return DraftTier(service, draft_pb2_grpc.DraftServiceStub(channel))

    async def _serve(self, service: Service) -> grpc.aio.Channel:
        await service.start()
        self._stack.push_async_callback(service.stop)
        gate, server = Gate(), grpc.aio.server(options=SERVER_OPTIONS)
        gate.open()
        add_endpoints(server, service.name, service.endpoints(), gate)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self._stack.push_async_callback(server.stop, None)
        self.addresses.append(f"127.0.0.1:{port}")
        channel = open_channel(self.addresses[-1])
        self._stack.push_async_callback(channel.close)
        return channel


@pytest.fixture
async def tiers() -> AsyncIterator[Tiers]:
    """Starts tiers, and ends them with the test."""
    async with AsyncExitStack() as stack:
        yield Tiers(stack)


class Certificates:
    """An authority, and files with its certificate and with those that it signed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._issued: dict[str, tuple[str, ...]] = {}
        self.ca = folder / "ca.crt"
        self.rotate()

    def issue(self, file: str, *names: str) -> tuple[Path, Path]:
        """A certificate for names or addresses: its file and its key's, FILE.crt and FILE.key."""
        self._issued[file] = names
        issued = self._authority.issue_cert(*names)
        chain = b"".join(one.bytes() for one in issued.cert_chain_pems)
        paths = self._folder / f"{file}.crt", self._folder / f"{file}.key"
        for path, content in zip(paths, (chain, issued.private_key_pem.bytes()), strict=True):
            _replace(path, content)
        return paths

    def rotate(self) -> None:
        """Another authority takes over: every file is replaced."""
        self._authority = trustme.CA()
        _replace(self.ca, self._authority.cert_pem.bytes())
        for file, names in self._issued.items():
            self.issue(file, *names)


def _replace(path: Path, content: bytes) -> None:
    """Another file in the place of one, in one step, as a kubelet does it."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.replace(path)


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    """An authority of the test's own."""
    (tmp_path / "tls").mkdir()
    return Certificates(tmp_path / "tls")


class WriteTable(Protocol):
    """Writes a table of laws over the first letters of the alphabet and gives the model's name."""

    def __call__(self, *default: float, **keys: Any) -> str:
        """The law where no other is given, and the table's other keys."""


@pytest.fixture
def collector() -> Iterator[tuple[str, list[Any]]]:
    """The address of a collector of spans, and what it was sent."""
    requests: list[Any] = []

    class Collector(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            requests.append(request)
            return trace_service_pb2.ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(1))
    add_collector: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    add_collector(Collector(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"http://127.0.0.1:{port}", requests
    server.stop(None).wait()


@pytest.fixture
def write_table(tmp_path: Path) -> WriteTable:
    """Writes table models."""
    numbers = iter(range(1_000_000))

    def write(*default: float, **keys: Any) -> str:
        path = tmp_path / f"table{next(numbers)}.json"
        alphabet = "abcdefghij"[: len(default)]
        path.write_text(json.dumps({"alphabet": alphabet, "default": default, **keys}))
        return f"table:{path}"

    return write


class Networks:
    """Tiny random Llama models by kind, each written once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._generated: dict[tuple[int, ...], list[int]] = {}

    def find(self, kind: str = "target") -> str:
        """The directory of a model.

        Kinds: `target`; `never`, whose likeliest token is the target's least likely; `half`, which
        often agrees with the target; `eos`, the target with another end-of-sequence id; `short`,
        the target with a context of 32 tokens.
        """
        path = self._directory / kind
        if not path.exists():
            self._write(kind, path)
        return str(path)

    def generate(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """Greedy tokens of the stock forward, recomputed from the beginning for every token."""
        import torch

        token_ids = list(prompt)
        known = self._generated.get(tuple(prompt), [])
        if len(known) >= num_tokens:
            return known[:num_tokens]
        with torch.inference_mode():
            for _ in range(num_tokens):
                logits = self._stock(torch.tensor([token_ids])).logits[0, -1, :NUM_TINY_IDS]
                token_ids.append(int(logits.argmax()))
        self._generated[tuple(prompt)] = token_ids[len(prompt) :]
        return token_ids[len(prompt) :]

    def log_probs(self, token_ids: Sequence[int]) -> Any:
        """Log-softmax of the stock forward, NumPy [length, ids]; row i predicts token i + 1."""
        import torch

        with torch.inference_mode():
            logits = self._stock(torch.tensor([list(token_ids)])).logits[0, :, :NUM_TINY_IDS]
        return torch.log_softmax(logits.double(), dim=1).numpy()

    @cached_property
    def _stock(self) -> Any:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(self.find())

    def _write(self, kind: str, path: Path) -> None:
        import torch
        import transformers
        from transformers import AutoModelForCausalLM, LlamaConfig

        transformers.logging.disable_progress_bar()
        torch.manual_seed(0)
        network = AutoModelForCausalLM.from_config(
            LlamaConfig(
                vocab_size=264,
                hidden_size=64,
                intermediate_size=96,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=32 if kind == "short" else 256,
                bos_token_id=0,
                eos_token_id=2 if kind == "eos" else 1,
                pad_token_id=1,
            )
        )
        head = network.get_output_embeddings().weight.data
        if kind == "never":
            head.neg_()
        elif kind == "half":
            head.add_(torch.randn(head.shape, generator=torch.Generator().manual_seed(1)) * 0.006)
        network.save_pretrained(path)
        _tiny_tokenizer().save_pretrained(path)


def _tiny_tokenizer() -> Any:
    """A byte-level BPE tokenizer without merges: two special tokens and one token per byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    assert len(tokens) == NUM_TINY_IDS
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=tokens[0], eos_token=tokens[1]
    )


@pytest.fixture(scope="session")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Networks]:
    """Tiny random Llama models."""
    yield Networks(tmp_path_factory.mktemp("networks"))


class Rounds:
    """Sessions and rounds, in one fixture."""

    spec = staticmethod(spec)
    run = staticmethod(run_rounds)

    @staticmethod
    async def together(*runs: Any) -> list[Any]:
        """Runs sessions at the same time, so that they share steps."""
        return await asyncio.gather(*runs)


@pytest.fixture
def rounds() -> Rounds:
    """Sessions and rounds."""
    return Rounds()
