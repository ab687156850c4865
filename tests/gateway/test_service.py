"""The gateway through its own RPCs, between fake tiers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import structlog

from gateway.config import GatewayConfig
from gateway.service import GatewayService
from gateway.tokenizer import Tokenizer
from paceline.errors import (
    DeadlineExceeded,
    Exhausted,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PacelineError,
    Unavailable,
)
from paceline.records import DraftSource, TokenLogProbs, Verdict, VerificationRule
from paceline.serving.endpoints import Gate, add_endpoints
from paceline.serving.statuses import error_of
from paceline.v1 import gateway_pb2, gateway_pb2_grpc

if TYPE_CHECKING:
    from tests.gateway.conftest import Servers

Eventually = Callable[[Callable[[], bool]], Awaitable[None]]
SCRIPT = [(7 * i * i + 3 * i) % 256 for i in range(80)]
EOS = 256


@dataclass
class Gateways:
    """Starts gateways and stops them when the test is over."""

    cache_dir: Path
    running: list[tuple[GatewayService, grpc.aio.Server, grpc.aio.Channel]] = field(
        default_factory=list
    )

    async def start(
        self, verify: list[str], draft: list[str], **settings: Any
    ) -> tuple[GatewayService, Client]:
        """A gateway that serves, and a client of it."""
        config = GatewayConfig(
            verify=tuple(verify),
            draft=tuple(draft),
            tokenizer_cache_dir=self.cache_dir,
            **{"draft_length": "fixed:4", "reopen_patience_s": 2.0, **settings},
        )
        service = GatewayService(config)
        await service.start()
        server = grpc.aio.server()
        gate = Gate()
        gate.open()
        add_endpoints(server, service.name, service.endpoints(), gate)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        self.running.append((service, server, channel))
        return service, Client(gateway_pb2_grpc.GatewayServiceStub(channel))

    async def stop(self) -> None:
        """Ends everything."""
        for service, server, channel in self.running:
            await channel.close()
            await server.stop(None)
            await service.stop()


class Client:
    """What a client does, with our errors in the place of gRPC's."""

    def __init__(self, stub: gateway_pb2_grpc.GatewayServiceAsyncStub) -> None:
        self.stub = stub

    async def events(
        self, request: gateway_pb2.GenerateRequest, timeout: float | None = None
    ) -> list[gateway_pb2.GenerateResponse]:
        """All events of one generation."""
        try:
            return [event async for event in self.stub.Generate(request, timeout=timeout)]
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from None

    async def complete(self, request: gateway_pb2.GenerateRequest) -> gateway_pb2.CompleteResponse:
        """One generation as a whole."""
        try:
            return await self.stub.Complete(gateway_pb2.CompleteRequest(generation=request))
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from None


@pytest.fixture
async def gateways(tmp_path: Path) -> AsyncIterator[Gateways]:
    """Gateways on free ports."""
    gateways = Gateways(tmp_path / "tokenizers")
    yield gateways
    await gateways.stop()


def request(**fields: Any) -> gateway_pb2.GenerateRequest:
    """A request with a prompt of three ids."""
    prompt = gateway_pb2.Prompt(token_ids=gateway_pb2.TokenIds(token_ids=[1, 2, 3]))
    return gateway_pb2.GenerateRequest(**{"prompt": prompt, **fields})


def pinned(num_draft_tokens: int, **fields: Any) -> gateway_pb2.GenerateRequest:
    """A request that pins the length of proposals."""
    speculation = gateway_pb2.SpeculationParams(draft_token_count=num_draft_tokens)
    return request(speculation=speculation, **fields)


def token_ids_of(events: list[gateway_pb2.GenerateResponse]) -> list[int]:
    """All ids of the token events."""
    return [token_id for event in events for token_id in event.tokens.token_ids]


