"""Replays of finished generations, between the gateway's own RPCs and a scripted target."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.config import GatewayConfig
from gateway.replay import is_fixed
from gateway.service import GatewayService
from paceline.errors import InvalidArgument
from paceline.records import ModelIdentity, SamplingParams, SessionSpec, Verdict, VerificationRule
from paceline.v1 import gateway_pb2, speculation_pb2

Eventually = Callable[[Callable[[], bool]], Awaitable[None]]
SCRIPT = [(7 * i * i + 3 * i) % 250 for i in range(60)]
NUM_TOKENS = 12
GREEDY = speculation_pb2.SamplingParams(temperature=0)


class System:
    """A gateway over fake tiers, asked in place: no port of its own."""

    def __init__(self, servers: Any, cache_dir: Path, eventually: Eventually) -> None:
        self._servers = servers
        self._cache_dir = cache_dir
        self._eventually = eventually
        self.verify: Any = None
        self.service: Any = None

    async def start(self, **settings: Any) -> None:
        """Starts everything; every generation that can be is replayed unless said otherwise."""
        self.verify = await self._servers.verify(SCRIPT)
        draft = await self._servers.draft(SCRIPT, mode="mixed")
        config = GatewayConfig(
            verify=(self.verify.address,),
            draft=(draft.address,),
            tokenizer_cache_dir=self._cache_dir,
            **{"replay_share": 1.0, "reopen_patience_s": 0.0, **settings},
        )
        self.service = GatewayService(config)
        await self.service.start()

    async def stop(self) -> None:
        """Ends the gateway."""
        if self.service is not None:
            await self.service.stop()

    async def generate(self, **fields: Any) -> None:
        """Runs one generation; greedy unless said otherwise."""
        prompt = gateway_pb2.Prompt(token_ids=gateway_pb2.TokenIds(token_ids=[1, 2, 3]))
        request = gateway_pb2.GenerateRequest(
            **{"prompt": prompt, "sampling": GREEDY, "max_tokens": NUM_TOKENS, **fields}
        )
        context: Any = SimpleNamespace(time_remaining=lambda: None, invocation_metadata=lambda: ())
        await self.service.complete(gateway_pb2.CompleteRequest(generation=request), context)

    async def replays(self, num_replays: int = 1) -> dict[str, int]:
        """Counts that are not 0, once there are as many."""
        await self._eventually(lambda: sum(self.service._replayer.counts.values()) == num_replays)
        listed = await self.service.list_models(gateway_pb2.ListModelsRequest(), None)
        counts = {
            field.name.removesuffix("_count"): value for field, value in listed.replays.ListFields()
        }
        for outcome, count in counts.items():
            labels = {"outcome": outcome}
            value = self.service.registry.get_sample_value("paceline_replays_total", labels)
            assert count == value
        return counts

    @property
    def replayed(self) -> Any:
        """What the last session was opened with."""
        return self.verify.opens[-1].session

    def in_replays(self, **changes: Any) -> None:
        """Changes the verdict on the fourth output token of sessions that are replays."""

        def alter(verdict: Verdict) -> Verdict:
            is_replay = self.replayed.cache_domain.startswith("replay/")
            if not is_replay or verdict.committed_length != 7:
                return verdict
            return replace(verdict, **{"next_token_id": 255, **changes})

        self.verify.answer = alter


@pytest.fixture
async def system(servers: Any, tmp_path: Path, eventually: Eventually) -> AsyncIterator[System]:
    """A gateway over fake tiers."""
    system = System(servers, tmp_path / "tokenizers", eventually)
    yield system
    await system.stop()


@pytest.fixture
def exact_model(servers: Any, model: ModelIdentity) -> None:
    """Makes the scripted target exact."""
    servers.model = replace(model, exact=True)


async def test_equal(system: System) -> None:
    """Every token is decoded again, one by one, and there is nothing to say."""
    await system.start()
    with capture_logs() as logs:
        await system.generate()
        assert {"equal": 1} == await system.replays()
    plain = [p for p in system.verify.proposals[-NUM_TOKENS:] if not p.token_ids]
    assert NUM_TOKENS == len(plain)
    assert [] == [line for line in logs if line["event"].startswith("replay")]


async def test_what_a_replay_opens(system: System) -> None:
    """The same text and draws in a cache of its own, as the last to arrive, and not audited."""
    await system.start()
    await system.generate(cache_domain="tenant")
    assert {"equal": 1} == await system.replays()
    first, replayed = (one.session for one in system.verify.opens)
    assert first.token_ids == replayed.token_ids
    assert (first.seed, first.rule) == (replayed.seed, replayed.rule)
    assert "tenant" == first.cache_domain != replayed.cache_domain
    assert first.arrival_time.ToNanoseconds() < replayed.arrival_time.ToNanoseconds()
    assert replayed.sampling.HasField("log_prob_count")
    assert first.has_fresh_seed and not replayed.has_fresh_seed


async def test_no_two_replays_share_a_cache(system: System) -> None:
    """What one replay left behind would only agree with itself."""
    await system.start()
    for number in (1, 2):
        await system.generate()
        assert {"equal": number} == await system.replays(number)
    domains = {one.session.cache_domain for one in system.verify.opens}
    assert 3 == len(domains)  # the generations' own and one for each replay


async def test_a_mismatch(system: System) -> None:
    """An id that was not nearly another one is an error, with the request and the place."""
    await system.start()
    system.in_replays(margin=0.5)
    with capture_logs() as logs:
        await system.generate(request_id="r-1")
        assert {"mismatch": 1} == await system.replays()
    [line] = [line for line in logs if line["event"] == "replay_differs"]
    assert ("error", "r-1", 3) == (line["log_level"], line["request_id"], line["position"])
    assert (SCRIPT[3], 255, 0.5) == (line["token_id"], line["replayed_token_id"], line["margin"])


async def test_a_near_tie(system: System) -> None:
    """Under the set lead it is counted apart, and no error."""
    await system.start(replay_margin=0.01)
    system.in_replays(margin=0.01)
    with capture_logs() as logs:
        await system.generate()
        assert {"near_tie": 1} == await system.replays()
    [line] = [line for line in logs if line["event"] == "replay_differs"]
    assert "info" == line["log_level"]


@pytest.mark.usefixtures("exact_model")
async def test_exact_mode_has_no_near_ties(system: System) -> None:
    """There any difference is a mismatch, and no lead is asked for."""
    await system.start()
    system.in_replays(margin=0.0)
    await system.generate()
    assert {"mismatch": 1} == await system.replays()
    assert not system.replayed.sampling.HasField("log_prob_count")


async def test_a_replay_that_cannot_be_finished(system: System) -> None:
    """It says nothing of the output."""
    await system.start()
    system.verify.answer = lambda verdict: _refuse_replay(system, verdict)
    await system.generate()
    assert {"failed": 1} == await system.replays()


def _refuse_replay(system: System, verdict: Verdict) -> Verdict:
    if system.replayed.cache_domain.startswith("replay/"):
        raise InvalidArgument("session", "is refused")
    return verdict


async def test_one_at_a_time(system: System) -> None:
    """While one runs, others are skipped; the clients do not wait for it."""
    await system.start()
    held, release = asyncio.Event(), asyncio.Event()

    async def hold(number: int) -> None:
        if system.replayed.cache_domain.startswith("replay/"):
            held.set()
            await release.wait()

    system.verify.fault = hold
    await system.generate()
    await held.wait()
    system.verify.fault = None  # of the generations that come now
    assert 0 == sum(system.service._replayer.counts.values())
    await system.generate()
    assert {"skipped": 1} == await system.replays()
    release.set()
    assert {"skipped": 1, "equal": 1} == await system.replays(2)


async def test_none_while_the_gateway_is_busy(system: System) -> None:
    """More than half of the generations that it takes run."""
    await system.start(max_generations=1)
    await system.generate()
    assert {"skipped": 1} == await system.replays()
    assert 1 == len(system.verify.opens)


async def test_no_share_no_replays(system: System) -> None:
    """By default the target does no work twice."""
    await system.start(replay_share=0.0)
    await system.generate()
    assert {} == await system.replays(0)
    assert 1 == len(system.verify.opens)


@pytest.mark.parametrize(
    ("rule", "temperature", "changes", "expected"),
    [
        ("REJECTION_BLOCK", 0.0, {}, True),
        ("COUPLED", 1.0, {}, True),
        ("REJECTION_BLOCK", 1.0, {}, False),
        ("REJECTION_TOKEN", 1.0, {}, False),
        ("COUPLED", 1.0, {"quantization": "int8"}, False),
        ("COUPLED", 1.0, {"quantization": "int8", "exact": True}, True),
    ],
)
def test_whose_output_is_fixed(
    model: ModelIdentity, rule: str, temperature: float, changes: Any, expected: bool
) -> None:
    """Greedy and coupled ones, where the arithmetic claims anything."""
    sampling = SamplingParams(temperature=temperature)
    spec = SessionSpec((1,), 1, sampling, VerificationRule[rule], 0)
    assert expected == is_fixed(spec, replace(model, **changes))
