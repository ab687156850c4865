"""The engine: one thread that runs steps for jobs, and hands their results back as futures.

A job (`job.py`) yields what it wants from the model and is resumed with the laws. The thread
batches whatever all jobs want into the next step, so no job knows of any other. Sequences, blocks
and the cache are touched by this thread alone.

It knows no gRPC and no event loop.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

import torch

from paceline.engine.block_pool import BlockPool
from paceline.engine.device_loss import is_device_lost
from paceline.engine.figures import EngineFigures
from paceline.engine.job import Extend, Extended, Job
from paceline.engine.law import Law
from paceline.engine.mailbox import Mailbox
from paceline.engine.returns import Returns
from paceline.engine.sampling import target_laws
from paceline.engine.scheduler import Plan, Scheduler
from paceline.engine.sequence import Sequence
from paceline.engine.step import ModelRunner
from paceline.engine.task import Task
from paceline.errors import Aborted, Exhausted
from paceline.records import ReplicaLoad, SessionSpec

T = TypeVar("T")
_LOOK_S = 1.0  # how often it is looked whether a step that is waited for is stuck


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How much an engine holds and how much it does at once."""

    num_blocks: int
    block_size: int = 16
    max_rows: int = 512
    """Rows of a step, at most; longer prompts are prefilled in chunks."""
    max_draft_tokens: int = 16
    step_limit_s: float = 300.0
    """A step that takes longer is stuck."""


