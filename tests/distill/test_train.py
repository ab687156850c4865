"""Training: what is compared, what is learnt, what stays, and that it goes on where it was."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from paceline.distill.evaluate import evaluate
from paceline.distill.shards import Sample
from paceline.distill.train import Batch, Trainer, TrainOptions, batches, most_likely_ids
from paceline.engine.draft_files import Recipe

OPTIONS = TrainOptions(num_steps=40, batch_tokens=200, learning_rate=1e-2)
WHOLE = Recipe("target", "", (0, 1))


@pytest.fixture
def samples(network: PreTrainedModel, say_laws: Any) -> list[Sample]:
    """The target's laws on random tokens of different lengths."""
    generator = torch.Generator().manual_seed(3)
    sequences = [
        torch.randint(2, 258, (length,), generator=generator).tolist() for length in range(12, 36)
    ]
    laws: list[Sample] = say_laws(network, sequences, 4)
    return laws


def make_trainer(network: PreTrainedModel, recipe: Recipe, samples: list[Sample]) -> Trainer:
    """A trainer whose head scores all that the samples name."""
    trainer = Trainer(network, recipe, OPTIONS, "cpu")
    trainer.set_head(most_likely_ids(samples, trainer.vocabulary_size, 300))
    return trainer


def test_a_draft_that_is_the_target_agrees(network: PreTrainedModel, samples: list[Sample]) -> None:
    """Padding and packing change nothing: laws of the same layers are the same laws."""
    figures = evaluate(make_trainer(network, WHOLE, samples), samples)
    assert figures.greedy_agreement > 0.99
    shared = sum(one.top_log_probs.float().exp().sum().item() for one in samples)
    assert figures.overlap == pytest.approx(shared / figures.num_tokens, abs=2e-3)
    assert figures.coupled_match == pytest.approx(figures.overlap, abs=0.05)
    assert sum(len(one.top_ids) for one in samples) == figures.num_tokens


def test_figures_of_two_known_laws(network: PreTrainedModel, samples: list[Sample]) -> None:
    """Against laws that put all mass on one token each, all that counts is the draft's mass."""
    trainer = make_trainer(network, WHOLE, samples)
    batch = Batch.of(samples)
    log_probs, places, _ = trainer.compare(batch)
    second = [
        Sample(
            one.token_ids,
            one.prompt_length,
            one.top_ids[:, 1:2],
            torch.zeros_like(one.top_log_probs[:, :1]),
        )
        for one in samples
    ]
    figures = evaluate(trainer, second)
    expected = log_probs.gather(1, places[:, 1:2]).exp().mean().item()
    assert figures.overlap == pytest.approx(expected, abs=1e-4)
    assert figures.coupled_match == pytest.approx(expected, abs=0.06)
    assert figures.greedy_agreement < 0.01


def test_ids_that_are_not_scored_count_for_nothing(
    network: PreTrainedModel, samples: list[Sample]
) -> None:
    """A smaller head shares no more than the mass of its tokens, and proposes none but them."""
    trainer = make_trainer(network, WHOLE, samples)
    full = evaluate(trainer, samples)
    trainer.set_head(most_likely_ids(samples, 264, 60))
    assert 60 == len(trainer.head_ids)
    small = evaluate(trainer, samples)
    mass = sum(
        (one.top_log_probs.float().exp() * torch.isin(one.top_ids, trainer.head_ids)).sum().item()
        for one in samples
    )
    assert small.overlap <= mass / small.num_tokens + 1e-3
    assert small.overlap < full.overlap - 0.05
    assert 0 < small.coupled_match < full.coupled_match


def test_most_likely_ids_are_by_mass() -> None:
    """Ascending, by probability and not by count; tokens without any mass are left out."""
    laws = torch.tensor([[0.6, 0.3, 0.1]]).log().half()
    one = Sample(torch.tensor([0, 1]), 1, torch.tensor([[7, 2, 5]], dtype=torch.int32), laws)
    assert [2, 7] == most_likely_ids([one], 9, 2).tolist()
    assert [2, 5, 7] == most_likely_ids([one], 9, 9).tolist()


def test_loss_falls_and_embeddings_stay(
    network: PreTrainedModel, recipe: Recipe, samples: list[Sample]
) -> None:
    """The draft's own weights move, and nothing else does; the target's do not either."""
    trainer = make_trainer(network, recipe, samples)
    embedding = trainer.network.model.embed_tokens.weight.clone()
    head = trainer.network.lm_head.weight.clone()
    layer = network.model.layers[1].mlp.up_proj.weight.clone()
    before = evaluate(trainer, samples)
    order = batches(samples, OPTIONS, 0)
    losses = [trainer.step(batch) for batch in itertools.islice(order, 40)]
    after = evaluate(trainer, samples)
    assert sum(losses[-8:]) < 0.9 * sum(losses[:8])
    assert after.loss < 0.95 * before.loss
    assert after.overlap > before.overlap + 0.05
    assert torch.equal(embedding, trainer.network.model.embed_tokens.weight)
    assert torch.equal(head, trainer.network.lm_head.weight)
    assert torch.equal(layer, network.model.layers[1].mlp.up_proj.weight)
    assert not torch.equal(layer, trainer.network.model.layers[0].mlp.up_proj.weight)


def test_a_restored_trainer_goes_on_bit_for_bit(
    network: PreTrainedModel, recipe: Recipe, samples: list[Sample]
) -> None:
    """Weights, optimizer, head and the place on the learning rate's way are all restored."""
    one, two = (make_trainer(network, recipe, samples) for _ in range(2))
    order = list(itertools.islice(batches(samples, OPTIONS, 0), 9))
    for batch in order[:5]:
        one.step(batch)
    two.set_head(one.head_ids[:3])
    two.restore(copy.deepcopy(one.state()))
    for batch in order[5:]:
        assert one.step(batch) == two.step(batch)
    for name, parameter in one.own.items():
        assert torch.equal(parameter, two.own[name])


def test_batches_take_each_sample_once_and_keep_to_their_size(samples: list[Sample]) -> None:
    """An epoch is a permutation; a sample over the size is a batch by itself."""
    order = batches(samples, TrainOptions(batch_tokens=60), 1)
    seen: list[int] = []
    while len(seen) < len(samples):
        batch = next(order)
        lengths = [len(one.token_ids) for one in batch]
        assert len(batch) == 1 or max(lengths) * len(batch) <= 60
        seen += lengths
    assert sorted(len(one.token_ids) for one in samples) == sorted(seen)
    again = next(batches(samples, TrainOptions(batch_tokens=60), 1))
    assert seen[: len(again)] == [len(one.token_ids) for one in again]
