"""What a scrape of either tier says of its engines, sessions and rounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry

from paceline.engine.figures import EngineFigures, Tally
from paceline.records import Advance, Proposal
from paceline.tier import Sessions
from paceline.tier_metrics import TierCollector

if TYPE_CHECKING:
    from tests.conftest import Rounds, Tiers, WriteTable

LAW = (0.5, 0.3, 0.2)
ENGINE = {"tier": "verify", "model": "target"}


def sample(service: Any, name: str, **labels: str) -> float | None:
    """One value of a scrape."""
    found: float | None = service.registry.get_sample_value(name, labels)
    return found


def test_a_tally_counts_by_size() -> None:
    """A bound belongs to its bucket; what is above all of them is the rest."""
    tally = Tally((1.0, 4.0))
    for value in (0.5, 1.0, 4.0, 5.0, 6.0):
        tally.add(value)
    assert ([2, 1, 2], 16.5) == (tally.counts, tally.total)


def test_figures_share_nothing() -> None:
    """Two engines in one process count apart."""
    first, second = EngineFigures(), EngineFigures()
    first.add_step(5, 0.01)
    assert (1, 0) == (sum(first.rows.counts), sum(second.rows.counts))


def test_before_an_engine_there_is_nothing_to_say_of_it() -> None:
    """A scrape while a model loads is answered."""
    registry = CollectorRegistry()
    registry.register(TierCollector("verify", Sessions(2), dict))
    assert 0.0 == registry.get_sample_value("paceline_sessions_open", {"tier": "verify"})
    assert None is registry.get_sample_value("paceline_engine_alive", ENGINE)


async def test_the_verify_tier(tiers: Tiers, rounds: Rounds, write_table: WriteTable) -> None:
    """Verdicts, rows, blocks and sessions of known rounds."""
    tier = await tiers.verify(write_table(*LAW))
    before = sample(tier.service, "paceline_engine_step_rows_count", **ENGINE)
    rows_before = sample(tier.service, "paceline_engine_step_rows_sum", **ENGINE)
    assert before is not None and rows_before is not None  # the warm-up's
    peer = await tier.open(rounds.spec([0, 1, 0]))
    assert 1.0 == sample(tier.service, "paceline_sessions_open", tier="verify")
    await peer.verify(Proposal(1, 3))
    verdict = await peer.verify(Proposal(2, 4, (0, 0)))
    assert 2 == verdict.num_accepted
    assert before + 2 == sample(tier.service, "paceline_engine_step_rows_count", **ENGINE)
    # Three of the prompt, then the token that was drawn and two of the draft.
    assert rows_before + 6 == sample(tier.service, "paceline_engine_step_rows_sum", **ENGINE)
    kinds = {
        kind: sample(tier.service, "paceline_verify_verdicts_total", kind=kind)
        for kind in ("plain", "bonus")
    }
    assert {"plain": 1.0, "bonus": 1.0} == kinds
    assert 2.0 == sample(tier.service, "paceline_verify_accepted_tokens_total")
    assert 2.0 == sample(tier.service, "paceline_verify_forward_seconds_count")
    assert 1.0 == sample(tier.service, "paceline_engine_alive", **ENGINE)
    held = sample(tier.service, "paceline_engine_kv_blocks_held", **ENGINE)
    assert held == 1.0
    peer.cancel()
    await tier.watch(lambda load: load.num_held_blocks == 0 and load.num_open_sessions == 0)
    assert 0.0 == sample(tier.service, "paceline_sessions_open", tier="verify")
    assert 1.0 == sample(tier.service, "paceline_sessions_total", tier="verify")


async def test_prefix_hits(tiers: Tiers, rounds: Rounds, write_table: WriteTable) -> None:
    """A second session with the same prompt finds its full blocks in the cache."""
    tier = await tiers.verify(write_table(*LAW), block_size=4)
    names = "paceline_engine_prefix_tokens_total", "paceline_engine_prefix_hit_tokens_total"
    found = []
    for _ in range(2):
        peer = await tier.open(rounds.spec([0, 1, 2, 0, 1, 2, 0, 1, 2]))
        await peer.verify(Proposal(1, 9))
        found.append([sample(tier.service, name, **ENGINE) or 0.0 for name in names])
    assert [9.0, 8.0] == [after - before for before, after in zip(*found, strict=True)]


async def test_the_draft_tier(tiers: Tiers, rounds: Rounds, write_table: WriteTable) -> None:
    """Proposals and tokens by source; a source without a model has no engine."""
    table = write_table(*LAW)
    tier = await tiers.draft(table, "ngram")
    target = (await (await tiers.verify(table)).identity()) if table else None
    peer = await tier.open(rounds.spec([0, 1, 0]), source=table, target=target)
    proposal = await peer.draft(Advance(1, 3, (), 4))
    assert 4 == len(proposal.token_ids)
    assert 1.0 == sample(tier.service, "paceline_draft_proposals_total", source=table)
    assert 4.0 == sample(tier.service, "paceline_draft_tokens_total", source=table)
    assert 1.0 == sample(tier.service, "paceline_draft_seconds_count", source=table)
    engines = {
        s.labels["model"]
        for metric in tier.service.registry.collect()
        for s in metric.samples
        if s.name == "paceline_engine_alive"
    }
    assert {table} == engines


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Where the spans of all services of this process end up."""
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from paceline.serving.config import ServerConfig
    from paceline.serving.otel import OtelTracer

    exporter = InMemorySpanExporter()
    monkeypatch.setattr(
        ServerConfig,
        "tracer",
        lambda self: OtelTracer(f"paceline-{self.section}", SimpleSpanProcessor(exporter)),
    )
    yield exporter


