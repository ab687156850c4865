"""The live audit through the RPCs of both tiers: what is right passes, what lies is caught.

Seeds are fixed. What must alarm moves the sum by over 0.2 nats per token at a variance of about
0.25, which is seen after about 300 tokens; every case runs at least three times as many.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from paceline.engine import rejection
from paceline.engine.law import IntegerLaw, encode_sparse
from paceline.records import AuditReport, Proposal, SamplingParams, VerificationRule

P, Q = [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]
SAMPLED = SamplingParams()
TOKEN, BLOCK = VerificationRule.REJECTION_TOKEN, VerificationRule.REJECTION_BLOCK
COUPLED = VerificationRule.COUPLED
NUM_SESSIONS = 8
LENGTH = 3


class Liar:
    """A draft session whose proposals say that they were drawn from another law."""

    def __init__(self, peer: Any, weights: list[int]) -> None:
        self._peer = peer
        self._law = IntegerLaw(np.arange(len(weights)), np.array(weights))

    async def draft(self, advance: Any) -> Proposal:
        """A proposal with the law replaced."""
        proposal: Proposal = await self._peer.draft(advance)
        laws = encode_sparse([self._law] * len(proposal.token_ids))
        return replace(proposal, law=laws)


class Audited:
    """Generations of one target and draft, and what its audit says of them."""

    def __init__(self, tiers: Any, rounds: Any, write_table: Any) -> None:
        self._tiers = tiers
        self._rounds = rounds
        self._write_table = write_table
        self.transcripts: list[Any] = []
        self.registry: Any = None

    async def run(
        self, rule: VerificationRule, num_tokens: int, lie: list[int] | None = None, **fields: Any
    ) -> AuditReport:
        """Runs sessions that share steps; `share`, `seeds` and `length` as they are named."""
        share, seeds = fields.pop("share", 1.0), fields.pop("seeds", range(NUM_SESSIONS))
        length = fields.pop("length", LENGTH)
        verify = await self._tiers.verify(self._write_table(*P), audit_share=share)
        draft = await self._tiers.draft(self._write_table(*Q))
        runs = []
        for seed in seeds:
            values = {"sampling": SAMPLED, "rule": rule, "seed": seed, "has_fresh_seed": True}
            session = self._rounds.spec([0], **{**values, **fields})
            drafter = await draft.open(session)
            peer = await verify.open(session)
            chain = Liar(drafter, lie) if lie else drafter
            each = num_tokens // len(seeds)
            runs.append(self._rounds.run(peer, chain, 1, each, lambda _: length))
        self.transcripts = await self._rounds.together(*runs)
        load = await verify.load()
        assert load.audit is not None
        self.registry = verify.service.registry
        return load.audit  # type: ignore[no-any-return]  # tiers are untyped here


@pytest.fixture
def audited(tiers: Any, rounds: Any, write_table: Any) -> Audited:
    """Audited generations."""
    return Audited(tiers, rounds, write_table)


@pytest.mark.parametrize("rule", [TOKEN, BLOCK, COUPLED], ids=lambda rule: rule.name)
async def test_what_is_right_passes(audited: Audited, rule: VerificationRule) -> None:
    """Every committed and every draft token is judged, and neither sum goes far."""
    with capture_logs() as logs:
        report = await audited.run(rule, 1200)
    verdicts = [verdict for one in audited.transcripts for _, verdict in one.rounds]
    assert sum(verdict.num_accepted + 1 for verdict in verdicts) == report.emitted.num_tokens
    num_drafted = sum(one.num_drafted for one in audited.transcripts)
    assert (0 if rule is COUPLED else num_drafted) == report.drafted.num_tokens
    for one in (report.emitted, report.drafted):
        assert not one.is_alarming
        assert abs(one.deviations) < 4.0
    assert [] == [line for line in logs if line["event"] == "audit_alarm"]


@pytest.mark.parametrize("rule", [TOKEN, BLOCK], ids=lambda rule: rule.name)
async def test_a_lying_draft(audited: Audited, rule: VerificationRule) -> None:
    """What is drawn from one law and shipped with another is seen, and said once."""
    with capture_logs() as logs:
        report = await audited.run(rule, 1000, lie=[5, 3, 2])
    assert report.drafted.is_alarming
    alarms = [line["kind"] for line in logs if line["event"] == "audit_alarm"]
    assert 1 == alarms.count("drafted")


@pytest.mark.parametrize("rule", [TOKEN, BLOCK], ids=lambda rule: rule.name)
async def test_a_wrong_rule(
    audited: Audited, rule: VerificationRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule that accepts everything emits the draft's law; the draft itself is honest."""
    monkeypatch.setattr(rejection, "accepted_length", lambda rule, h, uniforms: len(uniforms))
    with capture_logs() as logs:
        report = await audited.run(rule, 1000)
    assert report.emitted.is_alarming
    assert not report.drafted.is_alarming
    assert ["emitted"] == [line["kind"] for line in logs if line["event"] == "audit_alarm"]


async def test_a_recovered_token_from_the_target(
    audited: Audited, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A residual that is none is seen as well."""
    monkeypatch.setattr(rejection, "residual_law", lambda target, draft, scale: target)
    report = await audited.run(TOKEN, 3000)
    assert report.emitted.is_alarming
    assert not report.drafted.is_alarming


@pytest.mark.parametrize("rule", [BLOCK, COUPLED], ids=lambda rule: rule.name)
async def test_a_seed_that_comes_again_is_no_evidence(
    audited: Audited, rule: VerificationRule
) -> None:
    """The same noise again and again drifts by itself: only seeds used once are audited."""
    report = await audited.run(rule, 8, seeds=[15] * 2, has_fresh_seed=False)
    assert AuditReport() == report
    again = await audited.run(rule, 600, seeds=[15] * 100)
    assert again.emitted.is_alarming


async def test_a_share_of_rounds(audited: Audited) -> None:
    """About as many rounds as were asked for, whole ones, and not for what is drawn in them."""
    report = await audited.run(BLOCK, 2000, share=0.25)
    rounds = [
        (proposal, verdict) for one in audited.transcripts for proposal, verdict in one.rounds
    ]
    assert 0.15 < report.drafted.num_tokens / (LENGTH * len(rounds)) < 0.35
    assert 0 == report.drafted.num_tokens % LENGTH
    plain = await audited.run(BLOCK, 2000, share=0.25, length=0)
    assert 0.2 < plain.emitted.num_tokens / 2000 < 0.3
    for one in (report.emitted, report.drafted, plain.emitted):
        assert abs(one.deviations) < 4.0


async def test_no_share_no_audit(audited: Audited) -> None:
    """With a share of 0 nothing is looked at."""
    assert AuditReport() == await audited.run(BLOCK, 80, share=0.0)


async def test_metrics(audited: Audited) -> None:
    """A scrape shows both sums as they are reported."""
    report = await audited.run(BLOCK, 80)
    for kind, one in (("emitted", report.emitted), ("drafted", report.drafted)):
        values = [
            audited.registry.get_sample_value(f"paceline_audit_{name}", {"kind": kind})
            for name in ("tokens", "deviations", "evidence")
        ]
        assert [one.num_tokens, one.deviations, one.evidence] == values
