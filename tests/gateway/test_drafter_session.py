"""A session on the draft tier: what arrives is checked, and its absence costs speed only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gateway.drafter_session import DraftChoice, DrafterSession
from gateway.tiers import Tiers
from paceline.errors import (
    Aborted,
    Exhausted,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PacelineError,
    Unavailable,
)
from paceline.records import (
    Advance,
    DraftSource,
    LawEncoding,
    Proposal,
    SamplingParams,
    SessionSpec,
    VerificationRule,
)

if TYPE_CHECKING:
    from tests.gateway.conftest import Servers

Eventually = Callable[[Callable[[], bool]], Awaitable[None]]

SCRIPT = list(range(40, 100))
SPEC = SessionSpec(
    (1, 2, 3), 3, SamplingParams(), VerificationRule.REJECTION_BLOCK, seed=7, request_id="test"
)


class Rounds:
    """Plays the loop's part: each round commits the proposal and one token more."""

    def __init__(
        self, servers: Servers, tiers: Tiers, source: str = "", stall_s: float = 20
    ) -> None:
        choice = DraftChoice(source, servers.model, stall_s)
        self.session = DrafterSession(tiers.sources, SPEC, choice)
        self.num_committed = 0
        self.round = 1
        self.new_token_ids: Sequence[int] = ()
        self.commit(0)

    def commit(self, num_accepted: int) -> None:
        """A verdict came."""
        length = num_accepted + 1
        self.new_token_ids = SCRIPT[self.num_committed : self.num_committed + length]
        self.num_committed += length
        self.round += 1

    async def propose(self, num_draft_tokens: int = 3) -> Proposal:
        """The proposal of this round, which is then committed."""
        advance = Advance(
            self.round, 3 + self.num_committed, tuple(self.new_token_ids), num_draft_tokens
        )
        proposal = await self.session.propose(advance)
        assert (advance.round, advance.committed_length) == (proposal.round, proposal.base_length)
        expected = SCRIPT[self.num_committed : self.num_committed + len(proposal.token_ids)]
        assert tuple(expected) == proposal.token_ids
        self.commit(len(proposal.token_ids))
        return proposal

    @property
    def is_connected(self) -> bool:
        """Whether a stream is there to ask: a replica may know of it before its client does."""
        return self.session._stream is not None

    def has_ended(self) -> bool:
        """Whether the session looks for no replica any more."""
        task = self.session._task
        return task is not None and task.done()

    async def opened(self, eventually: Eventually) -> Rounds:
        """Waits until the replica has acknowledged the session."""
        await eventually(lambda: self.session.source != "")
        return self


async def test_proposals_of_one_stream(servers: Servers, eventually: Eventually) -> None:
    """One stream; Open says everything, and each advance carries what was committed since."""
    tier = await servers.draft(SCRIPT)
    rounds = await Rounds(servers, await servers.tiers([], [tier])).opened(eventually)
    lengths = [len((await rounds.propose(k)).token_ids) for k in (3, 1, 2)]
    assert [3, 1, 2] == lengths
    assert 1 == tier.num_opened
    assert [1, 2, 3] == list(tier.opens[0].session.token_ids)
    assert servers.model.tokenizer_fingerprint == tier.opens[0].target.tokenizer_fingerprint
    assert [(40,), (41, 42, 43, 44), (45, 46)] == [a.new_token_ids for a in tier.advances]
    assert {} == dict(rounds.session.fallbacks)
    assert "scripted" == rounds.session.source
    assert rounds.session.num_bytes > 100
    rounds.session.close()
    await tier.closed.wait()


async def test_the_law_passes_undecoded(servers: Servers, eventually: Eventually) -> None:
    """B100: the bytes of the law and its encoding reach the loop as they were sent."""
    law = bytes(range(200))
    tier = await servers.draft(SCRIPT)
    tier.answers = lambda p: [replace(p, encoding=LawEncoding.SPARSE, law=law, draft_s=0.25)]
    rounds = await Rounds(servers, await servers.tiers([], [tier])).opened(eventually)
    proposal = await rounds.propose()
    assert (LawEncoding.SPARSE, law, 0.25) == (proposal.encoding, proposal.law, proposal.draft_s)
    rounds.session.close()


