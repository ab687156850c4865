"""Fakes of both tiers: as objects for the loop, and as real gRPC servers for the sessions.

Targets are scripted: output position i gets `script[i]`, whatever came before. Drafts know the
script and follow it, avoid it, or do so by a fixed coin.
"""

from __future__ import annotations

import asyncio
import io
import zipfile
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from gateway.commit import Committed, Committer, Ending
from gateway.draft_length import DraftLengthPolicy, FixedLength
from gateway.replicas import DescriptionT, Replicas
from gateway.round import Pair, run_rounds
from gateway.stats import SpeculationStats
from gateway.tiers import Tiers, draft_tier, verify_tier
from gateway.tokenizer import Tokenizer
from gateway.tokenizers import Tokenizers
from paceline import wire
from paceline.errors import PacelineError
from paceline.records import (
    Advance,
    DraftSource,
    ModelIdentity,
    Proposal,
    ReplicaLoad,
    Verdict,
    VerdictKind,
    VerificationRule,
)
from paceline.serving.credentials import TlsFiles, client_credentials
from paceline.serving.endpoints import Endpoint, Gate, Shape, add_endpoints
from paceline.v1 import draft_pb2, verify_pb2

EOS = 256
CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'tool' %}{{ raise_exception('no tools') }}"
    "{% endif %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


# Tokenizers -------------------------------------------------------------------------------------


def byte_tokenizer(*, with_template: bool = True) -> PreTrainedTokenizerFast:
    """BYTE: id i is byte-level symbol i in sorted order, 256 is the end of sequence; no BOS."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")
    if with_template:
        tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def pack(tokenizer: PreTrainedTokenizerFast, directory: Path) -> bytes:
    """The archive of a tokenizer, as a verify replica hands it out."""
    tokenizer.save_pretrained(directory)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as files:
        for path in sorted(directory.iterdir()):
            files.write(path, path.name)
    return archive.getvalue()


@pytest.fixture(scope="session")
def bytes_tokenizer() -> Tokenizer:
    """The BYTE tokenizer, as the gateway uses it."""
    return Tokenizer(byte_tokenizer())


@pytest.fixture(scope="session")
def byte_archive(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The archive of the BYTE tokenizer."""
    return pack(byte_tokenizer(), tmp_path_factory.mktemp("byte"))


@pytest.fixture(scope="session")
def model() -> ModelIdentity:
    """The scripted target's identity: BYTE vocabulary, at most 64 tokens."""
    return ModelIdentity(
        name="scripted",
        fingerprint="scripted-1",
        tokenizer_fingerprint="byte",
        vocabulary_size=257,
        eos_token_ids=(EOS,),
        max_length=64,
        dtype="float32",
    )


# The loop's two protocols -----------------------------------------------------------------------


def judge(proposal: Proposal, script: Sequence[int], prompt_length: int) -> Verdict:
    """What a scripted greedy target says to a proposal."""
    expected = script[proposal.base_length - prompt_length :]
    num_accepted = 0
    while (
        num_accepted < len(proposal.token_ids)
        and proposal.token_ids[num_accepted] == expected[num_accepted]
    ):
        num_accepted += 1
    is_full = num_accepted == len(proposal.token_ids)
    kind = VerdictKind.BONUS if is_full else VerdictKind.RECOVERED
    return Verdict(
        proposal.round,
        num_accepted,
        expected[num_accepted],
        kind if proposal.token_ids else VerdictKind.PLAIN,
        proposal.base_length + num_accepted + 1,
    )


def draft(script: Sequence[int], start: int, length: int, mode: str) -> tuple[int, ...]:
    """Draft tokens for output positions from `start`: `right`, `wrong` or `mixed` by position."""
    positions = range(start, min(start + length, len(script)))
    is_wrong = {"right": (0, 0, 0), "wrong": (1, 1, 1), "mixed": (0, 1, 0)}[mode]
    return tuple((script[p] + is_wrong[p % 3]) % 256 for p in positions)


class ScriptedVerifier:
    """SCR: a greedy target that emits a list of tokens by position."""

    def __init__(
        self, script: Sequence[int], prompt_length: int, max_draft_tokens: int = 8
    ) -> None:
        self.script = script
        self.prompt_length = prompt_length
        self.max_draft_tokens = max_draft_tokens
        self.proposals: list[Proposal] = []
        self.alter: Callable[[Verdict], Verdict] = lambda verdict: verdict
        self.refusals: dict[int, PacelineError] = {}
        """What the next proposal of a round is refused with."""

    async def verify(self, proposal: Proposal) -> Verdict:
        """Accepts what the script says."""
        self.proposals.append(proposal)
        if proposal.round in self.refusals:
            raise self.refusals.pop(proposal.round)
        return self.alter(judge(proposal, self.script, self.prompt_length))