async def test_a_generation_from_first_event_to_last(servers: Servers, gateways: Gateways) -> None:
    """Started, Tokens per round, Finished, with usage and statistics that add up."""
    verify, draft = await servers.verify(SCRIPT), await servers.draft(SCRIPT)
    _, client = await gateways.start([verify.address], [draft.address])
    events = await client.events(request(max_tokens=21, request_id="mine"))
    kinds = [event.WhichOneof("event") for event in events]
    assert ["started", *["tokens"] * 5, "finished"] == kinds
    started, finished = events[0].started, events[-1].finished
    assert ([1, 2, 3], "mine") == (list(started.prompt_token_ids), started.request_id)
    assert "scripted-1" == started.model.fingerprint
    assert verify.opens[0].session.seed == started.seed == draft.opens[0].session.seed
    assert SCRIPT[:21] == token_ids_of(events)
    assert gateway_pb2.FINISH_REASON_LENGTH == finished.finish_reason
    assert (3, 21) == (
        finished.usage.prompt_token_count,
        finished.usage.completion_token_count,
    )
    stats = finished.stats
    assert (4, 1, 16, 16) == (
        stats.round_count,
        stats.plain_round_count,
        stats.drafted_token_count,
        stats.accepted_token_count,
    )
    assert (1.0, 5.0, "scripted") == (
        stats.acceptance_rate,
        stats.acceptance_length,
        stats.draft_source,
    )
    assert {} == dict(stats.fallbacks)
    assert stats.wire_bytes_per_token > 5 and stats.tokens_per_second > 0
    assert stats.time_to_first_token.nanos > 0 and stats.round_duration_p50.nanos > 0


@pytest.mark.parametrize("setting", ["token_file", "tier_ca"])
async def test_wrong_files_end_the_start(gateways: Gateways, tmp_path: Path, setting: str) -> None:
    """Before anything is looked for, and by the name of the setting."""
    missing = tmp_path / "missing"
    flag = re.escape(f"--{setting.replace('_', '-')} ({missing}): ")
    with pytest.raises(FailedPrecondition, match=flag):
        await gateways.start(["nobody.invalid:1"], [], **{setting: missing})


async def test_pieces_are_the_text(
    servers: Servers, gateways: Gateways, bytes_tokenizer: Tokenizer
) -> None:
    """B77, B80: the deltas of any stream add up to the text of Complete, whatever k is."""
    text = "<a>🙂é</a> 漢🏳️‍🌈 <a></a>"
    script = [*bytes_tokenizer.encode(text), EOS, *SCRIPT]
    verify = await servers.verify(script)
    draft = await servers.draft(script, mode="mixed")
    _, client = await gateways.start([verify.address], [draft.address])
    for num_draft_tokens in (0, 1, 3, 8):
        asked = pinned(num_draft_tokens)
        events = await client.events(asked)
        assert text == "".join(event.tokens.text for event in events)
        assert not any("\ufffd" in event.tokens.text for event in events)
        whole = await client.complete(asked)
        assert (text, token_ids_of(events)) == (whole.text, list(whole.token_ids))
        assert len(whole.token_ids) == len(whole.origins) == len(script) - len(SCRIPT)
        assert gateway_pb2.FINISH_REASON_STOP == whole.finished.finish_reason
        assert EOS == whole.token_ids[-1]


@pytest.mark.parametrize("mode", ["right", "wrong", "mixed"])
@pytest.mark.parametrize("num_draft_tokens", [1, 8])
async def test_any_draft_gives_the_same(
    servers: Servers, gateways: Gateways, num_draft_tokens: int, mode: str
) -> None:
    """Through the wire, as in the loop: the output is the target's."""
    verify = await servers.verify(SCRIPT)
    draft = await servers.draft(SCRIPT, mode=mode)
    _, client = await gateways.start([verify.address], [draft.address])
    whole = await client.complete(pinned(num_draft_tokens, max_tokens=40))
    assert SCRIPT[:40] == list(whole.token_ids)