async def test_a_trace_joins_the_three_tiers(
    tiers: Tiers, write_table: WriteTable, exported: Any, tmp_path: Any
) -> None:
    """One generation: one trace, its sessions under it on both tiers, and the rounds in each."""
    from gateway.config import GatewayConfig
    from gateway.service import GatewayService
    from paceline.serving.config import load
    from paceline.v1 import gateway_pb2

    table = write_table(*LAW, eos="c", positions=[[1, 0, 0]] * 12 + [[0, 0, 1]])
    verify, draft = await tiers.verify(table), await tiers.draft(table)
    addresses = ("--verify", tiers.addresses[0], "--draft", tiers.addresses[1])
    settings = ("--draft-length", "fixed:2", "--tokenizer-cache-dir", str(tmp_path))
    config = load(GatewayConfig, [*addresses, *settings], {})
    gateway = GatewayService(config)
    await gateway.start()
    request = gateway_pb2.GenerateRequest(prompt=gateway_pb2.Prompt(text="ab"), max_tokens=10)
    trace, parent = "0123456789abcdef0123456789abcdef", "0123456789abcdef"
    context: Any = _Context((("traceparent", f"00-{trace}-{parent}-01"),))
    events = [event async for event in gateway.generate(request, context)]
    for tier in (verify, draft):
        await tier.watch(lambda load: load.num_open_sessions == 0)
    await gateway.stop()
    stats = events[-1].finished.stats
    spans = exported.get_finished_spans()
    assert {int(trace, 16)} == {span.context.trace_id for span in spans}
    (generation,) = (span for span in spans if span.name.startswith("text_completion"))
    assert int(parent, 16) == generation.parent.span_id
    assert 10 == generation.attributes["gen_ai.usage.output_tokens"]
    sessions = {span.name: span for span in spans if "Service/" in span.name}
    expected = {"paceline.v1.VerifyService/Verify", "paceline.v1.DraftService/Draft"}
    assert expected == sessions.keys()
    assert {generation.context.span_id} == {s.parent.span_id for s in sessions.values()}
    tiers_of = {s.resource.attributes["service.name"] for s in (generation, *sessions.values())}
    assert {"paceline-gateway", "paceline-verify", "paceline-draft"} == tiers_of
    num_rounds = stats.round_count + stats.plain_round_count
    by_parent = [span.parent.span_id for span in spans if span.name == "round"]
    assert num_rounds == by_parent.count(generation.context.span_id)
    verified = sessions["paceline.v1.VerifyService/Verify"]
    assert num_rounds == by_parent.count(verified.context.span_id)
    drafted = sessions["paceline.v1.DraftService/Draft"]
    assert stats.round_count <= by_parent.count(drafted.context.span_id)


class _Context:
    """What a handler asks of its call."""

    def __init__(self, metadata: tuple[tuple[str, str], ...]) -> None:
        self._metadata = metadata

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """The call's headers."""
        return self._metadata

    def time_remaining(self) -> float | None:
        """No deadline."""
        return None
