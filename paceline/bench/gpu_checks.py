"""Whether what runs on CUDA is right: against the stock model, kernel by kernel, and in rounds.

Every check is a function that gives a line for people or raises. It measures no time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from paceline.bench.gpu_subject import Subject
from paceline.engine import rejection
from paceline.engine.draws import Draws
from paceline.engine.engine import Engine, EngineOptions
from paceline.engine.job import Extend, Job
from paceline.engine.law import Law
from paceline.engine.lean.graph_check import find_largest_error, record_steps
from paceline.engine.lean.graphs import find_recorder
from paceline.engine.self_test import check_against_stock
from paceline.engine.sequence import Sequence
from paceline.records import SamplingParams, SessionSpec, VerificationRule

_TOLERANCE = 0.05
"""Relative error between kernels for different row counts, in 16 bits."""
_CONTEXT = 40
_NUM_DRAFT_TOKENS = 4
_NUM_TOKENS = 24
_NUM_PROMPTS = 8
_GREEDY = SamplingParams(0.0, num_log_probs=0)


@dataclass(frozen=True, slots=True)
class Check:
    """What became of one check."""

    name: str
    passed: bool
    detail: str


def run_checks(subject: Subject) -> Iterator[Check]:
    """Runs every check; one that fails does not end the others. The cache is allocated for them."""
    checks: dict[str, Callable[[Subject], str]] = {
        "unrecorded steps = transformers": _equals_stock,
        "recorded steps = unrecorded": _recorded_equal,
        "surplus rows touch nobody": _surplus_touches_nobody,
        "rejected rows leave no trace": _rollback_is_clean,
        "speculative greedy = plain": _rounds_equal_plain,
    }
    for name, check in checks.items():
        try:
            yield Check(name, True, check(subject))
        except Exception as error:  # whatever it is, the other checks still tell something
            yield Check(name, False, f"{type(error).__name__}: {error}")


def _equals_stock(subject: Subject) -> str:
    check_against_stock(subject.runner, subject.stock)
    return f"relative error under {subject.stock.tolerance:g} at every position"


def _recorded_equal(subject: Subject) -> str:
    runner, lines = subject.runner, list[str]()
    runner.allocate(subject.num_blocks, subject.block_size)
    record_steps(runner, find_recorder(runner.device), lines.append)
    assert runner.recorded_shapes, lines[-1]
    return (
        f"{len(runner.recorded_shapes)} row counts, relative error {find_largest_error(runner):.2g}"
    )


def _surplus_touches_nobody(subject: Subject) -> str:
    """Mixed steps that are filled up, with what the cache holds of everybody before and after."""
    runner, worst = subject.runner, 0.0
    num_steps = 0
    for counts in ((1,), (3,), (5,), (9,), (5, 1, 2, 1), (5,) * subject.num_sequences):
        _scramble(subject)
        _run_contexts(subject)
        rows = [
            subject.span(i, _CONTEXT, subject.token_ids(i, _CONTEXT, _CONTEXT + n), n)
            for i, n in enumerate(counts)
        ]
        step = subject.step(*rows)
        before = _snapshot(subject)
        recorded = runner.run(step)
        after = _snapshot(subject)
        own = [
            (span.block_table[place // subject.block_size], place % subject.block_size)
            for span in step.spans
            for place in range(span.start, span.end)
        ]
        for old, new in zip(before, after, strict=True):
            for block, place in own:
                old[block, place] = new[block, place]
            assert torch.equal(old, new), "a step wrote slots that are not its own"
        expected = runner.run_unrecorded(step)
        worst = max(worst, float((recorded - expected).norm() / expected.norm()))
        num_steps += 1
    assert worst <= _TOLERANCE, f"relative error {worst:.2g}"
    return f"{num_steps} mixed steps, relative error {worst:.2g}"


def _rollback_is_clean(subject: Subject) -> str:
    """One row behind a context, before and after a proposal that was rejected: the same bits."""
    runner = subject.runner
    _run_contexts(subject)
    right, wrong = subject.token_ids(0, _CONTEXT, _CONTEXT + 1), subject.token_ids(3, 0, 5)
    decode = subject.step(subject.span(0, _CONTEXT, right, 1))
    expected = runner.run(decode)
    runner.run(subject.step(subject.span(0, _CONTEXT, wrong, len(wrong))))
    assert torch.equal(expected, runner.run(decode)), "logits moved"
    return "the same bits"


def _rounds_equal_plain(subject: Subject) -> str:
    """Engine, scheduler, jobs and verification: every prompt at once, plain and with proposals.

    Two kernels may order two tokens differently whose logits are equal up to their rounding; any
    other difference is a fault.
    """
    noise = _find_noise(subject)
    engine = Engine(
        subject.runner, EngineOptions(subject.num_blocks, subject.block_size, max_rows=512)
    )
    engine.start()
    try:
        recorder = find_recorder(subject.runner.device)
        engine.call(lambda: subject.runner.record(recorder)).result()
        plain = _generate(engine, subject, lambda _: ())
        guesses = [_guess_from(run.token_ids, subject.vocabulary_size) for run in plain]
        drafted = _generate(engine, subject, *guesses)
        engine.check().result()
    finally:
        engine.stop()
    num_compared = num_ties = 0
    for ours, theirs in zip(drafted, plain, strict=True):
        for place, (token, expected) in enumerate(
            zip(ours.token_ids, theirs.token_ids, strict=True)
        ):
            if token != expected:
                gap = float(theirs.logits[place][expected] - theirs.logits[place][token])
                assert gap <= 2 * noise, f"a token differs where logits are {gap:.3g} apart"
                num_ties += 1
                break  # From here on they are different texts.
            num_compared += 1
    accepted, rejected = (sum(getattr(r, name) for r in drafted) for name in _OUTCOMES)
    assert accepted and rejected, "nothing was accepted, or nothing rejected"
    return (
        f"{num_compared} tokens equal, {num_ties} of {len(plain)} texts end in a near tie"
        f" (logits move by {noise:.2g}); {accepted} draft tokens accepted, {rejected} rejected"
    )


_OUTCOMES = ("num_accepted", "num_rejected")


@dataclass(slots=True)
class _Text:
    """What was generated behind one prompt."""

    token_ids: list[int]
    logits: list[torch.Tensor]
    """The row that each token was chosen from, [V]."""
    num_accepted: int = 0
    num_rejected: int = 0


Guess = Callable[[int], tuple[int, ...]]
"""Number of tokens generated so far -> draft tokens."""


def _guess_from(token_ids: list[int], vocabulary_size: int) -> Guess:
    """Proposals out of a text, in which every seventh token is wrong."""

    def guess(first: int) -> tuple[int, ...]:
        return tuple(
            (token_ids[place] + (place % 7 == 3)) % vocabulary_size
            for place in range(first, min(first + _NUM_DRAFT_TOKENS, _NUM_TOKENS - 1))
        )

    return guess


def _generate(engine: Engine, subject: Subject, *guesses: Guess) -> list[_Text]:
    """Greedy text behind every prompt, all at once."""
    running = []
    for index in range(_NUM_PROMPTS):
        ids = subject.token_ids(index, 0, _CONTEXT + index)
        rule = VerificationRule.REJECTION_BLOCK
        sequence = engine.open(SessionSpec(ids, len(ids), _GREEDY, rule, 0)).result()
        job = _rounds(sequence, guesses[index % len(guesses)])
        running.append((sequence, engine.submit(sequence, job)))
    texts = [future.result() for _, future in running]
    for sequence, _ in running:
        engine.close(sequence)
    return texts


def _rounds(sequence: Sequence, guess: Guess) -> Job[_Text]:
    """Rounds as a verify tier runs them."""
    text, start = _Text([], []), len(sequence)
    while len(sequence) < start + _NUM_TOKENS:
        base, tokens = len(sequence), guess(len(sequence) - start)
        sequence.append(tokens)
        extended = yield Extend(len(sequence), len(tokens) + 1, _GREEDY)
        assert extended.logits is not None, "they were asked for"
        drafts = [Law.point(token) for token in tokens]
        outcome = rejection.verify(
            VerificationRule.REJECTION_BLOCK, extended.laws, drafts, tokens, Draws(0, 0), base
        )
        sequence.truncate(base + outcome.num_accepted)
        sequence.append([outcome.next_token_id])
        sequence.commit()
        text.logits += list(extended.logits[: outcome.num_accepted + 1])
        text.num_accepted += outcome.num_accepted
        text.num_rejected += len(tokens) - outcome.num_accepted
    text.token_ids = sequence.token_ids[start : start + _NUM_TOKENS]
    return text


def _find_noise(subject: Subject) -> float:
    """How far a logit moves between a row alone and the same row in a proposal."""
    runner, end = subject.runner, _CONTEXT + _NUM_DRAFT_TOKENS + 1
    _run_contexts(subject)
    alone = [
        runner.run(subject.step(subject.span(0, place, subject.token_ids(0, place, place + 1), 1)))
        for place in range(_CONTEXT, end)
    ]
    rows = subject.span(0, _CONTEXT, subject.token_ids(0, _CONTEXT, end), end - _CONTEXT)
    return float((torch.cat(alone) - runner.run(subject.step(rows))).abs().max())


def _run_contexts(subject: Subject) -> None:
    """Fills every sequence's cache up to the context."""
    for index in range(subject.num_sequences):
        ids = subject.token_ids(index, 0, _CONTEXT)
        subject.runner.run_unrecorded(subject.step(subject.span(index, 0, ids, 0)))


def _snapshot(subject: Subject) -> list[torch.Tensor]:
    """Keys and values of the first and last layer, without the spare block."""
    cache = subject.runner.cache
    layers = (0, cache.num_layers - 1)
    return [part[: cache.spare_block].clone() for i in layers for part in cache.view_layer(i)]


def _scramble(subject: Subject) -> None:
    """Fills these layers with numbers, so that whatever is written shows."""
    cache = subject.runner.cache
    for layer in (0, cache.num_layers - 1):
        for part in cache.view_layer(layer):
            part.normal_()