@pytest.mark.parametrize("num_draft_tokens", [0, 1, 4])
async def test_log_probs_come_with_the_ids(
    servers: Servers, gateways: Gateways, num_draft_tokens: int
) -> None:
    """B24, B42: one per id in each event and in the answer, the same, and none past a stop."""
    script = [*SCRIPT[:10], EOS, *SCRIPT]

    def tell(verdict: Verdict) -> Verdict:
        ids = script[verdict.committed_length - 4 - verdict.num_accepted :]
        told = [TokenLogProbs(-float(t), (t, 0), (-0.5, -0.75)) for t in ids]
        return replace(verdict, log_probs=tuple(told[: verdict.num_accepted + 1]))

    verify = await servers.verify(script, answer=tell)
    draft = await servers.draft(script)
    _, client = await gateways.start([verify.address], [draft.address])
    asked = pinned(num_draft_tokens, max_tokens=30)
    asked.sampling.log_prob_count = 2
    events = [event.tokens for event in await client.events(asked) if event.HasField("tokens")]
    whole = await client.complete(asked)
    assert [len(event.token_ids) for event in events] == [len(event.log_probs) for event in events]
    assert whole.log_probs == [one for event in events for one in event.log_probs]
    assert [-t for t in script[:11]] == [one.chosen for one in whole.log_probs]
    assert [[t, 0] for t in script[:11]] == [list(one.top_token_ids) for one in whole.log_probs]
    assert {2} == {opened.session.sampling.log_prob_count for opened in verify.opens}


async def test_samples_of_one_call(servers: Servers, gateways: Gateways) -> None:
    """One Started; every event names its sample; the prompt is counted once; one replica."""
    verify = [await servers.verify(SCRIPT) for _ in range(3)]
    draft = await servers.draft(SCRIPT)
    _, client = await gateways.start([tier.address for tier in verify], [draft.address])
    asked = request(max_tokens=21, seed=7, sample_count=4, first_sample_index=2)
    events = await client.events(asked)
    assert ["started"] == [e.WhichOneof("event") for e in events if not _is_of_a_sample(e)]
    for index in (2, 3, 4, 5):
        own = [e.tokens for e in events if e.HasField("tokens") and e.tokens.sample_index == index]
        assert SCRIPT[:21] == [token_id for one in own for token_id in one.token_ids]
    finished = {e.finished.sample_index: e.finished for e in events if e.HasField("finished")}
    assert [(2, 3), (3, 0), (4, 0), (5, 0)] == [
        (index, finished[index].usage.prompt_token_count) for index in sorted(finished)
    ]
    assert {21} == {one.usage.completion_token_count for one in finished.values()}
    assert [0, 0, 4] == sorted(tier.num_opened for tier in verify)
    opens = [opened.session for tier in verify for opened in tier.opens]
    assert [(7, 2), (7, 3), (7, 4), (7, 5)] == [(one.seed, one.sample_index) for one in opens]
    keys = sorted((o.session.seed, o.session.sample_index) for o in draft.opens)
    assert [(7, 2), (7, 3), (7, 4), (7, 5)] == keys


def _is_of_a_sample(event: gateway_pb2.GenerateResponse) -> bool:
    return event.WhichOneof("event") in ("tokens", "finished")


async def test_samples_as_a_whole(servers: Servers, gateways: Gateways) -> None:
    """Complete gives all of them in order, the first one in its own fields too; one has no list."""
    verify = await servers.verify(SCRIPT)
    _, client = await gateways.start([verify.address], [])
    whole = await client.complete(request(max_tokens=9, sample_count=3))
    assert [0, 1, 2] == [sample.finished.sample_index for sample in whole.samples]
    answers: list[gateway_pb2.Sample | gateway_pb2.CompleteResponse] = [*whole.samples, whole]
    for sample in answers:
        assert (SCRIPT[:9], 9) == (list(sample.token_ids), len(sample.origins))
        assert whole.text == sample.text != ""
    assert whole.finished == whole.samples[0].finished
    assert [] == list((await client.complete(request(max_tokens=9))).samples)


async def test_the_others_open_behind_the_first(servers: Servers, gateways: Gateways) -> None:
    """No second session is opened before the first one's prompt has run."""
    verify = await servers.verify(SCRIPT)
    _, client = await gateways.start([verify.address], [])
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def wait(current: int) -> None:
        reached.set()
        await go_on.wait()

    verify.fault = wait
    running = asyncio.create_task(client.complete(request(max_tokens=3, sample_count=3)))
    await reached.wait()
    assert 1 == verify.num_open
    go_on.set()
    assert 3 == len((await running).samples)


