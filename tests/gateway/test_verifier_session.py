"""A session on the verify tier: one stream, and the table by which it moves to another one."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from gateway import replicas as replicas_module
from gateway.tiers import Tiers
from gateway.verifier_session import VerifierBounds, VerifierSession, read_verdict
from paceline.errors import (
    Aborted,
    DeadlineExceeded,
    Exhausted,
    FailedPrecondition,
    InvalidArgument,
    PacelineError,
    Unavailable,
)
from paceline.records import (
    Proposal,
    SamplingParams,
    SessionSpec,
    TokenLogProbs,
    VerificationRule,
)
from paceline.v1 import speculation_pb2, verify_pb2

if TYPE_CHECKING:
    from tests.gateway.conftest import Fault, Servers, VerifyTier

SCRIPT = list(range(40, 90))
SPEC = SessionSpec(
    (1, 2, 3),
    3,
    SamplingParams(temperature=0.0),
    VerificationRule.REJECTION_BLOCK,
    seed=7,
    request_id="test",
    has_fresh_seed=True,
)


def open_session(tiers: Tiers, **bounds: Any) -> VerifierSession:
    """A session on whichever replica is picked."""
    _, target = tiers.targets.ready()[0]
    return VerifierSession(
        tiers.targets, SPEC, target, VerifierBounds(**{"stall_s": 20, "patience_s": 20, **bounds})
    )


async def run(session: VerifierSession, num_rounds: int, start: int = 1) -> list[int]:
    """Rounds with two right draft tokens after the first one; gives what was committed."""
    committed: list[int] = []
    for number in range(start, start + num_rounds):
        done = 0 if number == 1 else 1 + 3 * (number - 2)
        token_ids = tuple(SCRIPT[done : done + 2]) if number > 1 else ()
        verdict = await session.verify(Proposal(number, 3 + done, token_ids))
        assert number == verdict.round
        committed += [*token_ids[: verdict.num_accepted], verdict.next_token_id]
    return committed


def fail_in(round_number: int, error: PacelineError) -> Fault:
    """A replica that fails in one round."""

    async def fault(current: int) -> None:
        if current == round_number:
            raise error

    return fault


def by_address(servers: list[VerifyTier], address: str) -> VerifyTier:
    """The replica at an address."""
    return next(tier for tier in servers if tier.address == address)


async def test_one_stream_for_all_rounds(servers: Servers) -> None:
    """A session is one stream; its Open says everything, its rounds count from 1."""
    tier = await servers.verify(SCRIPT)
    session = open_session(await servers.tiers([tier]))
    assert SCRIPT[:10] == await run(session, 4)
    assert (1, 1) == (tier.num_opened, tier.num_open)
    opened = tier.opens[0]
    assert [1, 2, 3] == list(opened.session.token_ids)
    assert (3, 7, "test") == (
        opened.session.prompt_length,
        opened.session.seed,
        opened.session.request_id,
    )
    assert "scripted-1" == opened.model_fingerprint
    assert [1, 2, 3, 4] == [proposal.round for proposal in tier.proposals]
    assert session.num_bytes > 100
    session.close()
    await tier.closed.wait()


async def test_a_replica_that_left_keeps_its_sessions(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B127: a session stays on its replica, even where that has no address any more."""
    tier = await servers.verify(SCRIPT)
    tiers = await servers.tiers([tier])
    session = open_session(tiers)
    committed = await run(session, 2)

    async def nothing(target: str) -> list[str]:
        return []

    monkeypatch.setattr(replicas_module, "_addresses", nothing)
    await tiers.targets._resolve()
    gc.collect()
    assert [] == tiers.targets.all()
    assert SCRIPT[:10] == committed + await run(session, 2, start=3)
    assert (1, 0) == (tier.num_opened, session.num_reopened)
    session.close()


@pytest.mark.parametrize("max_draft_tokens", [4, 8])
async def test_limits_come_with_the_session(servers: Servers, max_draft_tokens: int) -> None:
    """B95: the longest proposal is announced when the session opens."""
    tier = await servers.verify(SCRIPT, max_draft_tokens=6)
    session = open_session(await servers.tiers([tier]))
    assert 6 == session.max_draft_tokens
    tier.max_draft_tokens = max_draft_tokens
    await run(session, 1)
    assert max_draft_tokens == session.max_draft_tokens
    session.close()


