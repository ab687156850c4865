"""Mistakes of distilled drafts: what a reduced head scores, what is learnt, what goes on."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_HEAD = "paceline/engine/reduced_head.py"
_COLLECT = "paceline/distill/collect.py"
_TRAIN = "paceline/distill/train.py"
_RUN = "paceline/distill/run.py"
_FILES = "paceline/engine/draft_files.py"
_SELF_TEST = "paceline/engine/self_test.py"

_HEADS = ("tests/engine/test_reduced_head.py",)
_LAWS = ("tests/distill/test_collect.py::test_laws_are_the_targets",)
_TRAINS = ("tests/distill/test_train.py",)
_STOPPED = ("tests/distill/test_run.py::test_a_stopped_run_ends_where_a_whole_one_does",)

MUTANTS = (
    Mutant(
        "a reduced head: the token not scored is one like any other",
        _HEAD,
        'float("-inf")',
        "0.0",
        ("tests/law/test_reduced_vocabulary.py", *_HEADS),
    ),
    Mutant(
        "a reduced head: scores stand at the first tokens",
        _HEAD,
        "index_copy_(-1, self.token_ids, scores)",
        "index_copy_(-1, torch.arange(scores.shape[-1]), scores)",
        _HEADS,
    ),
    Mutant(
        "the self-test of a reduced head compares no tokens",
        _SELF_TEST,
        'if not torch.equal(is_scored, ours != float("-inf")):',
        "if is_scored.ndim == 0:",
        _HEADS,
    ),
    Mutant(
        "distill: a sequence that moves leaves its cache behind",
        _COLLECT,
        "self._runner.copy_blocks([(len(running), index)])",
        "pass",
        _LAWS,
    ),
    Mutant(
        "distill: laws are those of one token later",
        _TRAIN,
        "torch.arange(one.prompt_length - 1, len(one.token_ids) - 1)",
        "torch.arange(one.prompt_length, len(one.token_ids))",
        _TRAINS,
    ),
    Mutant(
        "distill: what the head does not score counts as its first token",
        _TRAIN,
        "probs = batch.top_probs * (places >= 0)",
        "probs = batch.top_probs * 1",
        _TRAINS,
    ),
    Mutant(
        "distill: a round that goes on begins its order again",
        _RUN,
        "islice(order, trainer.num_steps - first, last - first)",
        "islice(order, 0, last - trainer.num_steps)",
        _STOPPED,
    ),
    Mutant(
        "distill: a layer begins as its neighbour",
        _TRAIN,
        "target.model.layers[layer].state_dict()",
        "target.model.layers[layer - 1].state_dict()",
        _TRAINS,
    ),
    Mutant(
        "a draft's own norm is passed over",
        _FILES,
        '_OWN = ("model.layers.", "model.norm.")',
        '_OWN = ("model.layers.",)',
        ("tests/engine/test_draft_files.py",),
    ),
)