async def test_one_sample_that_fails_ends_the_call(
    servers: Servers, gateways: Gateways, eventually: Eventually
) -> None:
    """Its status is the call's, and nothing of the others is left on the tiers."""
    verify, draft = await servers.verify(SCRIPT), await servers.draft(SCRIPT)
    service, client = await gateways.start([verify.address], [draft.address])

    async def fail(current: int) -> None:
        if verify.num_opened == 3 and current == 3:
            raise InvalidArgument("sampling", "no token is left", reason="NO_TOKEN_LEFT")

    verify.fault = fail
    with pytest.raises(InvalidArgument) as failed:
        await client.events(request(sample_count=3))
    assert "NO_TOKEN_LEFT" == failed.value.reason
    await eventually(lambda: (0, 0) == (verify.num_open, draft.num_open))
    await service.drain()


async def test_samples_count_as_generations(servers: Servers, gateways: Gateways) -> None:
    """More than the service allows are refused by name, more than there is room for for now."""
    verify = await servers.verify(SCRIPT)
    service, client = await gateways.start([verify.address], [], max_generations=4, max_samples=3)
    with pytest.raises(InvalidArgument, match=r"must be in \[1, 3\], got 4") as refused:
        await client.complete(request(sample_count=4))
    assert "sample_count" == refused.value.field
    go_on = asyncio.Event()

    async def wait(current: int) -> None:
        await go_on.wait()

    verify.fault = wait
    running = asyncio.create_task(client.complete(request(max_tokens=2, sample_count=3)))
    while not verify.num_open:
        await asyncio.sleep(0)
    with pytest.raises(Exhausted):
        await client.complete(request(max_tokens=2, sample_count=2))
    one = asyncio.create_task(client.complete(request(max_tokens=2)))
    while verify.num_open < 2:
        await asyncio.sleep(0)
    go_on.set()
    assert 3 == len((await running).samples)
    await one
    await service.drain()


async def test_prompt_log_probs_are_an_event(servers: Servers, gateways: Gateways) -> None:
    """B42: once, before the first tokens, with the first sample; Complete has them too."""
    told = (TokenLogProbs(-1.5, (7, 2), (-0.25, -2.0)), TokenLogProbs(-0.5, (3,), (-0.5,)))

    def tell(verdict: Verdict) -> Verdict:
        is_asked = verify.opens[-1].session.sampling.HasField("prompt_log_prob_count")
        return (
            replace(verdict, prompt_log_probs=told) if is_asked and verdict.round == 1 else verdict
        )

    verify = await servers.verify(SCRIPT, answer=tell)
    _, client = await gateways.start([verify.address], [])
    asked = request(max_tokens=3, sample_count=2)
    asked.sampling.prompt_log_prob_count = 2
    events = await client.events(asked)
    kinds = [event.WhichOneof("event") for event in events]
    assert ["started", "prompt_log_probs", "tokens"] == kinds[:3]
    assert 1 == kinds.count("prompt_log_probs")
    assert [-1.5, -0.5] == [one.chosen for one in events[1].prompt_log_probs.log_probs]
    whole = await client.complete(asked)
    assert list(events[1].prompt_log_probs.log_probs) == list(whole.prompt_log_probs)


async def test_a_malformed_law_costs_the_draft_and_not_the_text(
    servers: Servers, gateways: Gateways
) -> None:
    """B01: the verifier refuses the proposal by name; the generation goes on without the draft."""
    verify, draft = await servers.verify(SCRIPT), await servers.draft(SCRIPT)
    _, client = await gateways.start([verify.address], [draft.address])

    async def refuse(current: int) -> None:
        if verify.proposals[-1].token_ids and current >= 3:
            raise InvalidArgument("proposal.law", "3 bytes are no whole number of uint32")

    verify.fault = refuse
    whole = await client.complete(request(max_tokens=30))
    assert SCRIPT[:30] == list(whole.token_ids)
    stats = whole.finished.stats
    assert (1, 1) == (len(draft.opens), stats.reopened_count)
    assert stats.fallbacks["malformed"] > 5
    assert stats.drafted_token_count == stats.accepted_token_count > 0


