"""The engine with real tiny networks: what comes out never depends on who else is in."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from paceline.engine.engine import Engine, EngineOptions
from paceline.engine.job import Extend, Extended, Job
from paceline.engine.law import Law
from paceline.engine.model_runner import NetworkRunner
from paceline.engine.returns import Returns
from paceline.engine.sequence import Sequence
from paceline.engine.step import ModelRunner, Step
from paceline.errors import Aborted, Exhausted, InvalidArgument
from paceline.records import SamplingParams, SessionSpec, VerificationRule

BuildNetwork = Callable[..., PreTrainedModel]
StartEngine = Callable[..., Engine]

VOCABULARY = 500
GREEDY, PLAIN = SamplingParams(0.0), SamplingParams(1.0)
WAIT_S = 60
NUM_DRAFT_TOKENS = (0, 1, 2, 3, 5, 8, 1, 0)


@pytest.fixture(scope="module")
def network(tiny_network: BuildNetwork) -> PreTrainedModel:
    """One tiny Llama for all tests."""
    return tiny_network("llama")


@pytest.fixture(scope="module")
def stock(tiny_network: BuildNetwork) -> PreTrainedModel:
    """The same weights in a network of their own, which attends as transformers does."""
    return tiny_network("llama")


@pytest.fixture
def start_engine(network: PreTrainedModel) -> Iterator[StartEngine]:
    """Makes engines of few small blocks; at the end every block of them must be back."""
    engines: list[Engine] = []

    def start(
        runner: ModelRunner | None = None, *, is_started: bool = True, **options: Any
    ) -> Engine:
        settings = {"num_blocks": 96, "block_size": 4, "max_rows": 64, **options}
        engines.append(
            Engine(runner or NetworkRunner(network, VOCABULARY), EngineOptions(**settings))
        )
        if is_started:
            engines[-1].start()
        return engines[-1]

    yield start
    for engine in engines:
        if not engine.is_alive:
            continue
        engine.check().result(WAIT_S)
        assert (0, 0, 0) == (
            engine.load.num_open_sessions,
            engine.load.num_held_blocks,
            engine.load.num_queued,
        )
        engine.stop()


def open_sequence(
    engine: Engine, ids: list[int], *, arrival: float = 0.0, domain: str = ""
) -> Sequence:
    """Opens a sequence on an engine."""
    spec = SessionSpec(
        tuple(ids),
        len(ids),
        GREEDY,
        VerificationRule.REJECTION_TOKEN,
        0,
        cache_domain=domain,
        arrival_time_s=arrival,
    )
    return engine.open(spec).result(WAIT_S)


def prompt(length: int, seed: int) -> list[int]:
    """Random token ids."""
    return [random.Random(seed).randrange(VOCABULARY) for _ in range(length)]


def greedy_by_stock(stock: PreTrainedModel, ids: list[int], count: int) -> list[int]:
    """Plain greedy decoding by the network's own attention, everything recomputed each time."""
    ids = list(ids)
    with torch.no_grad():
        for _ in range(count):
            logits = stock(torch.tensor([ids]), use_cache=False).logits[0, -1, :VOCABULARY]
            ids.append(int(logits.argmax()))
    return ids[-count:]


def dense(law: Law) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """A law as a vector over the vocabulary."""
    row = np.zeros(VOCABULARY)
    row[law.token_ids] = law.probabilities
    return row