@pytest.mark.parametrize(
    "error", [Unavailable("gone", retry_after_s=0.0), Aborted("idle", reason="SESSION_IDLE")]
)
@pytest.mark.parametrize("round_number", [1, 2, 4])
async def test_a_lost_session_goes_on_elsewhere(
    servers: Servers, error: PacelineError, round_number: int
) -> None:
    """Lost in any round: reopened on the other replica, and the output is the target's."""
    tiers = [await servers.verify(SCRIPT), await servers.verify(SCRIPT)]
    session = open_session(await servers.tiers(tiers))
    errors = [error]

    async def fail_once(current: int) -> None:
        if current == round_number and errors:
            raise errors.pop()

    for tier in tiers:
        tier.fault = fail_once
    assert SCRIPT[:13] == await run(session, 5)
    assert [1, 1] == [tier.num_opened for tier in tiers]
    assert 1 == session.num_reopened
    session.close()


async def test_what_is_sent_again(servers: Servers) -> None:
    """B107: the new stream starts at round 1, with all that is committed, for the same proposal."""
    lost = await servers.verify(SCRIPT)
    session = open_session(tiers := await servers.tiers([lost]))
    await run(session, 2)
    lost.fault = fail_in(3, Unavailable("gone", retry_after_s=0.0))
    assert SCRIPT[4:10] == await run(session, 2, start=3)
    again = lost.opens[1].session
    assert [1, 2, 3, *SCRIPT[:4]] == list(again.token_ids)
    assert 3 == again.prompt_length
    failed, repeated, following = lost.proposals[2:]
    assert (3, 1, 2) == (failed.round, repeated.round, following.round)
    assert list(failed.token_ids) == list(repeated.token_ids)
    assert failed.base_length == repeated.base_length
    # Draws that are repeated are not audited a second time.
    assert [True, False] == [opened.session.has_fresh_seed for opened in lost.opens]
    assert 1 == session.num_reopened
    assert 1 == len(tiers.targets.ready())
    session.close()


async def test_a_killed_replica(servers: Servers) -> None:
    """B127: a replica that is killed in a round is replaced, by one of the same fingerprint."""
    tiers = [await servers.verify(SCRIPT), await servers.verify(SCRIPT)]
    session = open_session(await servers.tiers(tiers))
    await run(session, 2)
    assert session.replica is not None
    first = by_address(tiers, session.replica.address)
    reached = asyncio.Event()

    async def hang(current: int) -> None:
        reached.set()
        await asyncio.Event().wait()

    first.fault = hang
    rounds = asyncio.create_task(run(session, 2, start=3))
    await reached.wait()
    await first.stop()
    assert SCRIPT[4:10] == await rounds
    assert first.address != session.replica.address
    session.close()


async def test_a_silent_replica_is_left(servers: Servers) -> None:
    """A replica that never answers counts as lost after the stall bound."""
    tiers = [await servers.verify(SCRIPT), await servers.verify(SCRIPT)]
    session = open_session(await servers.tiers(tiers), stall_s=2)
    await run(session, 1)
    assert session.replica is not None
    silent = by_address(tiers, session.replica.address)

    async def hang(current: int) -> None:
        await asyncio.Event().wait()

    silent.fault = hang
    assert SCRIPT[1:4] == await run(session, 1, start=2)
    assert silent.address != session.replica.address
    await silent.closed.wait()
    session.close()


async def test_two_lost_replicas_end_the_generation(servers: Servers) -> None:
    """A prompt that kills engines stops at the second one, though a third is there."""
    tiers = [await servers.verify(SCRIPT) for _ in range(3)]
    for tier in tiers:
        tier.fault = fail_in(1, Unavailable("crashed", reason="CRASH", retry_after_s=0.0))
    session = open_session(await servers.tiers(tiers))
    with pytest.raises(Unavailable, match="crashed") as lost:
        await run(session, 1)
    assert "TARGETS_LOST" == lost.value.reason
    assert 2 == sum(tier.num_opened for tier in tiers)
    session.close()


async def test_a_pause_of_the_reader_is_no_death(servers: Servers) -> None:
    """A replica that ends an idle session is in good health, however often it does."""
    tier = await servers.verify(SCRIPT)
    session = open_session(await servers.tiers([tier]))
    errors = [Aborted("no message for 60 s", reason="SESSION_IDLE") for _ in range(3)]

    async def idle(current: int) -> None:
        if errors and current > 1:
            raise errors.pop()

    tier.fault = idle
    committed = await run(session, 1)
    for number in range(2, 5):
        committed += await run(session, 1, start=number)
    assert SCRIPT[:10] == committed
    session.close()


