"""Gateway and both real tiers together: each fault raises the alarm that is there for it.

The draft agrees with the target behind half of the letters, so every outcome of a round occurs. The
seeds that the gateway draws are fixed.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from draft_service.drafters.model import ModelDraftSession
from gateway.config import GatewayConfig
from gateway.service import GatewayService
from paceline.engine import rejection
from paceline.engine.law import IntegerLaw
from paceline.engine.step import Span
from paceline.engine.table_model import TableRunner
from paceline.records import AuditReport
from paceline.v1 import gateway_pb2, speculation_pb2

Eventually = Callable[[Callable[[], bool]], Awaitable[None]]
LETTERS = "abcd"


def suffixes(shift: str = "") -> dict[str, list[float]]:
    """Laws by the last two letters; behind those in `shift` another letter is likeliest."""
    laws = {}
    for first, second in itertools.product(LETTERS, LETTERS):
        likeliest = (LETTERS.index(first) + 2 * LETTERS.index(second) + (second in shift)) % 4
        laws[first + second] = [0.55 if i == likeliest else 0.15 for i in range(4)]
    return laws


class System:
    """All three services in this process, over real gRPC between them."""

    def __init__(self, tiers: Any, write_table: Any, cache_dir: Path) -> None:
        self._tiers = tiers
        self._write_table = write_table
        self._cache_dir = cache_dir
        self.service: Any = None
        self.num_rejected = 0
        """Draft tokens of the last generation."""

    async def start(self) -> None:
        """Starts them; every round is audited and every generation replayed that can be."""
        flat = [0.25] * 4
        target = self._write_table(*flat, suffixes=suffixes())
        await self._tiers.verify(target, audit_share=1.0)
        await self._tiers.draft(self._write_table(*flat, suffixes=suffixes("bc")))
        verify, draft = self._tiers.addresses
        settings: dict[str, Any] = {"draft_length": "fixed:3", "replay_share": 1.0}
        config = GatewayConfig(
            verify=(verify,), draft=(draft,), tokenizer_cache_dir=self._cache_dir, **settings
        )
        self.service = GatewayService(config)
        await self.service.start()

    async def generate(self, num_tokens: int, **fields: Any) -> None:
        """Runs one generation, at temperature 1 and without a seed unless said otherwise."""
        prompt = gateway_pb2.Prompt(text="abcabc")
        request = gateway_pb2.GenerateRequest(
            **{"prompt": prompt, "max_tokens": num_tokens, **fields}
        )
        context: Any = SimpleNamespace(time_remaining=lambda: None, invocation_metadata=lambda: ())
        answer = await self.service.complete(
            gateway_pb2.CompleteRequest(generation=request), context
        )
        self.num_rejected = (
            answer.finished.stats.drafted_token_count - answer.finished.stats.accepted_token_count
        )

    async def replays(self, eventually: Eventually, num_replays: int) -> dict[str, int]:
        """Counts of replays by outcome, once there are as many."""
        counts = self.service._replayer.counts
        await eventually(lambda: sum(counts.values()) == num_replays)
        return {outcome: count for outcome, count in counts.items() if count}

    async def audit(self, eventually: Eventually, num_tokens: int) -> AuditReport:
        """What the gateway was last told, once it holds as many tokens."""
        [replica] = self.service._tiers.targets.all()

        def has_come() -> bool:
            audit = replica.load.audit if replica.load else None
            return audit is not None and audit.emitted.num_tokens >= num_tokens

        await eventually(has_come)
        return replica.load.audit  # type: ignore[no-any-return]  # the service is untyped here


@pytest.fixture
async def system(
    tiers: Any, write_table: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[System]:
    """The three services."""
    seeds = itertools.count()
    monkeypatch.setattr(secrets, "randbits", lambda num_bits: next(seeds))
    system = System(tiers, write_table, tmp_path / "tokenizers")
    await system.start()
    yield system
    await system.service.stop()


@pytest.fixture
def stale_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of several rows behind the prompt leaves its first token's slot as it was.

    There stands the draft token that was rejected, where one was.
    """
    write = TableRunner._write

    def write_late(self: TableRunner, span: Span) -> None:
        slot = self._slot(span, span.start)
        before = self._ids_by_slot[slot]
        write(self, span)
        if span.start >= span.prompt_length and len(span.token_ids) > 1 and before >= 0:
            self._ids_by_slot[slot] = before

    monkeypatch.setattr(TableRunner, "_write", write_late)


GREEDY = {"sampling": speculation_pb2.SamplingParams(temperature=0)}
SEEDED = {"seed": 5}


@pytest.mark.parametrize("fields", [GREEDY, SEEDED], ids=["greedy", "seeded"])
async def test_what_is_right_replays(system: System, eventually: Eventually, fields: Any) -> None:
    """Greedy and coupled output is that of plain decoding; neither is audited."""
    await system.generate(60, **fields)
    assert system.num_rejected > 0
    assert {"equal": 1} == await system.replays(eventually, 1)


@pytest.mark.parametrize("fields", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.usefixtures("stale_cache")
async def test_a_stale_cache(system: System, eventually: Eventually, fields: Any) -> None:
    """Laws behind another text than the committed one: the replay differs, far from any tie."""
    await system.generate(60, **fields)
    assert {"mismatch": 1} == await system.replays(eventually, 1)


async def test_what_is_right_is_audited(system: System, eventually: Eventually) -> None:
    """A generation without a seed adds its tokens, and is not replayed."""
    await system.generate(300)
    report = await system.audit(eventually, 300)
    assert report.drafted.num_tokens > 100
    assert not report.emitted.is_alarming
    assert not report.drafted.is_alarming
    assert {} == await system.replays(eventually, 0)


async def test_a_seed_of_the_client_is_not_audited(system: System, eventually: Eventually) -> None:
    """It may come again: only the generation after it, which has none, is counted."""
    await system.generate(60, **SEEDED)
    await system.generate(20)
    report = await system.audit(eventually, 20)
    assert report.emitted.num_tokens < 40


async def test_a_lying_draft(
    system: System, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft tier that ships flatter laws than it draws from."""

    def flatter(drafter: Any, laws: list[IntegerLaw]) -> Any:
        lies = [IntegerLaw(law.token_ids, (law.weights**0.5).astype(int)) for law in laws]
        return encode(drafter, lies)

    encode = ModelDraftSession._encode
    monkeypatch.setattr(ModelDraftSession, "_encode", flatter)
    await system.generate(1500)
    report = await system.audit(eventually, 1500)
    assert report.drafted.is_alarming


async def test_a_wrong_rule(
    system: System, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verify tier that accepts whatever is drafted."""
    monkeypatch.setattr(rejection, "accepted_length", lambda rule, h, uniforms: len(uniforms))
    await system.generate(1000)
    report = await system.audit(eventually, 1000)
    assert report.emitted.is_alarming
    assert not report.drafted.is_alarming