def law_by_stock(
    stock: PreTrainedModel, ids: list[int]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The plain law after `ids` by the network's own attention."""
    with torch.no_grad():
        logits = stock(torch.tensor([ids]), use_cache=False).logits[0, -1, :VOCABULARY]
    row: np.ndarray[tuple[int], np.dtype[np.float64]] = logits.double().softmax(0).numpy()
    return row


def decode(
    sequence: Sequence, right: list[int], num_draft_tokens: int, dice: random.Random | None = None
) -> Job[list[int]]:
    """Greedy generation as the verify tier does it; drafts are `right`, or spoilt where dice say.

    Returns the ids, however many rounds it takes; each round accepts what the target agrees with.
    """
    base = sequence.num_committed
    while (done := sequence.num_committed - base) < len(right):
        draft = right[done : done + min(num_draft_tokens, len(right) - done - 1)]
        if draft and dice is not None and dice.random() < 0.6:
            place = dice.randrange(len(draft))
            draft = [*draft[:place], (draft[place] + 1) % VOCABULARY, *draft[place + 1 :]]
        sequence.append(draft)
        extended = yield Extend(len(sequence), len(draft) + 1, GREEDY)
        own = [int(law.token_ids[0]) for law in extended.laws]
        num_accepted = 0
        while num_accepted < len(draft) and draft[num_accepted] == own[num_accepted]:
            num_accepted += 1
        sequence.truncate(base + done + num_accepted)
        sequence.append([own[num_accepted]])
        sequence.commit()
        assert sequence.num_cached == len(sequence) - 1
    return sequence.token_ids[base:]


def read_laws(sequence: Sequence, num_laws: int) -> Job[list[Law]]:
    """The plain laws of the last rows."""
    extended = yield Extend(len(sequence), num_laws, PLAIN)
    return extended.laws


def forever(sequence: Sequence) -> Job[None]:
    """A job that never ends by itself."""
    while True:
        yield Extend(len(sequence), 1, GREEDY)


def close_when_done(engine: Engine, sequence: Sequence, future: Future[list[int]]) -> None:
    """Closes a sequence as its stream would, when its job is done."""
    future.add_done_callback(lambda _: engine.close(sequence))


def test_company_changes_nothing(stock: PreTrainedModel, start_engine: StartEngine) -> None:
    """B17, B69, B70: 8 sessions of 8 draft lengths, 20 orders: each equals plain greedy alone."""
    prompts = [prompt(length, length) for length in (1, 3, 17, 8, 40, 5, 16, 90)]
    right = [greedy_by_stock(stock, ids, 12) for ids in prompts]
    engine = start_engine()
    for shuffle in range(20):
        dice = random.Random(shuffle)
        order = dice.sample(range(8), 8)
        results: dict[int, Future[list[int]]] = {}
        sequences = []
        for index in order:
            sequence = open_sequence(engine, prompts[index], domain=str(shuffle % 7))
            job = decode(sequence, right[index], NUM_DRAFT_TOKENS[index], dice)
            results[index] = engine.submit(sequence, job)
            sequences.append(sequence)
        assert right == [results[index].result(WAIT_S) for index in range(8)]
        for sequence in sequences:
            engine.close(sequence)


@pytest.mark.parametrize("num_draft_tokens", [0, 1, 4, 8])
def test_draft_length_changes_nothing(
    stock: PreTrainedModel, start_engine: StartEngine, num_draft_tokens: int
) -> None:
    """B11, B12, B16: right drafts, wrong ones and none: the ids are those of plain greedy."""
    engine = start_engine()
    for length in (1, 4, 9):
        ids = prompt(length, length)
        right = greedy_by_stock(stock, ids, 14)
        for dice in (None, random.Random(length)):
            sequence = open_sequence(engine, ids)
            job = decode(sequence, right, num_draft_tokens, dice)
            assert right == engine.submit(sequence, job).result(WAIT_S)
            engine.close(sequence)


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 100])
def test_chunks_change_nothing(
    stock: PreTrainedModel, start_engine: StartEngine, length: int
) -> None:
    """B15: a prompt in chunks of 7 rows gives the laws of the prompt at once."""
    ids = prompt(length, length)
    expected = law_by_stock(stock, ids)
    for max_rows in (7, 128):
        engine = start_engine(max_rows=max_rows)
        sequence = open_sequence(engine, ids)
        (law,) = engine.submit(sequence, read_laws(sequence, 1)).result(WAIT_S)
        np.testing.assert_allclose(dense(law), expected, atol=1e-6)
        engine.close(sequence)


@pytest.mark.parametrize("length", [5, 16, 17, 100])
def test_warm_equals_cold(stock: PreTrainedModel, start_engine: StartEngine, length: int) -> None:
    """B56: A, B with A's prefix, one that is cancelled, A again: warm is cold is plain greedy."""
    engine = start_engine()
    shared = prompt(length, length)
    a, b = [*shared, *prompt(3, 1)], [*shared, *prompt(4, 2)]
    reused = []
    for ids in (a, b, a):
        right = greedy_by_stock(stock, ids, 8)
        cancelled = open_sequence(engine, [*shared, 7])
        engine.submit(cancelled, forever(cancelled))
        engine.close(cancelled)
        sequence = open_sequence(engine, ids)
        reused.append(sequence.num_cached)
        job = decode(sequence, right, 4, random.Random(length))
        assert right == engine.submit(sequence, job).result(WAIT_S)
        engine.close(sequence)
    assert length // 4 * 4 <= reused[1]
    assert (length + 2) // 4 * 4 <= reused[2]