async def test_gateways_started_together_draw_different_seeds(
    servers: Servers, gateways: Gateways
) -> None:
    """B39, B40: two gateways before one pair, asked the same at once: no seed comes twice."""
    verify = await servers.verify(SCRIPT)
    clients = [(await gateways.start([verify.address], []))[1] for _ in range(2)]
    asked = [client.complete(request(max_tokens=2)) for client in clients for _ in range(5)]
    answers = await asyncio.gather(*asked)
    assert 10 == len({answer.started.seed for answer in answers})


async def test_without_a_draft_tier(servers: Servers, gateways: Gateways) -> None:
    """A gateway of targets alone is a plain one."""
    verify = await servers.verify(SCRIPT)
    _, client = await gateways.start([verify.address], [])
    whole = await client.complete(request(max_tokens=5))
    assert SCRIPT[:5] == list(whole.token_ids)
    assert (0, 5) == (
        whole.finished.stats.round_count,
        whole.finished.stats.plain_round_count,
    )


async def test_plain_on_purpose_opens_no_draft(servers: Servers, gateways: Gateways) -> None:
    """A pinned length of 0, or the source "none", costs the draft tier nothing."""
    verify, draft = await servers.verify(SCRIPT), await servers.draft(SCRIPT)
    _, client = await gateways.start([verify.address], [draft.address])
    none = gateway_pb2.SpeculationParams(draft_source="none")
    for asked in (pinned(0, max_tokens=9), request(max_tokens=9, speculation=none)):
        assert SCRIPT[:9] == list((await client.complete(asked)).token_ids)
    assert [] == draft.opens


@pytest.mark.parametrize(
    ("fields", "num_drafting"),
    [({}, 1), ({"speculation": gateway_pb2.SpeculationParams(draft_source="scripted")}, 3)],
)
async def test_a_turn_without_drafts(
    servers: Servers,
    gateways: Gateways,
    eventually: Eventually,
    fields: dict[str, Any],
    num_drafting: int,
) -> None:
    """What begins beside others is plain on both tiers, unless it names its source."""
    verify, draft = await servers.verify(SCRIPT), await servers.draft(SCRIPT)
    service, client = await gateways.start([verify.address], [draft.address], draft_length="cost")
    service._turns.drafts = False
    everybody = asyncio.Event()

    async def wait(number: int) -> None:
        await everybody.wait()

    verify.fault = wait
    runs = [asyncio.create_task(client.events(request(max_tokens=9, **fields))) for _ in range(3)]
    await eventually(lambda: 3 == service._turns.num_running)
    everybody.set()
    for events in await asyncio.gather(*runs):
        assert SCRIPT[:9] == token_ids_of(events)
    assert num_drafting == len(draft.opens)
    assert 0 == service._turns.num_running


async def test_cancelling_frees_both_tiers(
    servers: Servers, gateways: Gateways, eventually: Eventually
) -> None:
    """Ending the call at any moment ends both sessions at once, and the count goes back."""
    verify, draft = await servers.verify(SCRIPT), await servers.draft(SCRIPT)
    service, client = await gateways.start([verify.address], [draft.address])
    reached = asyncio.Event()

    async def hang(current: int) -> None:
        if current == 4:
            reached.set()
            await asyncio.Event().wait()

    for hanging in (verify, draft):
        reached.clear()
        hanging.fault = hang
        call = client.stub.Generate(request())
        reading = asyncio.create_task(call.read())
        await reached.wait()
        call.cancel()
        await asyncio.wait({reading})
        await eventually(lambda: (0, 0) == (verify.num_open, draft.num_open))
        await service.drain()
        hanging.fault = None


async def test_a_client_that_goes_away_between_rounds(
    servers: Servers, gateways: Gateways, eventually: Eventually
) -> None:
    """A call dropped after its first tokens frees both tiers too."""
    verify, draft = await servers.verify(SCRIPT), await servers.draft(SCRIPT)
    service, client = await gateways.start([verify.address], [draft.address])
    for num_events in (1, 2, 3):
        call = client.stub.Generate(request())
        for _ in range(num_events):
            await call.read()
        call.cancel()
        await service.drain()
        await eventually(lambda: (0, 0) == (verify.num_open, draft.num_open))