class Engine:
    """Runs jobs on one model."""

    def __init__(self, runner: ModelRunner, options: EngineOptions) -> None:
        self.options = options
        self._runner = runner
        self._pool = BlockPool(options.num_blocks, options.block_size)
        self._scheduler = Scheduler(
            self._pool,
            max_rows=options.max_rows,
            max_short_rows=options.max_draft_tokens + 1,
        )
        self._tasks: dict[Sequence, Task] = {}
        self._mail = Mailbox()
        self._returns = Returns()
        self._is_stopping = False
        self._num_rows = 0
        self._step_due_s = math.inf
        """When the step that runs counts as stuck."""
        self.num_failed_steps = 0
        self.figures = EngineFigures()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        runner.allocate(options.num_blocks, options.block_size)

    # Called from any thread ---------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after the step it is in; jobs in flight and later ones are Aborted.

        One that is stuck is left behind: it ends with the process.
        """
        self._mail.post(self._set_stopping)
        while self.is_alive:
            self._thread.join(_LOOK_S)

    def open(self, session: SessionSpec) -> Future[Sequence]:
        """Opens a sequence for a session; its cached prefix is already in place."""

        def open_now() -> Sequence:
            sequence = Sequence(
                self._pool,
                session.token_ids,
                prompt_length=session.prompt_length,
                cache_domain=session.cache_domain,
                arrival_time_s=session.arrival_time_s,
            )
            self._scheduler.open(sequence)
            sequence.reuse_prefix(len(sequence) - 1)
            self.figures.add_opened(len(sequence), sequence.num_cached)
            return sequence

        return self._mail.post(open_now)

    def submit(self, sequence: Sequence, job: Job[T]) -> Future[T]:
        """Starts a job on a sequence. A job that still runs on it is ended and its future failed.

        The future fails with what the job raises, or with Aborted when the sequence was closed.
        """
        task = Task(sequence, job, Future(), time.perf_counter())
        task.future.set_running_or_notify_cancel()
        self._mail.send(lambda: self._begin(task), task.future)
        return task.future

    def close(self, sequence: Sequence) -> None:
        """Ends a sequence between two steps: its job first, then its blocks."""
        self._mail.post(lambda: self._close(sequence))

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Runs a function between two steps: for looking at state that only the thread may see."""
        return self._mail.post(function)

    def check(self) -> Future[None]:
        """Proves that every block is accounted for.

        The future fails with AssertionError if one is leaked or given out twice.
        """
        return self._mail.post(
            lambda: self._pool.check([s.block_table for s in self._scheduler.sequences])
        )

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs and is stuck in no step; else jobs fail or wait in vain."""
        return self._thread.is_alive() and time.perf_counter() <= self._step_due_s

    @property
    def load(self) -> ReplicaLoad:
        """How busy it is; the numbers may be one step old."""
        return ReplicaLoad(
            num_open_sessions=len(self._scheduler),
            num_queued=len(self._tasks),
            num_rows=self._num_rows,
            num_held_blocks=self._pool.num_held,
            num_free_blocks=self._pool.num_free,
        )

    @property
    def num_preemptions(self) -> int:
        """How often a sequence lost its blocks to an earlier one."""
        return self._scheduler.num_preemptions

    # On the engine thread -----------------------------------------------------------------------

    def _run(self) -> None:
        is_idle = True
        try:
            while not self._is_stopping:
                self._mail.read(None if is_idle else 0.0)
                self._gather()
                is_idle = not self._tasks or not self._advance()
        finally:  # also when a bug ends the thread: nobody may wait for it for ever
            self._mail.shut()
            for task in list(self._tasks.values()):
                self._end(task, Aborted("the engine stopped"))

    def _gather(self) -> None:
        """Waits for sequences that will be back before another step would have been worth it."""
        while self._tasks and not self._is_stopping:
            wait_s = self._returns.wait_s(time.perf_counter())
            if not wait_s:
                return
            self._mail.read(wait_s)

    def _set_stopping(self) -> None:
        self._is_stopping = True

    def _begin(self, task: Task) -> None:
        old = self._tasks.get(task.sequence)
        if old is not None:
            self._end(old, Aborted("superseded by newer work", reason="SUPERSEDED"))
        if task.sequence not in self._scheduler:
            task.job.close()
            task.future.set_exception(Aborted("the session is closed"))
            return
        self._returns.come(task.sequence, task.asked_at)
        self._resume(task, None)

    def _close(self, sequence: Sequence) -> None:
        task = self._tasks.get(sequence)
        if task is not None:
            self._end(task, Aborted("the session is closed"))
        self._scheduler.close(sequence)
        self._returns.forget(sequence)

    def _end(self, task: Task, error: BaseException) -> None:
        self._tasks.pop(task.sequence, None)
        with contextlib.suppress(Exception):  # how a job takes its end changes nothing
            task.job.close()
        task.future.set_exception(error)

    def _fail(self, task: Task, error: Exception) -> None:
        """Ends a job for a fault; the session is back where it was when last committed."""
        task.sequence.truncate(task.sequence.num_committed)
        self._end(task, error)

    def _advance(self) -> bool:
        """Runs one step; False when there was nothing that could be run."""
        plan = self._scheduler.plan([task.demand for task in self._tasks.values()])
        if not plan.spans:
            return False
        tasks = [self._tasks[demand.sequence] for demand in plan.demands]  # one per span
        started_at = time.perf_counter()
        for task in tasks:
            task.started_at = task.started_at or started_at
        self._step_due_s = started_at + self.options.step_limit_s
        try:
            logits, laws = self._forward(plan, tasks)
        except Exception as error:  # the engine outlives whatever one step did, but for its device
            if is_device_lost(error):
                raise
            self.num_failed_steps += 1
            for task in tasks:
                task.sequence.release()
                self._fail(task, error)
            return True
        finally:
            self._step_due_s = math.inf
        duration_s = time.perf_counter() - started_at
        self.figures.add_step(self._num_rows, duration_s)
        self._returns.add_step(duration_s)
        last = 0
        for task, span in zip(tasks, plan.spans, strict=True):
            first, last = last, last + span.num_logits
            task.sequence.num_cached = span.end
            task.sequence.register_prefix()
            if task.request is not None and span.end == task.request.length:
                now = time.perf_counter()
                queue_s, forward_s = task.started_at - task.asked_at, now - task.started_at
                is_asked = task.request.sampling.num_log_probs is not None
                raw = logits[first:last] if is_asked else None
                self._resume(task, Extended(laws[first:last], queue_s, forward_s, raw))
        return True

    def _forward(self, plan: Plan, tasks: list[Task]) -> tuple[torch.Tensor, list[Law]]:
        if plan.copies:
            self._runner.copy_blocks(plan.copies)
        step = plan.step(self._pool.block_size)
        self._num_rows = step.num_rows
        logits = self._runner.run(step)
        rows = [
            row
            for task, span in zip(tasks, plan.spans, strict=True)
            for row in task.rows(span.num_logits)
        ]
        params, histories = [p for p, _ in rows], [h for _, h in rows]
        return logits, target_laws(logits, params, histories) if rows else []

    def _resume(self, task: Task, extended: Extended | None) -> None:
        """Lets a job go on until it wants rows that are not in the cache, or ends.

        Its first rows were asked for when it was handed in, maybe during a step.
        """
        is_first = extended is None
        try:
            while True:
                request = next(task.job) if extended is None else task.job.send(extended)
                self._check_request(request, task.sequence)
                if request.num_laws or request.length > task.sequence.num_cached:
                    break
                extended = Extended([], 0.0, 0.0)  # all of it is there already
        except StopIteration as result:
            self._tasks.pop(task.sequence, None)
            self._returns.leave(task.sequence, time.perf_counter())
            task.future.set_result(result.value)
        except Exception as error:  # bad input or a bug: the job's own, not the engine's
            self._fail(task, error)
        else:
            task.request = request
            if not is_first:
                task.asked_at = time.perf_counter()
            task.started_at = 0.0
            self._tasks[task.sequence] = task

    def _check_request(self, request: Extend, sequence: Sequence) -> None:
        """Refuses what no step could ever serve: it would wait for ever."""
        if not 0 <= request.num_laws <= request.length <= len(sequence):
            raise ValueError(f"{request} does not fit a sequence of {len(sequence)} tokens")
        if request.num_laws > self.options.max_rows:
            raise ValueError(f"{request} wants more laws than a step has rows")
        capacity = self.options.num_blocks * self.options.block_size
        if request.length > capacity:
            raise Exhausted(f"the cache holds {capacity} tokens, not {request.length}")
