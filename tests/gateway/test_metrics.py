"""What a scrape of the gateway says after generations through its own RPCs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import structlog
from prometheus_client import generate_latest

from gateway.config import GatewayConfig
from gateway.service import GatewayService
from paceline.bench.arms import read_lines
from paceline.serving.config import load
from paceline.serving.endpoints import Gate, add_endpoints
from paceline.v1 import gateway_pb2, gateway_pb2_grpc

if TYPE_CHECKING:
    from tests.gateway.conftest import Servers

Started = tuple[GatewayService, Any]
Start = Callable[..., Awaitable[Started]]
SCRIPT = [(7 * i * i + 3 * i) % 256 for i in range(80)]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts gateways with settings as flags, and ends them with the test."""
    running: list[tuple[GatewayService, grpc.aio.Server, grpc.aio.Channel]] = []

    async def run(*flags: str) -> Started:
        service = GatewayService(
            load(GatewayConfig, ["--tokenizer-cache-dir", str(tmp_path), *flags], {})
        )
        await service.start()
        gate, server = Gate(), grpc.aio.server()
        gate.open()
        add_endpoints(server, service.name, service.endpoints(), gate)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        running.append((service, server, channel))
        return service, gateway_pb2_grpc.GatewayServiceStub(channel)

    yield run
    for service, server, channel in running:
        await channel.close()
        await server.stop(None)
        await service.stop()


def request(**fields: Any) -> gateway_pb2.CompleteRequest:
    """A generation after a prompt of three ids."""
    prompt = gateway_pb2.Prompt(token_ids=gateway_pb2.TokenIds(token_ids=[1, 2, 3]))
    generation = gateway_pb2.GenerateRequest(prompt=prompt, **fields)
    return gateway_pb2.CompleteRequest(generation=generation)


def values(service: GatewayService, name: str) -> dict[tuple[str, ...], float]:
    """Every sample of a name that is not 0, by the values of its labels in order of their names."""
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for metric in service.registry.collect()
        for sample in metric.samples
        if sample.name == name and sample.value
    }


async def test_counts_are_those_of_the_statistics(servers: Servers, start: Start) -> None:
    """What a scrape adds up to is what the client was told, by source, position and origin."""
    verify, draft = await servers.verify(SCRIPT), await servers.draft(SCRIPT, mode="mixed")
    service, client = await start(
        *("--verify", verify.address, "--draft", draft.address, "--draft-length", "fixed:3")
    )
    answer = await client.Complete(request(max_tokens=21))
    stats = answer.finished.stats
    assert stats.accepted_token_count < stats.drafted_token_count
    by_position = stats.drafted_count_by_position, stats.accepted_count_by_position
    names = "paceline_drafted_tokens_total", "paceline_accepted_tokens_total"
    for name, counts in zip(names, by_position, strict=True):
        expected = {("", str(i), "scripted"): n for i, n in enumerate(counts, start=1) if n}
        assert expected == values(service, name)
    assert {("", "LENGTH"): 1} == values(service, "paceline_generations_total")
    assert {(): 3} == values(service, "paceline_prompt_tokens_total")
    tokens = values(service, "paceline_tokens_total")
    assert 21 == sum(tokens.values())
    origins = [gateway_pb2.TokenOrigin.Name(o).lower() for o in answer.origins]
    expected_origins = {("", o.removeprefix("token_origin_")): origins.count(o) for o in origins}
    assert expected_origins == tokens
    rounds = values(service, "paceline_rounds_total")
    assert stats.round_count == rounds["", "drafted", "scripted"]
    assert stats.round_count + stats.plain_round_count == sum(rounds.values())
    lengths = values(service, "paceline_acceptance_length_sum")
    assert {("", "scripted"): stats.round_count + stats.accepted_token_count} == lengths
    wire_bytes = values(service, "paceline_wire_bytes_total")
    assert {("draft",), ("verify",)} == wire_bytes.keys()
    assert round(stats.wire_bytes_per_token * 21) == sum(wire_bytes.values())


async def test_the_rate_of_the_counters_is_a_ratio_of_sums(servers: Servers, start: Start) -> None:
    """B82: short and long generations and one without a draft, pooled as a query pools them."""
    verify, draft = await servers.verify(SCRIPT), await servers.draft(SCRIPT, mode="mixed")
    service, client = await start(
        *("--verify", verify.address, "--draft", draft.address, "--draft-length", "fixed:3")
    )
    none = gateway_pb2.SpeculationParams(draft_source="none")
    answers = [await client.Complete(request(max_tokens=n)) for n in (4, 21)]
    answers.append(await client.Complete(request(max_tokens=9, speculation=none)))
    stats = [answer.finished.stats for answer in answers]
    drafted, accepted = (
        sum(values(service, f"paceline_{name}_tokens_total").values())
        for name in ("drafted", "accepted")
    )
    assert (drafted, accepted) == (
        sum(one.drafted_token_count for one in stats),
        sum(one.accepted_token_count for one in stats),
    )
    rates = [one.accepted_token_count / max(1, one.drafted_token_count) for one in stats]
    assert accepted / drafted != sum(rates) / len(rates)