async def test_the_callers_deadline(
    servers: Servers, gateways: Gateways, eventually: Eventually
) -> None:
    """DEADLINE_EXCEEDED at its time, and nothing is left on the tiers."""
    verify, draft = await servers.verify(SCRIPT), await servers.draft(SCRIPT)
    _, client = await gateways.start([verify.address], [draft.address])

    async def hang(current: int) -> None:
        await asyncio.Event().wait()

    verify.fault = hang
    with pytest.raises(DeadlineExceeded):
        await client.events(request(), timeout=0.3)
    await eventually(lambda: (0, 0) == (verify.num_open, draft.num_open))


async def test_a_draft_killed_in_the_middle(servers: Servers, gateways: Gateways) -> None:
    """B98: the text is unchanged, the fallback is counted."""
    verify, draft = await servers.verify(SCRIPT), await servers.draft(SCRIPT)
    _, client = await gateways.start([verify.address], [draft.address])

    async def die(current: int) -> None:
        if current == 5:
            await draft.stop()

    verify.fault = die
    whole = await client.complete(request(max_tokens=60))
    assert SCRIPT[:60] == list(whole.token_ids)
    assert sum(whole.finished.stats.fallbacks.values()) > 0
    assert whole.finished.stats.round_count > 0


async def test_a_target_killed_in_the_middle(servers: Servers, gateways: Gateways) -> None:
    """One of two verify replicas dies: the ids are the same, and one reopening is counted."""
    verify = [await servers.verify(SCRIPT), await servers.verify(SCRIPT)]
    draft = await servers.draft(SCRIPT)
    _, client = await gateways.start([tier.address for tier in verify], [draft.address])
    killed: list[str] = []

    def dies_once(index: int) -> Callable[[int], Awaitable[None]]:
        async def fault(current: int) -> None:
            if current == 4 and not killed:
                killed.append(verify[index].address)
                await verify[index].die()

        return fault

    for index, tier in enumerate(verify):
        tier.fault = dies_once(index)
    whole = await client.complete(request(max_tokens=60))
    assert SCRIPT[:60] == list(whole.token_ids)
    assert (1, 1) == (len(killed), whole.finished.stats.reopened_count)


async def test_resuming(servers: Servers, gateways: Gateways) -> None:
    """An interrupted answer goes on: the same ids, budget from the prompt, text from the seam."""
    verify, draft = await servers.verify(SCRIPT), await servers.draft(SCRIPT)
    _, client = await gateways.start([verify.address], [draft.address])
    full = await client.complete(request(max_tokens=30))
    for num_done in (1, 7, 29):
        rest = await client.complete(request(max_tokens=30, committed_token_ids=SCRIPT[:num_done]))
        assert SCRIPT[num_done:30] == list(rest.token_ids)
        assert full.text.endswith(rest.text)
        assert 30 == rest.finished.usage.completion_token_count
        assert [1, 2, 3] == list(rest.started.prompt_token_ids)


async def test_a_seed_reaches_both_tiers(servers: Servers, gateways: Gateways) -> None:
    """B40: seed and coupled rule open both sessions, and those of a generation that goes on."""
    verify, draft = await servers.verify(SCRIPT), await servers.draft(SCRIPT)
    _, client = await gateways.start([verify.address], [draft.address])
    for committed in ([], SCRIPT[:7]):
        asked = request(max_tokens=30, seed=2**64 - 1, committed_token_ids=committed)
        answer = await client.complete(asked)
        assert 2**64 - 1 == answer.started.seed
    for opens in (verify.opens, draft.opens):
        sessions = [opened.session for opened in opens]
        assert [(2**64 - 1, VerificationRule.COUPLED.value, 3)] * 2 == [
            (session.seed, session.rule, session.prompt_length) for session in sessions
        ]
        assert [3, 10] == [len(session.token_ids) for session in sessions]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"model": "gpt"}, NotFound),
        ({"speculation": gateway_pb2.SpeculationParams(draft_source="big")}, NotFound),
        ({"prompt": gateway_pb2.Prompt(text="")}, InvalidArgument),
        ({"max_tokens": 10**8}, InvalidArgument),
    ],
)
async def test_refusals_open_nothing(
    servers: Servers, gateways: Gateways, fields: dict[str, Any], error: type[PacelineError]
) -> None:
    """B66, B67: bad requests fail fast, with their status, and touch neither tier."""
    verify, draft = await servers.verify(SCRIPT), await servers.draft(SCRIPT)
    service, client = await gateways.start([verify.address], [draft.address])
    with pytest.raises(error):
        await client.events(request(**fields))
    with pytest.raises(error):
        await client.complete(request(**fields))
    assert ([], []) == (verify.opens, draft.opens)
    await service.drain()


