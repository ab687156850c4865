"""A draft that scores some of the target's tokens: its law is truncated, and nothing is lost.

The draft's rows come out of a real reduced head and through the sampling that serves, so that what
is enumerated is what a distilled draft ships.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from paceline.engine.coupling import Noise, verify
from paceline.engine.law import Law, truncate
from paceline.engine.reduced_head import ReducedHead
from paceline.engine.sampling import target_laws
from paceline.records import SamplingParams, VerificationRule

SIZE = 5
SAMPLINGS = [SamplingParams(1.0), SamplingParams(0.6, top_k=2), SamplingParams(0.0)]


def reduced(draft: Any, scored: list[int], sampling: SamplingParams) -> Any:
    """The law of a draft whose head scores only some tokens: prefix -> law."""
    product = nn.Linear(SIZE, len(scored), bias=False)
    product.weight.data = torch.eye(SIZE)[scored]
    head = ReducedHead(product, torch.tensor(scored), SIZE)

    def law(prefix: tuple[int, ...]) -> Law:
        hidden = torch.from_numpy(np.log(draft(prefix).probabilities)).float()
        with torch.inference_mode():
            return target_laws(head(hidden[None]), [sampling])[0]

    return law


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["all", "top-2", "greedy"])
@pytest.mark.parametrize("scored", [[0, 2, 3], [4], [0, 1, 2, 3, 4]])
@pytest.mark.parametrize("kind", ["sparse", "point_mass"])
def test_output_is_the_targets_law(
    tools: Any, rule: VerificationRule, kind: str, scored: list[int], sampling: SamplingParams
) -> None:
    """B02: tokens that the draft never proposes come out with the target's probability."""
    target = tools.random_tables(31, SIZE, 0.0)
    draft = reduced(tools.random_tables(32, SIZE, 0.0), scored, sampling)
    rounds = tools.enumeration(rule, target, tools.proposer(kind, draft), 2)
    plain, emitted = tools.plain_law(target, 3), rounds.emitted_law(3)
    assert tools.distance(plain, emitted) < 1e-12
    assert SIZE**3 == sum(mass > 0 for mass in emitted.values())
    drafted = {int(token) for prefix in ((), (0,), (4,)) for token in draft(prefix).token_ids}
    assert drafted <= set(scored)


@pytest.mark.parametrize("scored", [[0, 2, 3], [4]])
def test_coupled_output_does_not_depend_on_the_head(tools: Any, scored: list[int]) -> None:
    """Noise is keyed by the target's ids: what is emitted is the target's own draw, id by id.

    The draft matches as often as its truncated law allows, and never with a token not scored.
    """
    target = tools.random_tables(41, SIZE, 0.0)
    draft = reduced(target, scored, SamplingParams(1.0))
    num_accepted = 0
    for seed in range(300):
        noise = Noise(seed, 0)
        prefix: tuple[int, ...] = ()
        for _ in range(2):
            law = truncate(draft(prefix)).as_law()
            prefix = (*prefix, noise.draw(law, 10 + len(prefix)))
        rows = [target(prefix[:i]) for i in range(3)]
        outcome = verify(rows, prefix, noise, 10)
        num_accepted += outcome.num_accepted
        emitted = (*prefix[: outcome.num_accepted], outcome.next_token_id)
        for place in range(len(emitted)):
            assert emitted[place] == noise.draw(target(emitted[:place]), 10 + place)
        assert set(prefix) <= set(scored)
    assert num_accepted > 0