@pytest.mark.parametrize("source", ["", "none"])
async def test_without_a_draft_tier_nothing_is_a_fallback(servers: Servers, source: str) -> None:
    """Plain decoding on purpose: empty proposals, no stream, nothing counted."""
    tier = await servers.draft(SCRIPT)
    tiers = await servers.tiers([], [tier] if source else [])
    rounds = Rounds(servers, tiers, source)
    assert () == (await rounds.propose()).token_ids
    assert ({}, 0) == (dict(rounds.session.fallbacks), tier.num_opened)
    rounds.session.close()


async def test_length_zero_keeps_warm(servers: Servers, eventually: Eventually) -> None:
    """At k = 0 the draft hears what was committed, answers nothing, and is not missed."""
    tier = await servers.draft(SCRIPT)
    rounds = await Rounds(servers, await servers.tiers([], [tier])).opened(eventually)
    for _ in range(3):
        assert () == (await rounds.propose(0)).token_ids
    assert 2 == len((await rounds.propose(2)).token_ids)
    assert [0, 0, 0, 2] == [advance.num_draft_tokens for advance in tier.advances]
    assert {} == dict(rounds.session.fallbacks)
    rounds.session.close()


async def test_a_generation_outgrows_the_drafts_context(
    servers: Servers, eventually: Eventually
) -> None:
    """B62: past the draft's context it is asked no more, its session ends, and that is told."""
    tier = await servers.draft(SCRIPT, max_length=10)
    rounds = await Rounds(servers, await servers.tiers([], [tier])).opened(eventually)
    assert [3, 1] == [len((await rounds.propose(k)).token_ids) for k in (3, 1)]
    assert [0, 0, 0] == [len((await rounds.propose(k)).token_ids) for k in (3, 0, 3)]
    await tier.closed.wait()
    assert ([4, 8], 1) == ([a.committed_length for a in tier.advances], tier.num_opened)
    assert {"draft_context": 2} == dict(rounds.session.fallbacks)
    rounds.session.close()


async def test_the_drafts_limit_is_kept(servers: Servers, eventually: Eventually) -> None:
    """B95: a draft is never asked for more than it announced."""
    tier = await servers.draft(SCRIPT, max_draft_tokens=2)
    rounds = await Rounds(servers, await servers.tiers([], [tier])).opened(eventually)
    assert 2 == len((await rounds.propose(8)).token_ids)
    assert 2 == tier.advances[0].num_draft_tokens
    rounds.session.close()


async def test_an_empty_answer_counts_as_one(servers: Servers, eventually: Eventually) -> None:
    """B93: a draft without an idea is legal, and the round is plain."""
    tier = await servers.draft(SCRIPT)
    tier.answers = lambda p: [Proposal(p.round, p.base_length)]
    rounds = await Rounds(servers, await servers.tiers([], [tier])).opened(eventually)
    assert () == (await rounds.propose()).token_ids
    assert {"empty": 1} == dict(rounds.session.fallbacks)
    rounds.session.close()


async def test_stale_duplicated_and_swapped_answers(
    servers: Servers, eventually: Eventually
) -> None:
    """B97: answers of other rounds are dropped and counted, and the right one is used."""
    tier = await servers.draft(SCRIPT)
    earlier: list[Proposal] = []

    def answers(proposal: Proposal) -> list[Proposal]:
        moved = replace(proposal, base_length=proposal.base_length - 1)
        earlier.append(proposal)
        return [earlier[0], moved, proposal, proposal] if len(earlier) > 1 else [proposal]

    tier.answers = answers
    rounds = await Rounds(servers, await servers.tiers([], [tier])).opened(eventually)
    assert [3, 3, 3] == [len((await rounds.propose()).token_ids) for _ in range(3)]
    await eventually(lambda: rounds.session.num_stale == 6)
    assert {} == dict(rounds.session.fallbacks)
    rounds.session.close()