async def test_good_requests_among_bad_ones(servers: Servers, gateways: Gateways) -> None:
    """B66: 20 good ones are as if alone while 10 bad ones fail beside them."""
    verify, draft = await servers.verify(SCRIPT), await servers.draft(SCRIPT, mode="mixed")
    _, client = await gateways.start([verify.address], [draft.address])
    good = [client.complete(pinned(i % 9, max_tokens=20 + i)) for i in range(20)]
    bad = [client.complete(request(max_tokens=1000)) for _ in range(10)]
    answers = await asyncio.gather(*good, *bad, return_exceptions=True)
    for i, answer in enumerate(answers[:20]):
        assert isinstance(answer, gateway_pb2.CompleteResponse)
        assert SCRIPT[: 20 + i] == list(answer.token_ids)
    assert all(isinstance(answer, InvalidArgument) for answer in answers[20:])


async def test_a_draft_for_another_tokenizer(servers: Servers, gateways: Gateways) -> None:
    """B45: FAILED_PRECONDITION with both sides, and no session on either tier."""
    other = replace(servers.model, tokenizer_fingerprint="other")
    verify = await servers.verify(SCRIPT)
    draft = await servers.draft(SCRIPT, sources=(DraftSource("small", other),))
    _, client = await gateways.start([verify.address], [draft.address])
    with pytest.raises(FailedPrecondition, match="draft 'other', target 'byte'"):
        await client.complete(request())
    assert ([], []) == (verify.opens, draft.opens)


async def test_a_limit_on_generations(servers: Servers, gateways: Gateways) -> None:
    """RESOURCE_EXHAUSTED with RetryInfo above max_generations; drain waits for those that run."""
    verify = await servers.verify(SCRIPT)
    service, client = await gateways.start([verify.address], [], max_generations=2)
    go_on = asyncio.Event()

    async def wait(current: int) -> None:
        await go_on.wait()

    verify.fault = wait
    running = [asyncio.create_task(client.complete(request(max_tokens=3))) for _ in range(2)]
    while verify.num_open < 2:
        await asyncio.sleep(0)
    with pytest.raises(Exhausted) as full:
        await client.complete(request())
    assert (1.0, "TOO_MANY_GENERATIONS") == (full.value.retry_after_s, full.value.reason)
    draining = asyncio.create_task(service.drain())
    await asyncio.sleep(0)
    assert not draining.done()
    go_on.set()
    await draining
    for answer in await asyncio.gather(*running):
        assert SCRIPT[:3] == list(answer.token_ids)
    assert SCRIPT[:3] == list((await client.complete(request(max_tokens=3))).token_ids)


async def test_without_a_ready_target(
    servers: Servers, gateways: Gateways, eventually: Eventually
) -> None:
    """UNAVAILABLE with RetryInfo once the only target is gone."""
    verify = await servers.verify(SCRIPT)
    service, client = await gateways.start([verify.address], [])
    await verify.stop()
    await eventually(lambda: not service._tiers.targets.ready())
    with pytest.raises(Unavailable):
        await client.complete(request())


