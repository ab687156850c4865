"""One session of the verify tier, through real gRPC: rounds, and what is refused in them."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from paceline.errors import (
    Aborted,
    FailedPrecondition,
    InvalidArgument,
    PacelineError,
)
from paceline.records import (
    LawEncoding,
    Proposal,
    SamplingParams,
    VerdictKind,
    VerificationRule,
)
from paceline.v1 import verify_pb2

A, B, C = 0, 1, 2


def sparse(*laws: dict[int, int]) -> bytes:
    """The bytes of laws, as weights by id."""
    words = [word for law in laws for word in (len(law), *law, *law.values())]
    return struct.pack(f"<{len(words)}I", *words)


def chain(*token_ids: int, round: int = 1, base_length: int = 1) -> Proposal:
    """A proposal of point masses."""
    return Proposal(round, base_length, token_ids)


# Rounds ------------------------------------------------------------------------------------------


async def test_empty_proposal_decodes_one_token(tiers: Any, rounds: Any, cycle: str) -> None:
    """B93: no draft tokens is plain decoding."""
    tier = await tiers.verify(cycle)
    peer = await tier.open(rounds.spec([A]))
    verdict = await peer.verify(chain())
    assert (1, 0, B, VerdictKind.PLAIN, 2) == (
        verdict.round,
        verdict.num_accepted,
        verdict.next_token_id,
        verdict.kind,
        verdict.committed_length,
    )


async def test_first_proposal_may_follow_open_at_once(tiers: Any, rounds: Any, cycle: str) -> None:
    """Opened comes first, then the verdict; nobody waits a round trip for it."""
    tier = await tiers.verify(cycle)
    peer = tier.connect()
    await tier.send_open(peer, rounds.spec([A]))
    await peer.send_proposal(chain())
    kinds = [(await peer.receive()).WhichOneof("message") for _ in range(2)]
    assert ["opened", "verdict"] == kinds


@pytest.mark.parametrize(
    "rule", [VerificationRule.REJECTION_BLOCK, VerificationRule.REJECTION_TOKEN]
)
@pytest.mark.parametrize(
    ("draft_token_ids", "num_accepted", "next_token_id", "kind"),
    [
        ((B, C, A), 3, B, VerdictKind.BONUS),
        ((B, C, B), 2, A, VerdictKind.RECOVERED),
        ((B, A, A), 1, C, VerdictKind.RECOVERED),
        ((C, C, A), 0, B, VerdictKind.RECOVERED),
        ((B,), 1, C, VerdictKind.BONUS),
        ((A,), 0, B, VerdictKind.RECOVERED),
    ],
)
async def test_verdict(
    tiers: Any,
    rounds: Any,
    cycle: str,
    rule: VerificationRule,
    draft_token_ids: tuple[int, ...],
    num_accepted: int,
    next_token_id: int,
    kind: VerdictKind,
) -> None:
    """B09, B96: full, partial and zero acceptance, and a next round that continues from each."""
    tier = await tiers.verify(cycle)
    peer = await tier.open(rounds.spec([A], rule=rule))
    verdict = await peer.verify(chain(*draft_token_ids))
    assert (num_accepted, next_token_id, kind, 2 + num_accepted) == (
        verdict.num_accepted,
        verdict.next_token_id,
        verdict.kind,
        verdict.committed_length,
    )
    after = await peer.verify(Proposal(2, verdict.committed_length))
    assert ((next_token_id + 1) % 3, VerdictKind.PLAIN) == (after.next_token_id, after.kind)


async def test_opened_says_the_limits(tiers: Any, rounds: Any, cycle: str) -> None:
    """B95: how long a proposal may be is announced before the first one."""
    tier = await tiers.verify(cycle, max_draft_tokens=4, max_length=40)
    opened = (await tier.open(rounds.spec([A]))).opened
    assert (0, 40, 4) == (opened.cached_prefix_length, opened.max_length, opened.max_draft_tokens)


async def test_verdict_carries_the_load(tiers: Any, rounds: Any, cycle: str) -> None:
    """The gateway sees how busy the replica is without asking."""
    tier = await tiers.verify(cycle)
    peers = [await tier.open(rounds.spec([A])) for _ in range(3)]
    load = (await peers[0].verify(chain(B, C))).load
    assert (3, 3, False) == (load.num_open_sessions, load.num_rows, load.is_draining)
    assert 1 == load.num_held_blocks


async def test_reopening_continues(tiers: Any, rounds: Any, cycle: str) -> None:
    """A new stream with all that is committed goes on where the lost one was, counting from 1."""
    tier = await tiers.verify(cycle)
    first = await tier.open(rounds.spec([A]))
    verdict = await first.verify(chain(B))
    first.cancel()
    second = await tier.open(rounds.spec([A, B, verdict.next_token_id], prompt_length=1))
    assert A == (await second.verify(chain(base_length=3))).next_token_id


# Greedy against the stock model ------------------------------------------------------------------


async def test_plain_decoding_is_the_stock_models(tiers: Any, rounds: Any, networks: Any) -> None:
    """B11: empty proposals through the service give what the stock forward gives."""
    tier = await tiers.verify(networks.find())
    peer = await tier.open(rounds.spec([5, 6, 7]))
    transcript = await rounds.run(peer, None, 3, 40, lambda _: 0)
    assert networks.generate([5, 6, 7], 40) == transcript.token_ids


async def test_padded_rows_are_never_emitted(tiers: Any, rounds: Any, networks: Any) -> None:
    """B44, B47: the head has 264 rows, and the vocabulary 258."""
    tier = await tiers.verify(networks.find())
    assert 258 == (await tier.identity()).vocabulary_size
    hot = SamplingParams(temperature=100.0)
    peer = await tier.open(rounds.spec([5], sampling=hot))
    transcript = await rounds.run(peer, None, 1, 200, lambda _: 0)
    assert max(transcript.token_ids) < 258
    assert len(set(transcript.token_ids)) > 50


@pytest.mark.parametrize("num_room", [1, 2, 3])
async def test_end_of_the_context(tiers: Any, rounds: Any, networks: Any, num_room: int) -> None:
    """B63: the last place of the context is filled, and nothing is ever run behind it."""
    tier = await tiers.verify(networks.find(), max_length=20)
    prompt = list(range(2, 22 - num_room))
    expected = networks.generate(prompt, num_room)
    peer = await tier.open(rounds.spec(prompt))
    verdict = await peer.verify(chain(*expected[:-1], base_length=len(prompt)))
    assert (num_room - 1, expected[-1], 20) == (
        verdict.num_accepted,
        verdict.next_token_id,
        verdict.committed_length,
    )
    await peer.send_proposal(chain(round=2, base_length=20))
    error = await peer.refusal()
    assert isinstance(error, InvalidArgument)
    assert "longest sequence of 20" in error.message


# Refusals of a proposal --------------------------------------------------------------------------


async def refusal(tiers: Any, rounds: Any, model: str, proposal: Proposal) -> PacelineError:
    """What the first proposal of a session behind `a` is refused with."""
    tier = await tiers.verify(model, max_draft_tokens=4, max_length=40)
    peer = await tier.open(rounds.spec([A], sampling=SamplingParams()))
    await peer.send_proposal(proposal)
    error: PacelineError = await peer.refusal()
    return error


@pytest.mark.parametrize("number", [0, 2, -1])
async def test_round_out_of_order(tiers: Any, rounds: Any, cycle: str, number: int) -> None:
    """B97: a proposal for another round is ABORTED."""
    error = await refusal(tiers, rounds, cycle, chain(B, round=number))
    assert isinstance(error, Aborted)
    assert ("ROUND_OUT_OF_ORDER", {"TRUE_ROUND": "0", "TRUE_LENGTH": "1"}) == (
        error.reason,
        error.metadata,
    )


@pytest.mark.parametrize("base_length", [0, 2, -1])
async def test_stale_base(tiers: Any, rounds: Any, cycle: str, base_length: int) -> None:
    """B97: a proposal that continues something else is ABORTED with the true length."""
    error = await refusal(tiers, rounds, cycle, chain(B, base_length=base_length))
    assert isinstance(error, Aborted)
    assert ("LENGTH_MISMATCH", {"TRUE_LENGTH": "1"}) == (error.reason, error.metadata)


async def test_true_length_follows_the_session(tiers: Any, rounds: Any, cycle: str) -> None:
    """B97: a duplicate of a proposal that was answered is refused with what is committed now."""
    tier = await tiers.verify(cycle)
    peer = await tier.open(rounds.spec([A]))
    await peer.verify(chain(B, C))
    await peer.send_proposal(chain(B, C))
    error = await peer.refusal()
    assert {"TRUE_ROUND": "1", "TRUE_LENGTH": "4"} == error.metadata


async def test_too_many_draft_tokens(tiers: Any, rounds: Any, cycle: str) -> None:
    """B95: one more than announced is refused, with the limit."""
    error = await refusal(tiers, rounds, cycle, chain(B, C, A, B, C))
    assert isinstance(error, InvalidArgument)
    assert ("proposal.token_ids", "at most 4 draft tokens are verified, got 5") == (
        error.field,
        error.description,
    )


@pytest.mark.parametrize("token_id", [3, 2**32 - 1])
async def test_draft_token_out_of_range(tiers: Any, rounds: Any, cycle: str, token_id: int) -> None:
    """B66: an id that the target does not know."""
    error = await refusal(tiers, rounds, cycle, chain(B, token_id))
    assert isinstance(error, InvalidArgument)
    assert ("proposal.token_ids", "ids must be under 3") == (error.field, error.description)


@pytest.mark.parametrize(
    ("encoding", "law", "said"),
    [
        (LawEncoding.POINT_MASS, b"\x00", "must be empty"),
        (LawEncoding.SPARSE, b"", "ends within draft token 0"),
        (LawEncoding.SPARSE, b"\x01\x00\x00", "no whole number of uint32"),
        (LawEncoding.SPARSE, sparse({B: 1}) + bytes(4), "4 bytes follow"),
        (LawEncoding.SPARSE, struct.pack("<I", 2**32 - 1), "ends within draft token 0"),
        (LawEncoding.SPARSE, sparse({B: 1, 3: 1}), "id 3 is not in the vocabulary"),
        (LawEncoding.SPARSE, sparse({B: 0}), "weights sum to 0"),
        (LawEncoding.SPARSE, struct.pack("<5I", 2, B, B, 1, 1), "not distinct"),
        (LawEncoding.SPARSE, sparse({A: 1, C: 1}), "gives draft token 0 (id 1) no probability"),
        (LawEncoding.DENSE, struct.pack("<2f", 0.5, 0.5), "has 8 bytes, not 12"),
        (LawEncoding.DENSE, struct.pack("<3f", 0, 0, 0), "sums to 0"),
        (LawEncoding.DENSE, struct.pack("<3f", 0.5, float("nan"), 0.5), "not finite"),
        (LawEncoding.DENSE, struct.pack("<3f", 0.5, 0.0, 0.5), "no probability"),
        (LawEncoding.SHARED_NOISE, b"", "coupled rule alone"),
    ],
)
async def test_malformed_law(
    tiers: Any, rounds: Any, cycle: str, encoding: LawEncoding, law: bytes, said: str
) -> None:
    """B01, B02: a law that cannot be the one drawn from is refused, never replaced."""
    error = await refusal(tiers, rounds, cycle, Proposal(1, 1, (B,), encoding, law))
    assert isinstance(error, InvalidArgument)
    assert "proposal.law" == error.field
    assert said in error.description


# Refusals of a session ---------------------------------------------------------------------------


async def test_proposal_before_open(tiers: Any, cycle: str) -> None:
    """A session is opened first."""
    tier = await tiers.verify(cycle)
    peer = tier.connect()
    await peer.send_proposal(chain())
    error = await peer.refusal()
    assert isinstance(error, InvalidArgument)
    assert "open" == error.field


async def test_empty_message(tiers: Any, rounds: Any, cycle: str) -> None:
    """A message with nothing in it is neither."""
    tier = await tiers.verify(cycle)
    peer = await tier.open(rounds.spec([A]))
    await peer.send()
    error = await peer.refusal()
    assert isinstance(error, InvalidArgument)
    assert "proposal" == error.field


async def test_second_open(tiers: Any, rounds: Any, cycle: str) -> None:
    """One stream, one session."""
    tier = await tiers.verify(cycle)
    peer = await tier.open(rounds.spec([A]))
    await tier.send_open(peer, rounds.spec([A]))
    error = await peer.refusal()
    assert isinstance(error, InvalidArgument)
    assert "proposal" == error.field


async def test_another_model_is_expected(tiers: Any, rounds: Any, cycle: str) -> None:
    """A generation never changes models; both fingerprints are printed."""
    tier = await tiers.verify(cycle)
    peer = tier.connect()
    await tier.send_open(peer, rounds.spec([A]), "other")
    error = await peer.refusal()
    assert isinstance(error, FailedPrecondition)
    assert "model other is expected" in error.message
    assert (await tier.identity()).fingerprint in error.message


async def test_the_model_that_is_expected(tiers: Any, rounds: Any, cycle: str) -> None:
    """The fingerprint that DescribeModel gives opens a session."""
    tier = await tiers.verify(cycle)
    peer = await tier.open(rounds.spec([A]), (await tier.identity()).fingerprint)
    assert B == (await peer.verify(chain())).next_token_id


@pytest.mark.parametrize(
    ("token_ids", "said"),
    [
        ([A, 3], "ids must be under 3"),
        ([A] * 40, "must be fewer than 40, the model's longest sequence; got 40"),
        ([A] * 1000, "must be fewer than 40, the model's longest sequence; got 1000"),
    ],
)
async def test_tokens_that_do_not_fit(
    tiers: Any, rounds: Any, cycle: str, token_ids: list[int], said: str
) -> None:
    """B66, B67: refused with the limit, before anything is run."""
    tier = await tiers.verify(cycle, max_length=40)
    peer = tier.connect()
    await tier.send_open(peer, rounds.spec(token_ids))
    error = await peer.refusal()
    assert isinstance(error, InvalidArgument)
    assert ("session.token_ids", said) == (error.field, error.description)


async def test_malformed_session_is_refused(tiers: Any, cycle: str) -> None:
    """An Open without a session speaks no revision of the protocol."""
    tier = await tiers.verify(cycle)
    peer = tier.connect()
    await peer.send(open=verify_pb2.VerifyOpen())
    error = await peer.refusal()
    assert isinstance(error, FailedPrecondition)
    assert "PROTOCOL_REVISION" == error.reason


async def test_bad_requests_leave_others_alone(tiers: Any, rounds: Any, networks: Any) -> None:
    """B66: five sessions decode on while others of every bad kind come and go."""
    tier = await tiers.verify(networks.find())
    prompts = [[5 + number, 6, 7] for number in range(5)]
    peers = [await tier.open(rounds.spec(prompt)) for prompt in prompts]

    async def misbehave() -> set[str]:
        reasons = set()
        for proposal in (
            chain(258, base_length=2),
            chain(*[3] * 17, base_length=2),
            chain(3, round=5, base_length=2),
            Proposal(1, 2, (3,), LawEncoding.SPARSE, b"\x00"),
        ):
            peer = await tier.open(rounds.spec([4, 4]))
            await peer.send_proposal(proposal)
            reasons.add((await peer.refusal()).reason)
        for session in (
            rounds.spec([258]),
            rounds.spec([3] * 300),
            rounds.spec([3], sampling=SamplingParams(temperature=float("nan"))),
        ):
            peer = tier.connect()
            await tier.send_open(peer, session)
            reasons.add((await peer.refusal()).reason)
        return reasons

    *transcripts, reasons = await rounds.together(
        *(rounds.run(peer, None, 3, 20, lambda _: 0) for peer in peers), misbehave()
    )
    assert [networks.generate(prompt, 20) for prompt in prompts] == [
        transcript.token_ids for transcript in transcripts
    ]
    assert {"INVALID_ARGUMENT", "ROUND_OUT_OF_ORDER"} == reasons
    assert 5 == (await tier.load()).num_open_sessions
