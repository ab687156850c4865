"""Figures of a run are sums over sums; each run is a tenant of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paceline.bench.measure_sheet import Measured, make_sheet
from paceline.bench.prompts import Question
from paceline.bench.sheet import acceptance_rate, predict
from paceline.bench.sources import describe
from paceline.bench.trials import Round, Trial, plainly, run_interleaved
from paceline.cli.client import Generation, GenerationOptions
from paceline.v1 import gateway_pb2


def _generation(*ids: int, rate: float = 10.0, overhead_ms: int = 2, **counts: Any) -> Generation:
    draft_ms = counts.pop("draft_ms", 0)
    stats = gateway_pb2.GenerationStats(tokens_per_second=rate, **counts)
    stats.draft_duration.FromMilliseconds(draft_ms)
    stats.overhead_duration_p50.FromMilliseconds(overhead_ms)
    finished = gateway_pb2.Finished(stats=stats)
    return Generation("x", ids, (4,) * len(ids), gateway_pb2.Started(), finished)


PLAIN = Trial(
    "none",
    0,
    (_generation(1, 2, 3, plain_round_count=3), _generation(4, 5, rate=5, plain_round_count=2)),
    (Round(False, 0.1), Round(False, 0.3), Round(False, 0.2)),
)
DRAFTED = Trial(
    "small",
    2,
    (
        _generation(
            *(1, 2, 3),
            rate=20,
            overhead_ms=5,
            draft_ms=60,
            round_count=2,
            plain_round_count=1,
            drafted_token_count=4,
            accepted_token_count=3,
            drafted_count_by_position=[2, 2],
            accepted_count_by_position=[2, 1],
        ),
        _generation(
            *(4, 6),
            rate=20,
            overhead_ms=5,
            draft_ms=10,
            round_count=1,
            plain_round_count=3,
            drafted_token_count=1,
            accepted_token_count=0,
            drafted_count_by_position=[1],
            accepted_count_by_position=[0],
        ),
    ),
    (Round(True, 0.3), Round(True, 0.2), Round(True, 0.4), Round(False, 9.0)),
)


def test_sums_over_sums() -> None:
    """B82: 3 of 4 and 0 of 1 make 3 of 5; places are counted over proposals that reach them."""
    assert 3 / 5 == DRAFTED.acceptance_rate
    assert 1 + 3 / 3 == DRAFTED.acceptance_length
    assert (2 / 3, 1 / 2) == DRAFTED.survival
    assert (1.0, 2 / 3) == DRAFTED.reach  # two of three proposals have a second token
    assert 0.07 / 5 == pytest.approx(DRAFTED.draft_s_per_token)
    assert 3 / 5 == DRAFTED.coverage  # the first round of each generation is plain by nature
    assert 3 / (2 / 10 + 1 / 5) == pytest.approx(PLAIN.tokens_per_second)
    assert (0.3, 9.0) == (
        DRAFTED.round_s(has_proposal=True),
        DRAFTED.round_s(has_proposal=False),
    )
    assert 1 == DRAFTED.num_same(PLAIN)


def test_the_first_proposal_waits_for_the_drafts_prompt() -> None:
    """What it takes beyond the median of later ones is no time of a draft token."""
    rounds = (Round(True, 0.34, is_first=True), Round(True, 0.30), Round(True, 0.31, is_first=True))
    waiting = replace(DRAFTED, rounds=(*rounds, Round(True, 0.28), Round(True, 0.8)))
    assert 0.025 == pytest.approx(waiting.first_wait_s)
    assert (0.07 - 2 * 0.025) / 5 == pytest.approx(waiting.draft_s_per_token)
    assert waiting.first_wait_s == make_sheet(PLAIN, [waiting], 0).sources[0].first_wait_s
    assert 0.0 == DRAFTED.first_wait_s
    faster = replace(DRAFTED, rounds=(Round(True, 0.1, is_first=True), Round(True, 0.3)))
    assert 0.0 == faster.first_wait_s
    slower = replace(DRAFTED, rounds=(Round(True, 9.0, is_first=True), Round(True, 0.3)))
    assert 0.0 == slower.draft_s_per_token


def test_nothing_drafted() -> None:
    """B81: no rate without draft tokens, and one token a round."""
    assert (0.0, 1.0, (), 0.0, 0.0) == (
        PLAIN.acceptance_rate,
        PLAIN.acceptance_length,
        PLAIN.survival + PLAIN.reach,
        PLAIN.draft_s_per_token,
        PLAIN.coverage,
    )


def test_the_sheet_of_two_runs() -> None:
    """A round less drafting and less what is outside both models is a step of the target."""
    sheet = make_sheet(PLAIN, [DRAFTED], queued=2)
    assert {0: pytest.approx(0.198), 2: pytest.approx(0.3 - 5 / 3 * 0.014 - 0.005)} == (
        sheet.verify_s
    )
    assert (0.002, 2.5, 2) == (sheet.round_trip_s, sheet.output_tokens, sheet.queued)
    (source,) = sheet.sources
    assert ("small", 3 / 5) == (source.name, source.coverage)
    assert 0.003 == pytest.approx(source.round_trip_s)
    assert (DRAFTED.survival, DRAFTED.reach) == (source.survival, source.reach)
    assert DRAFTED.acceptance_length == pytest.approx(predict(sheet, source, 2).tokens_per_round)
    assert DRAFTED.acceptance_rate == pytest.approx(acceptance_rate(source, 2))
    measured = Measured(sheet, PLAIN, (DRAFTED,))
    assert 20 / 7.5 == pytest.approx(measured.speedup(DRAFTED))


def test_shorter_proposals_of_any_source_tell_of_the_target() -> None:
    """The longest ones are those of the source with the most rounds; what never drafted is out."""
    once = replace(DRAFTED.generations[1], finished=gateway_pb2.Finished())
    rare = replace(DRAFTED, source="rare", generations=DRAFTED.generations[1:])
    short = replace(rare, num_draft_tokens=1)
    mute = replace(rare, num_draft_tokens=0, generations=(once,))
    sheet = make_sheet(PLAIN, [DRAFTED, rare, short, mute], queued=0)
    assert make_sheet(PLAIN, [DRAFTED], 0).verify_s.items() < sheet.verify_s.items()
    assert 0.3 - 0.010 - 0.005 == pytest.approx(sheet.verify_s[1])


def test_a_source_that_never_spoke_is_not_on_the_sheet() -> None:
    """There is nothing to predict it from."""
    silent = Trial("grammar", 2, (_generation(1, plain_round_count=3),))
    assert ["small"] == [s.name for s in make_sheet(PLAIN, [silent, DRAFTED], 0).sources]
    assert () == make_sheet(PLAIN, [], 0).sources


def test_a_row_of_the_table() -> None:
    """Beside plain decoding of the same prompts."""
    row = describe("greedy", DRAFTED, PLAIN)
    assert ("small", "greedy", 2, 1, 2) == tuple(
        row[key] for key in ("source", "sampling", "num_draft_tokens", "identical", "prompts")
    )
    assert 20 / 7.5 == pytest.approx(row["speedup"])
    assert 5 / 7 == row["tokens_per_step"]
    assert 14 == pytest.approx(row["draft_ms_per_token"])


async def test_a_round_that_ends_with_an_accepted_token_had_a_proposal(counting: Any) -> None:
    """An end token of the draft's is the last of its round, which has no bonus then."""
    gateway, stub = counting
    gateway.is_cut = True
    options = GenerationOptions(draft="small", num_draft_tokens=3)
    (run,) = await run_interleaved(stub, [Question("1", "a", "one")], [options])
    assert [True, True] == [one.has_proposal for one in run.rounds]


async def test_each_run_is_a_tenant(counting: Any) -> None:
    """Runs take turns; prompts of one share a tenant, two runs do not; first rounds are out."""
    gateway, stub = counting
    questions = [Question("1", "a", "one"), Question("2", "a", "two")]
    options = GenerationOptions(draft="small", num_draft_tokens=3)
    done: list[int] = []
    wanted = [options, plainly(options)]
    run, plain = await run_interleaved(stub, questions, wanted, lambda: done.append(1))
    tenants = [request.cache_domain for request in gateway.requests]
    assert (tenants[0], tenants[1]) == (tenants[2], tenants[3])
    assert "" != tenants[0] != tenants[1]
    assert ("none", 0, 2) == (plain.source, plain.num_draft_tokens, len(plain.generations))
    assert ("small", 3, 2, 4) == (
        run.source,
        run.num_draft_tokens,
        len(run.generations),
        len(done),
    )
    assert [(True, True), (True, False)] * 2 == [(r.has_proposal, r.is_first) for r in run.rounds]
    assert 4 == len(plain.rounds)
    assert not any(one.has_proposal or one.is_first for one in plain.rounds)
    speculation = gateway.requests[1].speculation
    assert ("none", 0) == (speculation.draft_source, speculation.draft_token_count)