async def test_models_and_replicas(servers: Servers, gateways: Gateways) -> None:
    """ListModels: what can be asked for, who serves it, and what was drafted there: B82's sums."""
    verify = await servers.verify(SCRIPT)
    other = replace(servers.model, tokenizer_fingerprint="other")
    draft = await servers.draft(
        SCRIPT, sources=(DraftSource("scripted", servers.model), DraftSource("misfit", other))
    )
    _, client = await gateways.start([verify.address], [draft.address])
    await client.complete(request(max_tokens=21))
    await client.complete(request(max_tokens=11))
    listed = await client.stub.ListModels(gateway_pb2.ListModelsRequest())
    assert ["scripted"] == [served.model.name for served in listed.models]
    assert [["scripted"]] == [list(served.draft_sources) for served in listed.models]
    assert [
        (gateway_pb2.TIER_VERIFY, verify.address, True, "scripted-1", [], 24, 24),
        (
            gateway_pb2.TIER_DRAFT,
            draft.address,
            True,
            "scripted-1",
            ["scripted", "misfit"],
            24,
            24,
        ),
    ] == [
        (
            replica.tier,
            replica.address,
            replica.is_ready,
            replica.model.fingerprint,
            list(replica.draft_sources),
            replica.drafted_token_count,
            replica.accepted_token_count,
        )
        for replica in listed.replicas
    ]


async def test_tokenize_and_back(servers: Servers, gateways: Gateways) -> None:
    """Tokenize gives what Generate would use, Detokenize its text; bad ids are named."""
    verify = await servers.verify(SCRIPT)
    _, client = await gateways.start([verify.address], [])
    prompt = gateway_pb2.Prompt(text="héllo")
    ids = await client.stub.Tokenize(gateway_pb2.TokenizeRequest(prompt=prompt))
    started = (await client.events(request(prompt=prompt, max_tokens=1)))[0].started
    assert list(started.prompt_token_ids) == list(ids.token_ids)
    text = await client.stub.Detokenize(
        gateway_pb2.DetokenizeRequest(token_ids=[*ids.token_ids, EOS])
    )
    assert "héllo" == text.text
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.stub.Detokenize(gateway_pb2.DetokenizeRequest(token_ids=[1, 400]))
    assert "token_ids[1]: must be under the vocabulary size" in (refused.value.details() or "")


async def test_one_line_per_generation(servers: Servers, gateways: Gateways) -> None:
    """The log has one canonical line, for a good end, a refusal by a tier and a cancel."""
    verify = await servers.verify(SCRIPT)
    _, client = await gateways.start([verify.address], [])
    with structlog.testing.capture_logs() as lines:
        await client.complete(request(max_tokens=4, request_id="good"))
        verify.refusals = [InvalidArgument("session", "bad")]
        with pytest.raises(InvalidArgument):
            await client.complete(request(request_id="bad"))
    told = [line for line in lines if line["event"] == "generation"]
    assert [("good", "LENGTH", 4), ("bad", "INVALID_ARGUMENT", 0)] == [
        (line["request_id"], line["outcome"], line["tokens"]) for line in told
    ]


@pytest.mark.parametrize(
    ("setting", "fields", "longest"),
    [
        ("fixed:3", {}, 3),
        ("window", {}, 7),
        ("fixed:6", {"max_draft_token_count": 2}, 2),
        ("fixed:6", {"draft_token_count": 5}, 5),
        ("window", {"max_draft_token_count": 1}, 1),
        ("cost", {"max_draft_token_count": 1}, 1),
        ("cost", {"draft_token_count": 5}, 5),
        ("fixed:20", {}, 7),
    ],
)
async def test_whose_length_holds(
    servers: Servers, gateways: Gateways, setting: str, fields: dict[str, int], longest: int
) -> None:
    """The client pins or caps, the service's setting holds otherwise, under its own bound."""
    verify, draft = await servers.verify(SCRIPT), await servers.draft(SCRIPT)
    _, client = await gateways.start(
        [verify.address], [draft.address], draft_length=setting, max_draft_tokens=7
    )
    speculation = gateway_pb2.SpeculationParams(**fields)  # type: ignore[arg-type]  # counts
    await client.complete(request(max_tokens=61, speculation=speculation))
    asked = max(advance.num_draft_tokens for advance in draft.advances)
    assert asked == longest if setting != "window" or fields else 4 <= asked <= longest