class ScriptedDrafter:
    """D=T, D=notT and D=mix: a draft that is right always, never or at times."""

    def __init__(self, script: Sequence[int], prompt_length: int, mode: str) -> None:
        self.script = script
        self.prompt_length = prompt_length
        self.mode = mode
        self.advances: list[Advance] = []
        self.causes: list[str] = []
        """Why it was given up."""
        self.alter: Callable[[Proposal], Proposal] = lambda proposal: proposal

    async def propose(self, advance: Advance) -> Proposal:
        """Drafts as many tokens as were asked for."""
        self.advances.append(advance)
        start = advance.committed_length - self.prompt_length
        num_draft_tokens = 0 if self.causes else advance.num_draft_tokens
        token_ids = draft(self.script, start, num_draft_tokens, self.mode)
        return self.alter(Proposal(advance.round, advance.committed_length, token_ids))

    def give_up(self, cause: str) -> None:
        """Drafts no more."""
        self.causes.append(cause)


@dataclass
class Outcome:
    """What a run of the loop gave."""

    events: list[Committed]
    stats: SpeculationStats
    proposals: list[Proposal]
    advances: list[Advance]
    causes: list[str]
    """Why the draft was given up."""

    @property
    def token_ids(self) -> list[int]:
        """All committed ids."""
        return [token_id for event in self.events for token_id in event.token_ids]

    @property
    def text(self) -> str:
        """All text."""
        return "".join(event.text for event in self.events)


class Loop:
    """Runs the loop against scripted tiers."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode

    async def run(
        self,
        script: Sequence[int],
        ending: Ending,
        *,
        num_draft_tokens: int = 4,
        policy: DraftLengthPolicy | None = None,
        mode: str = "right",
        prompt_length: int = 3,
        max_draft_tokens: int = 8,
        alter_verdict: Callable[[Verdict], Verdict] = lambda verdict: verdict,
        alter_proposal: Callable[[Proposal], Proposal] = lambda proposal: proposal,
        refusals: Mapping[int, PacelineError] | None = None,
    ) -> Outcome:
        """Runs one generation to its end; `alter_...` changes what a tier answers."""
        verifier = ScriptedVerifier(script, prompt_length, max_draft_tokens)
        drafter = ScriptedDrafter(script, prompt_length, mode)
        verifier.alter, drafter.alter = alter_verdict, alter_proposal
        verifier.refusals.update(refusals or {})
        stats = SpeculationStats()
        rounds = run_rounds(
            Pair(verifier, drafter),
            Committer(ending, self._decode),
            policy or FixedLength(num_draft_tokens),
            stats,
            base_length=prompt_length,
            last_length=prompt_length + ending.max_tokens,
        )
        async with aclosing(rounds):
            events = [committed async for committed in rounds]
        return Outcome(events, stats, verifier.proposals, drafter.advances, drafter.causes)


@pytest.fixture
def loop(bytes_tokenizer: Tokenizer) -> Loop:
    """The loop with BYTE text."""
    return Loop(bytes_tokenizer.decode)


# Both tiers as servers --------------------------------------------------------------------------

Fault = Callable[[int], Awaitable[None]]
"""Called before the answer of a round, with its number; may raise, or wait."""


@dataclass
class _Tier:
    """A fake replica: what it recorded, and how it is told to misbehave."""

    script: list[int]
    refusals: list[PacelineError] = field(default_factory=list)
    """Raised by the next sessions, one each, instead of opening."""
    fault: Fault | None = None
    num_open: int = 0
    """Sessions open now."""
    num_opened: int = 0
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever no session is open after one was."""
    opens: list[Any] = field(default_factory=list)
    load: ReplicaLoad = field(default_factory=ReplicaLoad)
    load_changed: asyncio.Event = field(default_factory=asyncio.Event)
    address: str = ""
    server: grpc.aio.Server | None = None
    dying: asyncio.Task[None] | None = None
    max_draft_tokens: int = 8
    zone: str = ""

    async def serve(self, address: str = "127.0.0.1:0") -> None:
        """Starts the server."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Kills the server: every stream breaks."""
        server, self.server = self.server, None
        if server is not None:
            await server.stop(None)

    async def die(self) -> None:
        """Kills the server from within one of its handlers, which does not return."""
        self.dying = asyncio.create_task(self.stop())
        await asyncio.Event().wait()

    def set_load(self, **changes: Any) -> None:
        """Reports another load at once."""
        self.load = replace(self.load, **changes)
        self.load_changed.set()

    async def _serve(self, name: str, endpoints: Sequence[Endpoint], address: str) -> None:
        self.server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        gate = Gate()
        gate.open()
        add_endpoints(self.server, name, endpoints, gate)
        host = address.rpartition(":")[0]
        self.address = f"{host}:{self.server.add_insecure_port(address)}"
        await self.server.start()

    @contextmanager
    def _session(self, message: Any) -> Iterator[None]:
        self.opens.append(message)
        if self.refusals:
            raise self.refusals.pop(0)
        self.num_open += 1
        self.num_opened += 1
        try:
            yield
        finally:
            self.num_open -= 1
            if not self.num_open:
                self.closed.set()

    async def _loads(self) -> AsyncIterator[ReplicaLoad]:
        while True:
            self.load_changed.clear()  # before the load is read, or a change would be missed
            yield self.load
            await self.load_changed.wait()