async def test_times_are_measured_once_each(servers: Servers, start: Start) -> None:
    """B88: one first token and one end per generation, each stage of all rounds but the first."""
    verify, draft = await servers.verify(SCRIPT), await servers.draft(SCRIPT)
    service, client = await start(
        *("--verify", verify.address, "--draft", draft.address, "--draft-length", "fixed:4")
    )
    answers = [await client.Complete(request(max_tokens=11)) for _ in range(2)]
    num_rounds = sum(
        a.finished.stats.round_count + a.finished.stats.plain_round_count for a in answers
    )
    for name in ("time_to_first_token", "generation", "token"):
        assert {("",): 2} == values(service, f"paceline_{name}_seconds_count"), name
    stages = values(service, "paceline_stage_seconds_count")
    assert {"draft", "verify_queue", "verify_forward", "overhead"} == {s for (s,) in stages}
    assert {num_rounds - 2} == set(stages.values())
    assert num_rounds - 2 == sum(values(service, "paceline_round_seconds_count").values())
    asked = values(service, "paceline_draft_length_sum")
    assert sum(a.finished.stats.drafted_token_count for a in answers) == sum(asked.values())


async def test_without_a_draft_rounds_fall_back(servers: Servers, start: Start) -> None:
    """Rounds that asked in vain are told from those that asked for nothing."""
    verify, draft = await servers.verify(SCRIPT), await servers.draft(SCRIPT)
    address = draft.address
    await draft.stop()
    service, client = await start(
        *("--verify", verify.address, "--draft", address, "--draft-length", "fixed:4")
    )
    answer = await client.Complete(request(max_tokens=9))
    fallbacks = values(service, "paceline_fallbacks_total")
    by_cause = {cause: count for (cause, _), count in fallbacks.items()}
    assert dict(answer.finished.stats.fallbacks) == by_cause
    rounds = values(service, "paceline_rounds_total")
    assert sum(by_cause.values()) == rounds["", "fallback", ""]
    assert 0 < rounds["", "plain", ""]


async def test_failures_are_counted_by_their_reason(servers: Servers, start: Start) -> None:
    """A generation that ends with an error is not one that stopped."""
    verify = await servers.verify(SCRIPT)

    async def fail(number: int) -> None:
        if number == 3:
            raise RuntimeError("a bug of the target")

    verify.fault = fail
    service, client = await start("--verify", verify.address, "--reopen-patience-s", "0")
    with pytest.raises(grpc.aio.AioRpcError):
        await client.Complete(request(max_tokens=9))
    assert {("", "PEER_FAILED"): 1} == values(service, "paceline_generations_total")
    assert {("", "plain"): 2} == values(service, "paceline_tokens_total")


async def test_gauges_follow(servers: Servers, start: Start) -> None:
    """Replicas that are ready, generations that run, and the price as configured."""
    verify, draft = await servers.verify(SCRIPT), await servers.draft(SCRIPT)

    async def hang(number: int) -> None:
        if number == 3:
            await asyncio.Event().wait()

    verify.fault = hang
    service, client = await start(
        *("--verify", verify.address, "--draft", draft.address, "--price-per-hour", "3.6")
    )
    assert {("verify",): 1, ("draft",): 1} == values(service, "paceline_replicas")
    assert {(): 3.6} == values(service, "paceline_price_per_hour")
    call = client.Generate(request(max_tokens=40).generation)
    async for event in call:
        assert {(): 1} == values(service, "paceline_generations_running")
        if event.HasField("tokens"):
            break
    call.cancel()
    await service.drain()
    assert {} == values(service, "paceline_generations_running")
    assert {("", "CANCELLED"): 1} == values(service, "paceline_generations_total")
    assert 0 < values(service, "paceline_cost_per_million_tokens")[()]


