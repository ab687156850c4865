"""A model as a source: what it draws, what it ships, and what of it is still in the cache."""

from __future__ import annotations

import random
from typing import Any

import pytest

from paceline.engine.draws import Draws, Role
from paceline.engine.law import IntegerLaw, decode_laws
from paceline.records import Advance, LawEncoding, SamplingParams

PROMPT = [5, 6, 7]
SAMPLED = SamplingParams()


async def test_greedy_is_a_point_mass(tiers: Any, rounds: Any, networks: Any) -> None:
    """B06: a token taken by argmax is not shipped with a softmax."""
    tier = await tiers.draft(networks.find())
    peer = await tier.open(rounds.spec(PROMPT))
    proposal = await peer.draft(Advance(1, 3, (), 4))
    assert (LawEncoding.POINT_MASS, b"", 4) == (
        proposal.encoding,
        proposal.law,
        len(proposal.token_ids),
    )


@pytest.mark.parametrize("sampling", [SAMPLED, SamplingParams(0.7, top_k=2)], ids=["all", "two"])
async def test_shipped_weights_are_those_drawn_from(
    tiers: Any, rounds: Any, networks: Any, sampling: SamplingParams
) -> None:
    """B02: drawing again from what was shipped, with the session's draws, gives the same tokens."""
    tier = await tiers.draft(networks.find())
    peer = await tier.open(rounds.spec(PROMPT, seed=11, sampling=sampling))
    proposal = await peer.draft(Advance(1, 3, (), 6))
    assert (LawEncoding.SPARSE, 6) == (proposal.encoding, len(proposal.token_ids))
    draws, total = Draws(11), 2**30
    for position, law in enumerate(decode_laws(proposal, 258)):
        assert len(law.token_ids) <= min(64, sampling.top_k or 64)
        weights = (law.probabilities * total).round().astype(int)
        assert total == weights.sum()
        again = IntegerLaw(law.token_ids, weights).draw(draws.bits(3, position, Role.DRAFT))
        assert proposal.token_ids[position] == again


async def test_law_of_a_table(tiers: Any, rounds: Any, write_table: Any) -> None:
    """B01: what is shipped is the draft's law, to the rounding of integer weights."""
    q = [0.4, 0.4, 0.2]
    tier = await tiers.draft(write_table(*q))
    peer = await tier.open(rounds.spec([0], sampling=SAMPLED))
    for law in decode_laws(await peer.draft(Advance(1, 1, (), 3)), 3):
        assert q == pytest.approx(law.probabilities.tolist(), abs=1e-7)


async def test_draws_follow_place_and_seed(tiers: Any, rounds: Any, write_table: Any) -> None:
    """B40: the same session drafts the same block; another seed or place another one."""
    tier = await tiers.draft(write_table(*[0.1] * 10))
    blocks = []
    for seed, prompt in ((1, [0]), (1, [0]), (2, [0]), (1, [0, 0])):
        peer = await tier.open(rounds.spec(prompt, sampling=SAMPLED, seed=seed))
        blocks.append((await peer.draft(Advance(1, len(prompt), (), 12))).token_ids)
    assert blocks[0] == blocks[1]
    assert 3 == len(set(blocks))


# Stops and limits --------------------------------------------------------------------------------


async def test_stop_token_ends_the_chain(tiers: Any, rounds: Any, networks: Any) -> None:
    """B28: nothing follows a stop token, and the session lives on when the target rejects it."""
    greedy = networks.generate(PROMPT, 12)
    stop = greedy[1]
    sampling = SamplingParams(0.0, stop_token_ids=(stop,))
    tier = await tiers.draft(networks.find())
    peer = await tier.open(rounds.spec(PROMPT, sampling=sampling))
    proposal = await peer.draft(Advance(1, 3, (), 4))
    assert tuple(greedy[: greedy.index(stop) + 1]) == proposal.token_ids
    rejected = (greedy[0], (stop + 1) % 258)
    after = networks.generate([*PROMPT, *rejected], 3)
    proposal = await peer.draft(Advance(2, 5, rejected, 3))
    assert tuple(after)[: len(proposal.token_ids)] == proposal.token_ids
    assert len(proposal.token_ids) == 3 or proposal.token_ids[-1] == stop


@pytest.mark.parametrize("stops", [(), (0,), (1,)], ids=["none", "first", "never"])
async def test_time_does_not_tell_what_was_drawn(
    tiers: Any, rounds: Any, write_table: Any, stops: tuple[int, ...]
) -> None:
    """A block takes as many steps with a stop token in it as without.

    Else dropping a late block would depend on its tokens, and bias the output.
    """
    name = write_table(1.0, 0.0)
    tier = await tiers.draft(name)
    runner = tier.service._drafters[name].engine._runner
    num_steps, run_as_ever = [0], runner.run

    def count(step: Any) -> Any:
        num_steps[0] += 1
        return run_as_ever(step)

    runner.run = count
    sampling = SamplingParams(stop_token_ids=stops)
    peer = await tier.open(rounds.spec([1], sampling=sampling))
    proposal = await peer.draft(Advance(1, 1, (), 6))
    assert ((0,) if stops == (0,) else (0,) * 6, 6) == (proposal.token_ids, num_steps[0])