def test_preemption_changes_nothing(stock: PreTrainedModel, start_engine: StartEngine) -> None:
    """B71: room for two sessions while four run: every one ends with its own ids."""
    prompts = [prompt(8, seed) for seed in range(4)]
    right = [greedy_by_stock(stock, ids, 20) for ids in prompts]
    engine = start_engine(num_blocks=15)
    sequences = [
        open_sequence(engine, ids, arrival=float(index)) for index, ids in enumerate(prompts)
    ]
    all_in = threading.Event()
    engine.call(lambda: all_in.wait(WAIT_S))
    futures = [
        engine.submit(sequence, decode(sequence, right[index], 3, random.Random(index)))
        for index, sequence in enumerate(sequences)
    ]
    # Who is done closes, as its stream would: the blocks are the next one's.
    for sequence, future in zip(sequences, futures, strict=True):
        close_when_done(engine, sequence, future)
    all_in.set()
    assert right == [future.result(WAIT_S) for future in futures]
    assert engine.num_preemptions > 0


@pytest.mark.parametrize("num_accepted", [0, 1, 3, 4])
def test_draft_catches_up(
    stock: PreTrainedModel, start_engine: StartEngine, num_accepted: int
) -> None:
    """B54, B55: after full, partial and no acceptance the draft's law is that of a fresh start."""
    engine = start_engine()
    sequence = open_sequence(engine, prompt(9, 1))

    def draft(before: int, committed: list[int]) -> Job[list[int]]:
        sequence.replace_tail(before, committed)
        sequence.commit()
        base = len(sequence)
        for _ in range(4):
            extended = yield Extend(len(sequence), 1, PLAIN)
            expected = law_by_stock(stock, sequence.token_ids)
            np.testing.assert_allclose(dense(extended.laws[0]), expected, atol=1e-5)
            sequence.append([int(expected.argmax())])
        assert sequence.num_cached == len(sequence) - 1
        return sequence.token_ids[base:]

    before, committed = 9, list[int]()
    for round_ in range(5):
        drawn = engine.submit(sequence, draft(before, committed)).result(WAIT_S)
        before += len(committed)
        committed = [*drawn[:num_accepted], 490 + round_]
    engine.close(sequence)


def test_laws_know_the_text_and_logits_stay_raw(
    stock: PreTrainedModel, start_engine: StartEngine
) -> None:
    """B31: a row is penalized for the rows before it; raw logits come only where asked for."""
    engine = start_engine()
    ids = prompt(6, 1)
    sequence = open_sequence(engine, ids)
    sequence.append([7, 8])

    def job(sampling: SamplingParams) -> Job[Extended]:
        return (yield Extend(len(sequence), 3, sampling))

    bare = SamplingParams(presence_penalty=50.0)
    for sampling in (bare, replace(bare, num_log_probs=0)):
        extended = engine.submit(sequence, job(sampling)).result(WAIT_S)
        assert [set(), {7}, {7, 8}] == [
            {token for token in (7, 8) if law.probability(token) < 1e-12} for law in extended.laws
        ]
        assert (sampling is bare) == (extended.logits is None)
    assert extended.logits is not None
    expected = law_by_stock(stock, [*ids, 7, 8])
    raw = extended.logits[-1].double().softmax(0).numpy()
    np.testing.assert_allclose(raw, expected, atol=1e-5)
    engine.close(sequence)


class CountingRunner:
    """A runner that notes how many sequences each step has."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.num_sequences: list[int] = []

    def run(self, step: Step) -> torch.Tensor:
        """Notes a step and runs it."""
        self.num_sequences.append(len(step.spans))
        return self._runner.run(step)

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """As the runner does."""
        self._runner.allocate(num_blocks, block_size)

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """As the runner does."""
        self._runner.copy_blocks(pairs)


def test_a_step_waits_for_those_who_will_soon_be_back(
    network: PreTrainedModel, start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sessions whose rounds overlap share steps; nobody waits for one that has ended."""
    add_step = Returns.add_step
    monkeypatch.setattr(Returns, "add_step", lambda returns, _: add_step(returns, 1e4))
    runner = CountingRunner(NetworkRunner(network, VOCABULARY))
    engine = start_engine(runner)
    sequences = [open_sequence(engine, prompt(5, seed)) for seed in (1, 2)]

    def run(sequence: Sequence) -> Future[list[Law]]:
        return engine.submit(sequence, read_laws(sequence, 1))

    first, second = sequences
    for sequence in (first, second, first):  # whose absence is known is expected back
        run(sequence).result(WAIT_S)
    waiting = run(second)
    assert [1, 1, 1] == engine.call(runner.num_sequences.copy).result(WAIT_S)
    assert 1 == len(run(first).result(WAIT_S))
    assert 1 == len(waiting.result(WAIT_S))
    assert [1, 1, 1, 2] == runner.num_sequences
    alone = run(first)
    engine.close(second)
    assert 1 == len(alone.result(WAIT_S))
    assert [1, 1, 1, 2, 1] == runner.num_sequences
    engine.close(first)