@pytest.mark.parametrize(
    "broken",
    [
        lambda p: replace(p, token_ids=(*p.token_ids, 1)),
        lambda p: replace(p, token_ids=(257,)),
        lambda p: replace(p, token_ids=(2**32 - 1,)),
    ],
)
async def test_a_broken_proposal_never_reaches_the_target(
    servers: Servers, eventually: Eventually, broken: Callable[[Proposal], Proposal]
) -> None:
    """Too long or outside the vocabulary: the round is plain, and the draft is opened again."""
    tier = await servers.draft(SCRIPT)
    tier.answers = lambda p: [broken(p)]
    rounds = await Rounds(servers, await servers.tiers([], [tier])).opened(eventually)
    assert () == (await rounds.propose()).token_ids
    assert {"lost": 1} == dict(rounds.session.fallbacks)
    tier.answers = None
    await eventually(lambda: tier.num_opened == 2)
    rounds.session.close()


@pytest.mark.parametrize("error", [Unavailable("gone", retry_after_s=0.0), Aborted("out of order")])
async def test_a_lost_draft_comes_back(
    servers: Servers, eventually: Eventually, error: PacelineError
) -> None:
    """B98: the round is plain; later the draft is back, opened with all that is committed."""
    tier = await servers.draft(SCRIPT)
    rounds = await Rounds(servers, await servers.tiers([], [tier])).opened(eventually)
    await rounds.propose()

    async def fail(current: int) -> None:
        tier.fault = None
        raise error

    tier.fault = fail
    assert () == (await rounds.propose()).token_ids
    assert {"lost": 1} == dict(rounds.session.fallbacks)
    await eventually(lambda: tier.num_opened == 2 and rounds.is_connected)
    num_plain = 0
    while not (await rounds.propose()).token_ids:
        num_plain += 1
    assert num_plain == rounds.session.fallbacks["lost"] - 1
    assert [1, 2, 3, *SCRIPT[:5]] == list(tier.opens[1].session.token_ids)[:8]
    rounds.session.close()


async def test_a_killed_draft_that_returns(servers: Servers, eventually: Eventually) -> None:
    """B98: killed and started again with empty state at the same address."""
    tier = await servers.draft(SCRIPT)
    tiers = await servers.tiers([], [tier])
    rounds = await Rounds(servers, tiers).opened(eventually)
    await rounds.propose()
    await tier.stop()
    assert () == (await rounds.propose()).token_ids
    assert 1 == sum(rounds.session.fallbacks.values())
    await tier.serve(tier.address)
    await eventually(lambda: tier.num_opened == 2 and rounds.is_connected)
    while not (await rounds.propose()).token_ids:
        await asyncio.sleep(0)
    rounds.session.close()


async def test_a_frozen_draft_is_dropped_once(servers: Servers, eventually: Eventually) -> None:
    """B98: one stall bound is paid, then rounds are plain until the draft answers again."""
    tier = await servers.draft(SCRIPT)

    async def hang(current: int) -> None:
        await asyncio.Event().wait()

    rounds = Rounds(servers, await servers.tiers([], [tier]), stall_s=2)
    await rounds.opened(eventually)
    tier.fault = hang
    assert () == (await rounds.propose()).token_ids
    assert {"stalled": 1} == dict(rounds.session.fallbacks)
    await tier.closed.wait()
    tier.fault = None
    await eventually(lambda: tier.num_opened == 2 and rounds.is_connected)
    while not (await rounds.propose()).token_ids:
        await asyncio.sleep(0)
    rounds.session.close()


@pytest.mark.parametrize(
    "error", [FailedPrecondition("other ids"), NotFound("no source"), InvalidArgument("f", "bad")]
)
async def test_what_will_never_fit_ends_the_generation(
    servers: Servers, eventually: Eventually, error: PacelineError
) -> None:
    """The first opening refused for good is the caller's error."""
    tier = await servers.draft(SCRIPT)
    tier.refusals = [error]
    rounds = Rounds(servers, await servers.tiers([], [tier]))
    await eventually(rounds.has_ended)
    with pytest.raises(type(error)):
        await rounds.propose()
    rounds.session.close()


async def test_a_replica_that_changed_later_is_no_error(
    servers: Servers, eventually: Eventually
) -> None:
    """Once a session was open, a refusal can only be a changed replica: plain rounds."""
    tier = await servers.draft(SCRIPT)
    rounds = await Rounds(servers, await servers.tiers([], [tier])).opened(eventually)

    async def fail(current: int) -> None:
        tier.refusals = [FailedPrecondition("now another model")] * 100
        raise Unavailable("restarting", retry_after_s=0.0)

    tier.fault = fail
    await rounds.propose()
    await eventually(lambda: len(tier.opens) == 3)
    assert () == (await rounds.propose()).token_ids
    rounds.session.close()