@pytest.mark.parametrize(
    ("banned", "expected"), [(((1,), (2,)), (0, 0)), (((0,),), (2, 1)), (((0,), (1,)), (2,))]
)
async def test_a_block_ends_before_a_place_where_the_masks_leave_nothing(
    tiers: Any,
    rounds: Any,
    write_table: Any,
    banned: tuple[tuple[int, ...], ...],
    expected: tuple[int, ...],
) -> None:
    """The draft copies the target's masks; where nothing is left it does not fail."""
    name = write_table(0.5, 0.2, 0.3, suffixes={"c": [0.5, 0.5, 0]})
    tier = await tiers.draft(name)
    sampling = SamplingParams(0.0, banned_sequences=banned)
    peer = await tier.open(rounds.spec([1], sampling=sampling))
    assert expected == (await peer.draft(Advance(1, 1, (), 2))).token_ids
    committed = (2, 0) if len(expected) < 2 else expected
    after = await peer.draft(Advance(2, 3, committed, 1))
    assert 3 == after.base_length


async def test_end_of_the_drafts_context(tiers: Any, rounds: Any, networks: Any) -> None:
    """B62: blocks shrink towards the draft's last place, and are empty past it."""
    tier = await tiers.draft(networks.find("short"))
    peer = await tier.open(rounds.spec([5] * 28))
    assert 32 == peer.opened.max_length
    lengths = [len((await peer.draft(Advance(1, 28, (), 8))).token_ids)]
    for number in range(2, 7):
        proposal = await peer.draft(Advance(number, 27 + number, (6,), 8))
        assert 27 + number == proposal.base_length
        lengths.append(len(proposal.token_ids))
    assert [4, 3, 2, 1, 0, 0] == lengths
    await peer.send_advance(Advance(7, 36, (6, 7, 8), 0))
    assert () == (await peer.draft(Advance(8, 37, (9,), 8))).token_ids


@pytest.mark.parametrize(("length", "num_drafted"), [(31, 1), (32, 0), (33, 0), (200, 0)])
async def test_prompt_longer_than_the_drafts_context(
    tiers: Any, rounds: Any, networks: Any, length: int, num_drafted: int
) -> None:
    """B62: a long request is no fault: the target serves it, and this draft has nothing to say.

    Nothing is run past the draft's last place, the prompt neither.
    """
    tier = await tiers.draft(networks.find("short"))
    peer = await tier.open(rounds.spec([5] * length))
    engine = tier.service._drafters[networks.find("short")].engine
    load = engine.call(lambda: engine.load).result()
    assert (num_drafted > 0) == (load.num_queued + load.num_held_blocks > 0)
    proposal = await peer.draft(Advance(1, length, (), 8))
    assert (1, length, num_drafted) == (
        proposal.round,
        proposal.base_length,
        len(proposal.token_ids),
    )


# Catching up -------------------------------------------------------------------------------------


async def test_catching_up_after_every_outcome(tiers: Any, rounds: Any, networks: Any) -> None:
    """B54, B55: after any mix of accepted, rejected and added tokens it drafts as if anew.

    A coin says how many draft tokens stand and what follows them; the stock forward over the whole
    text says what must be drafted then.
    """
    coin = random.Random(3)
    tier = await tiers.draft(networks.find())
    peer = await tier.open(rounds.spec(PROMPT))
    engine = tier.service._drafters[networks.find()].engine
    text, new_token_ids, seen = list(PROMPT), (), set()
    for number in range(1, 31):
        proposal = await peer.draft(Advance(number, len(text), new_token_ids, 4))
        assert tuple(networks.generate(text, 4)) == proposal.token_ids
        num_accepted = coin.randrange(5)
        seen.add(num_accepted)
        # More than one foreign token, as after rounds that this draft had no part in.
        foreign = [coin.randrange(258) for _ in range(coin.randrange(1, 4))]
        new_token_ids = (*proposal.token_ids[:num_accepted], *foreign)
        text += new_token_ids
        (sequence,) = engine._scheduler.sequences
        assert sequence.num_cached <= proposal.base_length + 3
        engine.check().result()
    assert {0, 1, 2, 3, 4} == seen


async def test_sessions_share_steps(tiers: Any, rounds: Any, networks: Any) -> None:
    """B17, B69: eight sessions with blocks of different lengths each draft their own text."""
    tier = await tiers.draft(networks.find())
    prompts = [[number + 2] * (number + 1) for number in range(8)]
    lengths = [1, 2, 3, 5, 8, 1, 4, 16]
    peers = [await tier.open(rounds.spec(prompt)) for prompt in prompts]
    proposals = await rounds.together(
        *(
            peer.draft(Advance(1, len(prompt), (), length))
            for peer, prompt, length in zip(peers, prompts, lengths, strict=True)
        )
    )
    assert [
        tuple(networks.generate(prompt, length))
        for prompt, length in zip(prompts, lengths, strict=True)
    ] == [proposal.token_ids for proposal in proposals]