def test_newer_job_supersedes(start_engine: StartEngine) -> None:
    """B72: a job that still runs is ended, its late result is nobody's, and the newer one runs."""
    engine = start_engine()
    sequence = open_sequence(engine, prompt(5, 1))
    old = engine.submit(sequence, forever(sequence))
    new = engine.submit(sequence, read_laws(sequence, 1))
    assert 1 == len(new.result(WAIT_S))
    with pytest.raises(Aborted) as caught:
        old.result(WAIT_S)
    assert "SUPERSEDED" == caught.value.reason
    engine.close(sequence)


def test_superseded_tokens_are_those_of_the_newer_job(start_engine: StartEngine) -> None:
    """A superseded job began before the newer one, so what it took in is there."""
    engine = start_engine(is_started=False)
    opening = engine.open(SessionSpec((1, 2, 3), 3, GREEDY, VerificationRule.REJECTION_TOKEN, 0))
    engine.start()
    sequence = opening.result(WAIT_S)

    def commit(token_id: int) -> Job[list[int]]:
        sequence.replace_tail(sequence.num_committed, [token_id])
        sequence.commit()
        yield Extend(len(sequence), 1, GREEDY)
        return list(sequence.token_ids)

    engine.submit(sequence, commit(4))
    assert [1, 2, 3, 4, 5] == engine.submit(sequence, commit(5)).result(WAIT_S)
    engine.close(sequence)


def test_closing_in_mid_job_frees_everything(start_engine: StartEngine) -> None:
    """B73: the job is ended, its own clean-up runs, its blocks are back, later jobs are refused."""
    engine = start_engine()
    sequence = open_sequence(engine, prompt(30, 1))
    ended = threading.Event()

    def job() -> Job[None]:
        try:
            for count in range(1000):
                if count == 3:
                    engine.close(sequence)
                yield Extend(len(sequence), 1, GREEDY)
        finally:
            ended.set()

    with pytest.raises(Aborted, match="closed"):
        engine.submit(sequence, job()).result(WAIT_S)
    assert ended.wait(WAIT_S)
    engine.check().result(WAIT_S)
    assert 0 == engine.load.num_held_blocks
    with pytest.raises(Aborted, match="closed"):
        engine.submit(sequence, read_laws(sequence, 1)).result(WAIT_S)
    engine.close(sequence)


def test_a_failing_job_fails_alone(stock: PreTrainedModel, start_engine: StartEngine) -> None:
    """B58, B66: its exception is its future's; its session is where it was last committed."""
    engine = start_engine()
    ids = prompt(9, 1)
    right = greedy_by_stock(stock, ids, 6)
    failing, other = open_sequence(engine, ids), open_sequence(engine, ids, domain="other")

    def fail() -> Job[None]:
        failing.append([1, 2, 3])
        yield Extend(len(failing), 4, GREEDY)
        raise InvalidArgument("proposal.law", "is malformed")

    running = engine.submit(other, decode(other, right, 3))
    with pytest.raises(InvalidArgument, match="malformed"):
        engine.submit(failing, fail()).result(WAIT_S)
    assert right == running.result(WAIT_S)
    assert right == engine.submit(failing, decode(failing, right, 3)).result(WAIT_S)
    for sequence in (failing, other):
        engine.close(sequence)


def test_a_job_that_resists_its_end(start_engine: StartEngine) -> None:
    """A job that yields again, or raises, while it is ended does not take the engine with it."""
    engine = start_engine()

    def resist(sequence: Sequence, error: type[Exception] | None) -> Job[None]:
        try:
            yield Extend(len(sequence), 1, GREEDY)
            yield from forever(sequence)
        finally:
            if error is not None:
                raise error
            yield Extend(1, 1, GREEDY)

    for error in (None, ValueError):
        sequence = open_sequence(engine, prompt(5, 1))
        future = engine.submit(sequence, resist(sequence, error))
        engine.close(sequence)
        with pytest.raises(Aborted, match="closed"):
            future.result(WAIT_S)
    engine.check().result(WAIT_S)