async def test_what_stays_aborted_is_told_as_unavailable(servers: Servers) -> None:
    """ABORTED is between the tiers; to the caller it means that another attempt may do better."""
    tier = await servers.verify(SCRIPT)
    session = open_session(await servers.tiers([tier]), patience_s=0)
    tier.fault = fail_in(1, Aborted("no message", reason="SESSION_IDLE"))
    with pytest.raises(Unavailable) as told:
        await run(session, 1)
    assert "SESSION_IDLE" == told.value.reason
    session.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"round": 1},
        {"num_accepted": 3, "committed_length": 8},
        {"num_accepted": -1, "committed_length": 4},
        {"committed_length": 9},
        {"num_accepted": 1},
        {"log_probs": (TokenLogProbs(1, (), ()),)},
    ],
    ids=str,
)
async def test_a_verdict_on_something_else_is_the_replicas_fault(
    servers: Servers, changes: dict[str, Any]
) -> None:
    """B96: it is not committed, and the session goes on elsewhere."""
    tiers = [await servers.verify(SCRIPT), await servers.verify(SCRIPT)]
    session = open_session(await servers.tiers(tiers))
    await run(session, 1)
    assert session.replica is not None
    broken = by_address(tiers, session.replica.address)
    broken.answer = lambda verdict: replace(verdict, **changes)
    assert SCRIPT[1:4] == await run(session, 1, start=2)
    assert broken.address != session.replica.address
    session.close()


@pytest.mark.parametrize(
    "response",
    [
        verify_pb2.VerifyResponse(),
        verify_pb2.VerifyResponse(opened=verify_pb2.VerifyOpened()),
        verify_pb2.VerifyResponse(verdict=speculation_pb2.Verdict(round=1, committed_length=4)),
        verify_pb2.VerifyResponse(
            verdict=speculation_pb2.Verdict(
                round=1, committed_length=4, kind=cast(speculation_pb2.VerdictKind.ValueType, 99)
            )
        ),
    ],
    ids=["empty", "opened", "no kind", "unknown kind"],
)
def test_an_answer_that_is_no_verdict(response: verify_pb2.VerifyResponse) -> None:
    """A replica of another version is passed over, and its caller is not told to change fields."""
    with pytest.raises(Unavailable) as failed:
        read_verdict(response, Proposal(1, 3))
    assert "PEER_FAILED" == failed.value.reason


async def test_refused_openings_are_no_deaths(servers: Servers) -> None:
    """Replicas that are loading or draining say so and are tried again, as often as it takes."""
    tier = await servers.verify(SCRIPT)
    tier.refusals = [Unavailable("draining", reason="DRAINING", retry_after_s=0.0)] * 4
    session = open_session(await servers.tiers([tier]))
    assert SCRIPT[:1] == await run(session, 1)
    assert 5 == len(tier.opens)
    session.close()


async def test_a_full_replica_is_asked_again_after_its_delay(servers: Servers) -> None:
    """RESOURCE_EXHAUSTED passes: the session is opened once there is room."""
    tier = await servers.verify(SCRIPT)
    tier.refusals = [Exhausted("full", retry_after_s=0.01)]
    session = open_session(await servers.tiers([tier]))
    assert SCRIPT[:1] == await run(session, 1)
    assert 2 == len(tier.opens)
    session.close()


async def test_a_full_tier_is_given_up_after_a_while(servers: Servers) -> None:
    """What stays full is told to the caller as it is, with its delay."""
    tier = await servers.verify(SCRIPT)
    tier.refusals = [Exhausted("full", retry_after_s=60)]
    session = open_session(await servers.tiers([tier]), patience_s=5)
    with pytest.raises(Exhausted) as full:
        await run(session, 1)
    assert 60 == full.value.retry_after_s
    assert 1 == len(tier.opens)
    session.close()


async def test_another_model_is_asked_once(servers: Servers) -> None:
    """FAILED_PRECONDITION: other replicas once each, then it is the answer."""
    tiers = [await servers.verify(SCRIPT) for _ in range(3)]
    for tier in tiers:
        tier.refusals = [FailedPrecondition("another model")] * 9
    session = open_session(await servers.tiers(tiers))
    with pytest.raises(FailedPrecondition):
        await run(session, 1)
    assert [1, 1, 1] == [len(tier.opens) for tier in tiers]
    session.close()


async def test_one_changed_replica_is_passed_over(servers: Servers) -> None:
    """FAILED_PRECONDITION of one replica: the others serve."""
    tiers = [await servers.verify(SCRIPT) for _ in range(3)]
    tiers[0].refusals = [FailedPrecondition("another model")] * 9
    for _ in range(5):
        session = open_session(await servers.tiers(tiers))
        assert SCRIPT[:4] == await run(session, 2)
        session.close()


async def test_a_bad_argument_is_never_repeated(servers: Servers) -> None:
    """INVALID_ARGUMENT is the caller's, at once, with the field as the caller knows it."""
    tier = await servers.verify(SCRIPT)
    tier.refusals = [InvalidArgument("session.sampling.min_p", "is not supported")]
    session = open_session(await servers.tiers([tier]))
    with pytest.raises(InvalidArgument) as refused:
        await run(session, 1)
    assert "sampling.min_p" == refused.value.field
    assert 1 == len(tier.opens)
    session.close()