@pytest.mark.parametrize(
    "error",
    [Exhausted("full", retry_after_s=0.0), Unavailable("x", reason="DRAINING", retry_after_s=0.0)],
)
async def test_a_full_draft_is_asked_again(
    servers: Servers, eventually: Eventually, error: PacelineError
) -> None:
    """B89: no room on the draft tier: the target goes on alone, and the draft joins later."""
    tier = await servers.draft(SCRIPT)
    tier.refusals = [error, error]
    rounds = Rounds(servers, await servers.tiers([], [tier]))
    await eventually(lambda: len(tier.opens) == 2)
    await rounds.propose()
    assert {"refused"} >= set(rounds.session.fallbacks)
    await eventually(lambda: tier.num_opened == 1)
    rounds.session.close()


async def test_no_replica_yet(servers: Servers, eventually: Eventually) -> None:
    """A draft tier that is configured and away: plain rounds, counted."""
    tier = await servers.draft(SCRIPT)
    tiers = await servers.tiers([], [tier])
    await tier.stop()
    await eventually(lambda: not tiers.sources.ready())
    rounds = Rounds(servers, tiers)
    await eventually(lambda: rounds.session._absence == "no_replica")
    assert () == (await rounds.propose()).token_ids
    assert {"no_replica": 1} == dict(rounds.session.fallbacks)
    rounds.session.close()


async def test_only_sources_that_fit_are_opened(servers: Servers, eventually: Eventually) -> None:
    """Of two replicas the one whose source has the target's tokenizer is used."""
    other = replace(servers.model, tokenizer_fingerprint="other")
    misfit = await servers.draft(SCRIPT, sources=(DraftSource("scripted", other),))
    fit = await servers.draft(SCRIPT, sources=(DraftSource("scripted", servers.model),))
    tiers = await servers.tiers([], [misfit, fit])
    for _ in range(4):
        rounds = await Rounds(servers, tiers, "scripted").opened(eventually)
        assert 3 == len((await rounds.propose()).token_ids)
        rounds.session.close()
    assert (0, 4) == (misfit.num_opened, fit.num_opened)


async def test_a_draft_that_is_given_up(servers: Servers, eventually: Eventually) -> None:
    """The session ends and is not opened again; this round and those that follow are counted."""
    tier = await servers.draft(SCRIPT)
    rounds = await Rounds(servers, await servers.tiers([], [tier])).opened(eventually)
    assert 3 == len((await rounds.propose()).token_ids)
    rounds.session.give_up("malformed")
    await tier.closed.wait()
    for number in (2, 3, 4):
        assert () == (await rounds.propose()).token_ids
        assert {"malformed": number} == dict(rounds.session.fallbacks)
    assert 1 == len(tier.opens)
    rounds.session.close()


async def test_closing_while_waiting(servers: Servers, eventually: Eventually) -> None:
    """A session that is closed in a round is closed on the replica at once."""
    tier = await servers.draft(SCRIPT)
    reached = asyncio.Event()

    async def hang(current: int) -> None:
        reached.set()
        await asyncio.Event().wait()

    rounds = await Rounds(servers, await servers.tiers([], [tier])).opened(eventually)
    tier.fault = hang
    waiting = asyncio.create_task(rounds.propose())
    await reached.wait()
    waiting.cancel()
    rounds.session.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await tier.closed.wait()


async def test_a_generation_that_ends_while_its_draft_opens(
    servers: Servers, eventually: Eventually
) -> None:
    """The call that is being opened ends too, and not at the draft tier's idle timeout."""
    tier = await servers.draft(SCRIPT)
    tiers = await servers.tiers([], [tier])
    for num_yields in range(12):
        rounds = Rounds(servers, tiers)
        for _ in range(num_yields):
            await asyncio.sleep(0)
        rounds.session.close()
    rounds = await Rounds(servers, tiers).opened(eventually)
    rounds.session.close()
    async with asyncio.timeout(30):  # at the idle timeout of a minute they would end anyhow
        await eventually(lambda: tier.num_calls == 0)