class FailingRunner:
    """A runner whose steps fail as often as told."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.num_failures = 0
        self.error: Exception = RuntimeError("a kernel failed")

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """As the runner."""
        self._runner.allocate(num_blocks, block_size)

    def run(self, step: Step) -> torch.Tensor:
        """As the runner, where it does not fail."""
        logits = self._runner.run(step)
        if self.num_failures:
            self.num_failures -= 1
            raise self.error
        return logits

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """As the runner."""
        self._runner.copy_blocks(pairs)


def test_the_engine_outlives_a_failed_step(
    network: PreTrainedModel, stock: PreTrainedModel, start_engine: StartEngine
) -> None:
    """B58: who was in the step fails and loses its blocks; the next step is right again."""
    runner = FailingRunner(NetworkRunner(network, VOCABULARY))
    engine = start_engine(runner)
    ids = prompt(9, 1)
    right = greedy_by_stock(stock, ids, 6)
    sequence = open_sequence(engine, ids)
    assert right[:2] == engine.submit(sequence, decode(sequence, right[:2], 0)).result(WAIT_S)
    runner.num_failures = 1
    with pytest.raises(RuntimeError, match="a kernel failed"):
        engine.submit(sequence, decode(sequence, right[2:], 3)).result(WAIT_S)
    engine.check().result(WAIT_S)
    assert (0, 1) == (engine.load.num_held_blocks, engine.num_failed_steps)
    assert right[2:] == engine.submit(sequence, decode(sequence, right[2:], 3)).result(WAIT_S)
    engine.close(sequence)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_lost_device_ends_the_engine(network: PreTrainedModel, start_engine: StartEngine) -> None:
    """B58: every later step would fail too, so that health must tell of it; nobody hangs."""
    runner = FailingRunner(NetworkRunner(network, VOCABULARY))
    engine = start_engine(runner)
    runner.num_failures, runner.error = 1, torch.AcceleratorError("an illegal memory access")
    sequence = open_sequence(engine, prompt(9, 1))
    with pytest.raises(Aborted, match="the engine stopped"):
        engine.submit(sequence, read_laws(sequence, 1)).result(WAIT_S)
    engine._thread.join(WAIT_S)
    assert not engine.is_alive


def test_a_device_that_still_works_is_not_lost(
    network: PreTrainedModel, start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch that was refused fails its step alone."""
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)
    runner = FailingRunner(NetworkRunner(network, VOCABULARY))
    engine = start_engine(runner)
    runner.num_failures, runner.error = 1, torch.AcceleratorError("too many resources requested")
    sequence = open_sequence(engine, prompt(9, 1))
    with pytest.raises(torch.AcceleratorError):
        engine.submit(sequence, read_laws(sequence, 1)).result(WAIT_S)
    assert 1 == len(engine.submit(sequence, read_laws(sequence, 1)).result(WAIT_S))
    engine.close(sequence)


def test_a_step_that_does_not_end(network: PreTrainedModel, start_engine: StartEngine) -> None:
    """A kernel that hangs: health tells of it, and stopping does not wait for it."""
    is_running, may_end = threading.Event(), threading.Event()

    class HangingRunner(FailingRunner):
        def run(self, step: Step) -> torch.Tensor:
            is_running.set()
            may_end.wait(WAIT_S)
            return super().run(step)

    engine = start_engine(HangingRunner(NetworkRunner(network, VOCABULARY)), step_limit_s=0.0)
    sequence = open_sequence(engine, prompt(9, 1))
    assert engine.is_alive
    laws = engine.submit(sequence, read_laws(sequence, 1))
    assert is_running.wait(WAIT_S)
    assert not engine.is_alive
    engine.stop()
    assert engine._thread.is_alive()
    may_end.set()
    assert 1 == len(laws.result(WAIT_S))
    engine._thread.join(WAIT_S)


@pytest.mark.parametrize(("length", "num_laws"), [(6, 1), (5, 6), (5, -1), (-1, 0)], ids=str)
def test_impossible_requests_fail(start_engine: StartEngine, length: int, num_laws: int) -> None:
    """A request beyond its sequence is the job's error at once, not a wait without end."""
    engine = start_engine()
    sequence = open_sequence(engine, prompt(5, 1))

    def job() -> Job[Extended]:
        return (yield Extend(length, num_laws, GREEDY))

    with pytest.raises(ValueError, match="does not fit a sequence of 5 tokens"):
        engine.submit(sequence, job()).result(WAIT_S)
    engine.close(sequence)