@dataclass
class VerifyTier(_Tier):
    """A verify replica with a scripted target."""

    identity: ModelIdentity | None = None
    archive: bytes = b""
    proposals: list[Any] = field(default_factory=list)
    answer: Callable[[Verdict], Verdict] | None = None
    """Alters verdicts."""
    rules: tuple[VerificationRule, ...] = tuple(VerificationRule)
    num_tokenizers_sent: int = 0

    async def serve(self, address: str = "127.0.0.1:0") -> None:
        """Starts the server."""
        request = verify_pb2
        await self._serve(
            "paceline.v1.VerifyService",
            (
                Endpoint("Verify", Shape.BIDI, request.VerifyRequest, self._verify),
                Endpoint(
                    "DescribeModel",
                    Shape.UNARY,
                    request.VerifyServiceDescribeModelRequest,
                    self._describe,
                ),
                Endpoint(
                    "GetTokenizer",
                    Shape.SERVER_STREAM,
                    request.GetTokenizerRequest,
                    self._get_tokenizer,
                ),
                Endpoint(
                    "WatchLoad",
                    Shape.SERVER_STREAM,
                    request.VerifyServiceWatchLoadRequest,
                    self._watch,
                ),
            ),
            address,
        )

    async def _describe(self, request: Any, context: Any) -> Any:
        assert self.identity is not None
        return verify_pb2.VerifyServiceDescribeModelResponse(
            model=wire.encode_identity(self.identity),
            max_draft_tokens=self.max_draft_tokens,
            zone=self.zone,
            rules=[rule.value for rule in self.rules],  # type: ignore[misc]  # enum values
        )

    async def _get_tokenizer(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.num_tokenizers_sent += 1
        for start in range(0, len(self.archive), 1000):
            yield verify_pb2.GetTokenizerResponse(chunk=self.archive[start : start + 1000])

    async def _watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        async for load in self._loads():
            yield verify_pb2.VerifyServiceWatchLoadResponse(load=wire.encode_load(load))

    async def _verify(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        assert self.identity is not None
        first = await anext(requests)
        with self._session(first.open):
            session = wire.decode_session(first.open.session)
            length = len(session.token_ids)
            yield verify_pb2.VerifyResponse(
                opened=verify_pb2.VerifyOpened(
                    max_length=self.identity.max_length, max_draft_tokens=self.max_draft_tokens
                )
            )
            expected_round = 1
            async for request in requests:
                self.proposals.append(request.proposal)
                proposal = wire.decode_proposal(request.proposal)
                assert (expected_round, length) == (proposal.round, proposal.base_length)
                if self.fault is not None:
                    await self.fault(proposal.round)
                verdict = judge(proposal, self.script, session.prompt_length)
                length, expected_round = verdict.committed_length, expected_round + 1
                verdict = self.answer(verdict) if self.answer else verdict
                yield verify_pb2.VerifyResponse(verdict=wire.encode_verdict(verdict))


@dataclass
class DraftTier(_Tier):
    """A draft replica that knows the target's script."""

    mode: str = "right"
    sources: tuple[DraftSource, ...] = (DraftSource("scripted"),)
    max_length: int = 64
    advances: list[Any] = field(default_factory=list)
    answers: Callable[[Proposal], list[Proposal]] | None = None
    """What is sent in the place of a proposal."""
    num_calls: int = 0
    """Streams open now, with a session or before it."""

    async def serve(self, address: str = "127.0.0.1:0") -> None:
        """Starts the server."""
        request = draft_pb2
        await self._serve(
            "paceline.v1.DraftService",
            (
                Endpoint("Draft", Shape.BIDI, request.DraftRequest, self._draft),
                Endpoint(
                    "DescribeModel",
                    Shape.UNARY,
                    request.DraftServiceDescribeModelRequest,
                    self._describe,
                ),
                Endpoint(
                    "WatchLoad",
                    Shape.SERVER_STREAM,
                    request.DraftServiceWatchLoadRequest,
                    self._watch,
                ),
            ),
            address,
        )

    async def _describe(self, request: Any, context: Any) -> Any:
        return draft_pb2.DraftServiceDescribeModelResponse(
            sources=[wire.encode_source(source) for source in self.sources],
            max_draft_tokens=self.max_draft_tokens,
            zone=self.zone,
        )

    async def _watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        async for load in self._loads():
            yield draft_pb2.DraftServiceWatchLoadResponse(load=wire.encode_load(load))

    async def _draft(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        self.num_calls += 1
        try:
            async with aclosing(self._talk(requests)) as responses:
                async for response in responses:
                    yield response
        finally:
            self.num_calls -= 1

    async def _talk(self, requests: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
        first = await anext(requests)
        with self._session(first.open):
            session = wire.decode_session(first.open.session)
            token_ids = list(session.token_ids)
            yield draft_pb2.DraftResponse(
                opened=draft_pb2.DraftOpened(
                    max_length=self.max_length,
                    max_draft_tokens=self.max_draft_tokens,
                    source=first.open.source or self.sources[0].name,
                )
            )
            async for request in requests:
                advance = wire.decode_advance(request.advance)
                self.advances.append(advance)
                token_ids += advance.new_token_ids
                assert advance.committed_length == len(token_ids)
                if self.fault is not None:
                    await self.fault(advance.round)
                start = len(token_ids) - session.prompt_length
                assert list(self.script[:start]) == token_ids[session.prompt_length :]
                if not advance.num_draft_tokens:
                    continue
                block = draft(self.script, start, advance.num_draft_tokens, self.mode)
                proposal = Proposal(advance.round, advance.committed_length, block)
                for answer in self.answers(proposal) if self.answers else [proposal]:
                    yield draft_pb2.DraftResponse(proposal=wire.encode_proposal(answer))


@dataclass
class Servers:
    """Starts fake replicas and stops them when the test is over."""

    model: ModelIdentity
    archive: bytes
    cache_dir: Path
    running: list[_Tier] = field(default_factory=list)
    watching: list[Replicas[Any]] = field(default_factory=list)

    async def verify(self, script: list[int], **changes: Any) -> VerifyTier:
        """A verify replica that serves."""
        tier = VerifyTier(script, identity=self.model, archive=self.archive, **changes)
        await tier.serve()
        self.running.append(tier)
        return tier

    async def draft(self, script: list[int], **changes: Any) -> DraftTier:
        """A draft replica that serves."""
        tier = DraftTier(script, **changes)
        await tier.serve()
        self.running.append(tier)
        return tier

    async def tiers(self, verify: Sequence[_Tier], draft: Sequence[_Tier] = ()) -> Tiers:
        """The gateway's view of replicas, once each is ready."""
        plaintext = client_credentials(TlsFiles(""))
        tiers = Tiers(
            Replicas(
                [tier.address for tier in verify],
                verify_tier(Tokenizers(self.cache_dir)),
                resolve_period_s=60,
                tls=plaintext,
            ),
            Replicas(
                [tier.address for tier in draft], draft_tier(), resolve_period_s=60, tls=plaintext
            ),
        )
        await self.watch(tiers.targets)
        await self.watch(tiers.sources)
        assert len(verify) == len(tiers.targets.ready())
        assert len(draft) == len(tiers.sources.ready())
        return tiers

    async def watch(self, replicas: Replicas[DescriptionT]) -> Replicas[DescriptionT]:
        """Replicas that were found and asked."""
        self.watching.append(replicas)
        await replicas.start()
        await replicas.wait_tried()
        return replicas

    async def stop(self) -> None:
        """Ends everything."""
        for replicas in self.watching:
            await replicas.stop()
        for tier in self.running:
            await (tier.dying or tier.stop())
            await tier.stop()  # it may have been started again


@pytest.fixture
async def servers(
    model: ModelIdentity, byte_archive: bytes, tmp_path: Path
) -> AsyncIterator[Servers]:
    """Fake replicas of both tiers on free ports."""
    servers = Servers(model, byte_archive, tmp_path / "tokenizers")
    yield servers
    await servers.stop()


async def eventually(is_so: Callable[[], bool]) -> None:
    """Returns once something has come about; the test's time limit is the only other end."""
    while not is_so():
        await asyncio.sleep(0.001)


@pytest.fixture(name="eventually")
def _eventually() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """Waits for what other tasks bring about."""
    return eventually