async def test_another_proposal_after_a_refused_one(servers: Servers) -> None:
    """A refused proposal ended the stream; the next one opens it again, with what is committed."""
    tier = await servers.verify(SCRIPT)
    session = open_session(await servers.tiers([tier]))
    await run(session, 2)
    tier.fault = fail_in(3, InvalidArgument("proposal.law", "has 3 bytes, not 4"))
    with pytest.raises(InvalidArgument):
        await session.verify(Proposal(3, 7, (9, 9)))
    await tier.closed.wait()
    tier.fault = None
    verdict = await session.verify(Proposal(3, 7))
    assert (3, SCRIPT[4]) == (verdict.round, verdict.next_token_id)
    assert [1, 2, 3, *SCRIPT[:4]] == list(tier.opens[1].session.token_ids)
    assert 1 == session.num_reopened
    session.close()


@pytest.mark.parametrize("lost_in", [1, 2])
async def test_the_prompt_is_told_of_once(servers: Servers, lost_in: int) -> None:
    """A stream that is opened again asks no more for what an earlier verdict told."""
    tier = await servers.verify(SCRIPT)
    tiers = await servers.tiers([tier])
    _, target = tiers.targets.ready()[0]
    spec = replace(SPEC, sampling=SamplingParams(num_log_probs=1, num_prompt_log_probs=2))
    session = VerifierSession(tiers.targets, spec, target, VerifierBounds(20, 20))
    errors = [Unavailable("gone", retry_after_s=0.0)]

    async def fail_once(current: int) -> None:
        if current == lost_in and errors:
            raise errors.pop()

    tier.fault = fail_once
    assert SCRIPT[:4] == await run(session, 2)
    asked = [opened.session.sampling for opened in tier.opens]
    assert [True, True] == [sampling.HasField("log_prob_count") for sampling in asked]
    assert [True, lost_in == 1] == [one.HasField("prompt_log_prob_count") for one in asked]
    session.close()


async def test_a_home_is_taken_first(servers: Servers) -> None:
    """A named replica is the first choice, however busy; where it is not there it is any other."""
    home, other = await servers.verify(SCRIPT), await servers.verify(SCRIPT)
    tiers = await servers.tiers([other, home])
    _, target = tiers.targets.ready()[0]
    for address, expected in ((home.address, (6, 0)), ("127.0.0.1:1", (6, 1))):
        for _ in range(6 if address == home.address else 1):
            bounds = VerifierBounds(20, 20)
            session = VerifierSession(tiers.targets, SPEC, target, bounds, address)
            await run(session, 1)
            session.close()
        assert expected == (home.num_opened, other.num_opened)


async def test_other_models_are_never_used(servers: Servers) -> None:
    """A generation does not change its pool: another fingerprint is no way out."""
    tier = await servers.verify(SCRIPT)
    other = await servers.verify(SCRIPT)
    other.identity = replace(servers.model, fingerprint="scripted-2")
    tiers = await servers.tiers([tier, other])
    target = next(t for _, t in tiers.targets.ready() if t.model.fingerprint == "scripted-1")
    session = VerifierSession(tiers.targets, SPEC, target, VerifierBounds(20, 0.5))
    await run(session, 1)
    await tier.stop()
    with pytest.raises(Unavailable):
        await run(session, 1, start=2)
    assert 0 == other.num_opened
    session.close()


async def test_the_deadline_is_the_replicas_too(servers: Servers) -> None:
    """The inner call ends with the caller's deadline, and is not opened again."""
    tier = await servers.verify(SCRIPT)

    async def hang(current: int) -> None:
        await asyncio.Event().wait()

    tier.fault = hang
    tiers = await servers.tiers([tier])
    deadline_s = asyncio.get_running_loop().time() + 2
    session = open_session(tiers, deadline_s=deadline_s)
    with pytest.raises(DeadlineExceeded):
        await run(session, 1)
    assert 1 == len(tier.opens)
    await tier.closed.wait()
    session.close()


async def test_cancelling_ends_the_session(servers: Servers) -> None:
    """A cancelled round closes the stream, and the replica is free at once."""
    tier = await servers.verify(SCRIPT)
    reached = asyncio.Event()

    async def hang(current: int) -> None:
        reached.set()
        await asyncio.Event().wait()

    tier.fault = hang
    session = open_session(await servers.tiers([tier]))
    rounds = asyncio.create_task(run(session, 1))
    await reached.wait()
    rounds.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rounds
    session.close()
    await tier.closed.wait()
    assert 0 == tier.num_open