def test_requests_beyond_the_engine_fail(start_engine: StartEngine) -> None:
    """More tokens than the cache holds, or more laws than a step has rows, is said at once."""
    engine = start_engine(num_blocks=4, max_rows=8)
    cases: list[tuple[int, int, type[Exception]]] = [(17, 1, Exhausted), (12, 9, ValueError)]
    for length, num_laws, error in cases:
        sequence = open_sequence(engine, prompt(length, 1))
        with pytest.raises(error):
            engine.submit(sequence, read_laws(sequence, num_laws)).result(WAIT_S)
        engine.close(sequence)


def test_nothing_to_run_needs_no_step(network: PreTrainedModel, start_engine: StartEngine) -> None:
    """Keeping a cache warm that is warm ends at once, and does not touch the model."""
    runner = FailingRunner(NetworkRunner(network, VOCABULARY))
    engine = start_engine(runner)
    sequence = open_sequence(engine, prompt(9, 1))
    engine.submit(sequence, read_laws(sequence, 1)).result(WAIT_S)
    runner.num_failures = 1

    def warm() -> Job[Extended]:
        return (yield Extend(8, 0, GREEDY))

    assert [] == engine.submit(sequence, warm()).result(WAIT_S).laws
    assert 1 == runner.num_failures
    engine.close(sequence)


def test_stopping_ends_every_future(start_engine: StartEngine) -> None:
    """Jobs in flight, and whatever is asked for afterwards, end with Aborted: nobody hangs."""
    engine = start_engine()
    sequence = open_sequence(engine, prompt(5, 1))
    running = engine.submit(sequence, forever(sequence))
    engine.stop()
    engine.stop()
    assert not engine.is_alive
    spec = SessionSpec((1,), 1, GREEDY, VerificationRule.REJECTION_TOKEN, 0)
    for future in (
        running,
        engine.submit(sequence, forever(sequence)),
        engine.open(spec),
        engine.check(),
    ):
        with pytest.raises(Aborted, match="stopped"):
            future.result(WAIT_S)
    engine.close(sequence)


def test_a_bug_on_the_thread_leaves_nobody_waiting(
    start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B66: should the thread die of a bug, jobs fail instead of hanging, and it shows."""
    reported = list[threading.ExceptHookArgs]()
    monkeypatch.setattr(threading, "excepthook", reported.append)
    engine = start_engine()
    sequence = open_sequence(engine, prompt(5, 1))

    def break_planning() -> Job[None]:
        sequence.num_cached = "five"  # type: ignore[assignment]  # a bug, made on purpose
        yield Extend(5, 1, GREEDY)

    with pytest.raises(Aborted, match="stopped"):
        engine.submit(sequence, break_planning()).result(WAIT_S)
    engine.stop()
    assert not engine.is_alive
    assert [TypeError] == [args.exc_type for args in reported]


def test_load_counts_what_is_there(start_engine: StartEngine) -> None:
    """B73: sessions and blocks are counted while open, and gone when closed."""
    engine = start_engine(num_blocks=10)
    sequence = open_sequence(engine, prompt(9, 1))
    engine.submit(sequence, read_laws(sequence, 1)).result(WAIT_S)
    load = engine.load
    assert (1, 0, 3, 7, 9) == (
        load.num_open_sessions,
        load.num_queued,
        load.num_held_blocks,
        load.num_free_blocks,
        load.num_rows,
    )
    engine.close(sequence)
    engine.check().result(WAIT_S)
    assert (0, 0, 10) == (
        engine.load.num_open_sessions,
        engine.load.num_held_blocks,
        engine.load.num_free_blocks,
    )


def test_cancelled_sessions_at_random_moments_leave_nothing(start_engine: StartEngine) -> None:
    """B59, B73: 60 sessions, half of them closed at once or on the way: all blocks come back."""
    engine = start_engine(num_blocks=24)
    dice = random.Random(0)
    for index in range(60):
        sequence = open_sequence(engine, prompt(dice.randrange(1, 30), index), arrival=float(index))
        future = engine.submit(sequence, forever(sequence))
        if dice.random() < 0.5:
            engine.submit(sequence, read_laws(sequence, 1)).result(WAIT_S)
        engine.close(sequence)
        with pytest.raises(Aborted):
            future.result(WAIT_S)
        engine.check().result(WAIT_S)
    assert 0 == engine.load.num_held_blocks