async def test_a_bug_of_ours_is_no_cancellation(
    servers: Servers, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is answered INTERNAL is counted and logged as that."""
    verify = await servers.verify(SCRIPT)
    service, client = await start("--verify", verify.address)

    def broken(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("gateway.commit.Committer.commit", broken)
    with structlog.testing.capture_logs() as lines, pytest.raises(grpc.aio.AioRpcError) as failed:
        await client.Complete(request(max_tokens=4))
    assert grpc.StatusCode.INTERNAL is failed.value.code()
    assert {("", "INTERNAL"): 1} == values(service, "paceline_generations_total")
    assert ["INTERNAL"] == [line["outcome"] for line in lines if line["event"] == "generation"]


async def test_a_first_mismatch_can_be_seen(servers: Servers, start: Start) -> None:
    """A series that begins with its first count shows Prometheus no increase."""
    verify = await servers.verify(SCRIPT)
    service, _ = await start("--verify", verify.address)
    text = generate_latest(service.registry).decode()
    assert 'paceline_replays_total{outcome="mismatch"} 0.0' in text


@pytest.mark.parametrize("pin", ["setting", "bound", "request"])
async def test_plain_decoding_on_purpose_costs_the_draft_tier_nothing(
    servers: Servers, start: Start, pin: str
) -> None:
    """However it is asked for: no session is opened there."""
    verify, draft = await servers.verify(SCRIPT), await servers.draft(SCRIPT)
    flags = ("--draft-length", "fixed:0") if pin == "setting" else ()
    _, client = await start("--verify", verify.address, "--draft", draft.address, *flags)
    speculation = gateway_pb2.SpeculationParams()
    if pin == "bound":
        speculation.max_draft_token_count = 0
    if pin == "request":
        speculation.draft_token_count = 0
    answer = await client.Complete(request(max_tokens=5, speculation=speculation))
    assert SCRIPT[:5] == list(answer.token_ids)
    assert 0 == draft.num_calls == draft.num_opened
    await client.Complete(request(max_tokens=5))
    assert draft.num_opened == (0 if pin == "setting" else 1)


async def test_arms_differ_in_speed_only(servers: Servers, start: Start) -> None:
    """A seeded answer is the same in both arms; metrics and the log line carry the arm."""
    verify, draft = await servers.verify(SCRIPT), await servers.draft(SCRIPT)
    arms = json.dumps({"plain": {"share": 0.5, "draft_length": "fixed:0"}})
    service, client = await start(
        *("--verify", verify.address, "--draft", draft.address, "--arms", arms)
    )
    answers: dict[str, list[int]] = {}
    with structlog.testing.capture_logs() as lines:
        for number in range(12):
            answer = await client.Complete(request(max_tokens=9, seed=5, request_id=str(number)))
            answers[str(number)] = list(answer.token_ids)
    told = {line["request_id"]: line for line in lines if line["event"] == "generation"}
    assert {"plain", "control"} == {line["arm"] for line in told.values()}
    assert [SCRIPT[:9]] * 12 == list(answers.values())
    for line in told.values():
        assert (line["arm"] == "plain") == (line["drafted"] == 0)
        assert 16 == len(line["ab_unit"])
    read = read_lines(json.dumps(line) for line in told.values())  # as `paceline ab` does
    assert {(line["ab_unit"], 9) for line in told.values()} == {
        (one.unit, one.num_tokens) for one in read
    }
    counts = values(service, "paceline_generations_total")
    assert 12 == counts["control", "LENGTH"] + counts["plain", "LENGTH"]
    drafted = values(service, "paceline_drafted_tokens_total")
    assert {"control"} == {arm for arm, _, _ in drafted}


async def test_an_arm_without_its_source_is_plain_and_no_failure(
    servers: Servers, start: Start
) -> None:
    """An experiment must not cost a client its answer."""
    verify, draft = await servers.verify(SCRIPT), await servers.draft(SCRIPT)
    arms = json.dumps({"gone": {"share": 1.0, "draft_source": "not-served"}})
    service, client = await start(
        *("--verify", verify.address, "--draft", draft.address, "--arms", arms)
    )
    answer = await client.Complete(request(max_tokens=9))
    assert SCRIPT[:9] == list(answer.token_ids)
    assert 0 == answer.finished.stats.drafted_token_count
    assert {("gone", "LENGTH"): 1} == values(service, "paceline_generations_total")


async def test_the_log_line_says_it_all(servers: Servers, start: Start) -> None:
    """One line per generation has what the metrics have."""
    verify, draft = await servers.verify(SCRIPT), await servers.draft(SCRIPT, mode="mixed")
    _, client = await start(
        *("--verify", verify.address, "--draft", draft.address, "--draft-length", "fixed:3")
    )
    with structlog.testing.capture_logs() as lines:
        answer = await client.Complete(request(max_tokens=21))
    (line,) = (line for line in lines if line["event"] == "generation")
    stats = answer.finished.stats
    assert list(stats.drafted_count_by_position) == line["drafted_by_position"]
    assert list(stats.accepted_count_by_position) == line["accepted_by_position"]
    assert stats.drafted_token_count <= line["asked"]
    assert {"verify", "draft"} == line["wire_bytes"].keys()
    assert ("", None, "LENGTH") == (line["arm"], line["speedup"], line["outcome"])
    assert line["overhead_s"] > 0 and line["token_s"] > 0
