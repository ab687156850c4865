"""Several sources as one: who speaks, that the last one stays in step, that time tells nothing."""

from __future__ import annotations

from typing import Any

import pytest

from draft_service.config import DraftConfig
from draft_service.sources import load_drafters
from paceline.errors import InvalidArgument
from paceline.records import Advance, LawEncoding, SamplingParams, VerificationRule


def _hybrid(*parts: str) -> str:
    return "hybrid:" + "+".join(parts)


async def test_the_model_speaks_where_lookup_is_silent(
    tiers: Any, rounds: Any, networks: Any
) -> None:
    """Each round's proposal is the first part's that has one; the model drafts as if never left."""
    model = networks.find()
    name = _hybrid("ngram", model)
    tier = await tiers.draft(name)
    prompt = [5, 6, 7, 8, 5, 6]
    peer = await tier.open(rounds.spec(prompt))
    assert name == peer.opened.source
    assert (7, 8, 5) == (await peer.draft(Advance(1, 6, (), 3))).token_ids
    committed = (200, 201)
    expected = networks.generate([*prompt, *committed], 3)
    assert tuple(expected) == (await peer.draft(Advance(2, 8, committed, 3))).token_ids
    # Looked up again, then the model: what it did not draft is in its cache all the same.
    assert (8, 5, 6) == (await peer.draft(Advance(3, 10, (6, 7), 3))).token_ids
    expected = networks.generate([*prompt, *committed, 6, 7, 99], 3)
    assert tuple(expected) == (await peer.draft(Advance(4, 11, (99,), 3))).token_ids


async def test_parts_are_sources_and_loaded_once(tiers: Any, networks: Any) -> None:
    """The hybrid is the default; its parts can be asked for by name, and share the model."""
    model = networks.find()
    name = _hybrid("ngram", model)
    tier = await tiers.draft(name, model)
    drafters = tier.service._drafters
    assert [name, model, "ngram"] == list(drafters)
    assert drafters[name]._last is drafters[model]
    alone = await tiers.draft(model)
    assert (await alone.load()).num_free_blocks == (await tier.load()).num_free_blocks
    assert await alone.identity() == await tier.identity(name)


@pytest.mark.parametrize("parts", [["ngram"], ["MODEL", "ngram"], ["hybrid:ngram", "ngram"]])
def test_parts_that_make_no_hybrid(write_table: Any, parts: list[str]) -> None:
    """Only the last part may take its time, and there is something to be asked before it."""
    name = _hybrid(*(write_table(1.0) if part == "MODEL" else part for part in parts))
    with pytest.raises(InvalidArgument) as caught:
        load_drafters(DraftConfig(source=[name], memory_mib=64))
    assert "source" == caught.value.field


@pytest.mark.parametrize("rule", VerificationRule)
async def test_steps_do_not_tell_what_was_drawn(
    tiers: Any, rounds: Any, write_table: Any, rule: VerificationRule
) -> None:
    """Whether a part is silent, and so the time, depends on committed text alone.

    Sessions that draw other tokens from the same committed text run the same drafting steps.
    """
    model = write_table(*[0.1] * 10)
    tier = await tiers.draft(_hybrid("ngram", model))
    engine = tier.service._drafters[model].engine
    num_steps, run_as_ever = [0], engine._runner.run

    def count(step: Any) -> Any:
        num_steps[0] += any(span.num_logits for span in step.spans)
        return run_as_ever(step)

    engine._runner.run = count
    seen, drawn = set(), set()
    for seed in range(8):
        num_steps[0] = 0
        spec = rounds.spec([1, 2, 3], sampling=SamplingParams(), rule=rule, seed=seed)
        peer = await tier.open(spec)
        proposals = [
            await peer.draft(Advance(1, 3, (), 4)),
            await peer.draft(Advance(2, 5, (1, 2), 4)),
            await peer.draft(Advance(3, 6, (9,), 4)),
        ]
        peer.cancel()
        drawn.add((proposals[0].token_ids, proposals[2].token_ids))
        assert (3, 1, 2) == proposals[1].token_ids
        assert LawEncoding.POINT_MASS is proposals[1].encoding
        seen.add(num_steps[0])
    assert {8} == seen
    assert len(drawn) > 1


async def test_the_law_is_the_targets(tiers: Any, rounds: Any, write_table: Any) -> None:
    """LAW: point masses where the text recurs, drawn tokens elsewhere, and p comes out."""
    p, q = (0.5, 0.3, 0.2), (0.2, 0.3, 0.5)
    verify, draft = (
        await tiers.verify(write_table(*p)),
        await tiers.draft(_hybrid("suffix", write_table(*q))),
    )
    session = rounds.spec([0], sampling=SamplingParams(), seed=3)
    transcript = await rounds.run(
        await verify.open(session), await draft.open(session), 1, 1500, lambda _: 3
    )
    encodings = {proposal.encoding for proposal, _ in transcript.rounds if proposal.token_ids}
    assert {LawEncoding.POINT_MASS, LawEncoding.SPARSE} == encodings
    for token_id, expected in enumerate(p):
        share = transcript.token_ids.count(token_id) / len(transcript.token_ids)
        assert expected == pytest.approx(share, abs=4 * (0.25 / 1500) ** 0.5)


async def test_a_part_that_cannot_be_opened_leaves_none_open(
    tiers: Any, rounds: Any, write_table: Any
) -> None:
    """The model refuses the tokens: the lookup before it is closed, and nothing is held."""
    name = _hybrid("suffix", write_table(0.5, 0.5))
    tier = await tiers.draft(name)
    peer = tier.connect()
    await tier.send_open(peer, rounds.spec([0, 7]))
    error = await peer.refusal()
    assert isinstance(error, InvalidArgument)
    assert 0 == (await tier.load()).num_open_sessions


async def test_lookup_goes_on_past_the_models_context(
    tiers: Any, rounds: Any, networks: Any
) -> None:
    """B62: a hybrid's context is its longest part's."""
    tier = await tiers.draft(_hybrid("ngram", networks.find("short")))
    peer = await tier.open(rounds.spec([5, 6] * 20))
    assert peer.opened.max_length > 32
    assert (5, 6) == (await peer.draft(Advance(1, 40, (), 2))).token_ids
    assert () == (await peer.draft(Advance(2, 41, (99,), 2))).token_ids
