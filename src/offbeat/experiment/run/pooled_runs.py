"""Execute the runs of a comparison side by side in one process, with one worker that trains their jobs together.

Each run has its own folder, trace and checkpoints, and can be finished alone. The jobs that are trained together depend
only on the events of the runs and their order, so repeating a comparison gives the same bits. A run that is executed
alone agrees within rounding.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from offbeat.core.errors import OffbeatError
from offbeat.core.jobs import Job, Result
from offbeat.core.threads import one_thread
from offbeat.engine import Answer, Outcome, Worker, infrequent_garbage_collection, ticket_of
from offbeat.engine.virtual import INTERRUPTED, VirtualEngine, Watch
from offbeat.experiment.run import execution
from offbeat.experiment.run.execution import OpenRun, Run
from offbeat.experiment.run.parallel_runs import OnProgress
from offbeat.workers import CountingWorker, Work, make_shared

log = logging.getLogger("offbeat")

MAX_RUNS_AT_ONCE = 64  # each has its models and caches in memory
CHECKPOINT_SECONDS = 30.0  # of host time

OnEnd = Callable[[int, Outcome | Exception], None]  # (run, its outcome or error)


def execute_side_by_side(
    runs: list[Run], on_progress: OnProgress | None = None, worker: str | None = None, memory: str | None = None
) -> bool:
    """Finish all incomplete runs; return False if they were interrupted.

    A failed run does not stop the others; its error is raised at the end.
    """
    shares = [float(run.complete) for run in runs]
    todo = [i for i, share in enumerate(shares) if share < 1.0]
    failed: dict[int, Exception] = {}
    work = Work()

    def report(index: int, share: float) -> None:
        shares[index] = share
        if on_progress is not None:
            on_progress(list(shares), work)

    for first in range(0, len(todo), MAX_RUNS_AT_ONCE):
        group = todo[first : first + MAX_RUNS_AT_ONCE]
        with contextlib.ExitStack() as stack:
            opened = {i: stack.enter_context(execution.open_run(runs[i], worker, memory)) for i in group}
            incomplete = {i: run for i, run in opened.items() if run is not None}
            if not _execute_group(incomplete, shares, report, failed, work):
                return False
        for i in group:
            if i not in failed:
                report(i, 1.0)
    execution.raise_failures({runs[i].folder: error for i, error in failed.items()})
    return True


def _execute_group(
    runs: dict[int, OpenRun],
    shares: list[float],
    report: Callable[[int, float], None],
    failed: dict[int, Exception],
    work: Work,
) -> bool:
    trainers, positions = [run.setup.trainer for run in runs.values()], {i: at for at, i in enumerate(runs)}
    worker = SharedWorker(
        lambda run_of: CountingWorker(make_shared(trainers, lambda job: positions[run_of(job)]), work)
    )
    interrupted = False

    def follow(index: int) -> Watch:
        return lambda status: report(index, status.share)

    def fail(i: int, error: Exception) -> None:
        log.warning("%s: %s", runs[i].run.folder, error)
        failed[i] = error

    def on_end(i: int, outcome: Outcome | Exception) -> None:
        nonlocal interrupted
        try:
            if isinstance(outcome, Exception):
                raise outcome
            runs[i].finish(outcome)
        except Exception as error:  # the other runs continue after any error
            fail(i, error)
            return
        if outcome.reason == INTERRUPTED:
            interrupted = True
        else:
            shares[i] = 1.0  # a run that reaches its target ends early; the next report of another run includes it

    engines = {}
    for i, run in runs.items():
        try:
            engines[i] = run.build_engine(worker.worker_for(i), follow(i), CHECKPOINT_SECONDS)
        except OffbeatError as error:  # for example an unreadable checkpoint
            fail(i, error)
    with execution.errors_as_unfinished(), execution.interrupt_on_signals(engines.values()):
        for i in engines:
            runs[i].record_start()
        run_together(engines, worker, on_end)
    return not interrupted


def run_together(engines: Mapping[int, VirtualEngine], worker: SharedWorker, on_end: OnEnd) -> None:
    """Run engines until each needs a result, collect these results together, and repeat.

    `on_end` is called when a run ends. A run that fails does not stop the others. The worker is closed at the end.
    """
    needed: dict[int, int] = {}  # run -> the ticket it waits for
    active = dict(engines)

    def end(run: int, outcome: Outcome | Exception) -> None:
        del active[run]
        worker.remove(run)
        on_end(run, outcome)

    def advance(run: int) -> None:
        try:
            ticket = active[run].advance()
            if ticket is not None:
                needed[run] = ticket
                return
            outcome: Outcome | Exception = active[run].finish()
        except Exception as error:
            outcome = error
        end(run, outcome)

    try:
        with one_thread(), infrequent_garbage_collection():
            while active:
                for run in [run for run in active if run not in needed]:
                    advance(run)
                if needed:
                    worker.gather(needed)
                for run, ticket in needed.items():
                    try:
                        active[run].provide(active[run].worker.collect((ticket,)))
                    except Exception as error:
                        end(run, error)
                needed.clear()
    finally:
        worker.close()


class SharedWorker:
    """A worker that several runs share, which trains their jobs together.

    It numbers jobs itself, because runs use the same tickets. `make` makes the worker; it gets a function that returns
    the run of a job.
    """

    def __init__(self, make: Callable[[Callable[[Job], int]], Worker]) -> None:
        self._sent: dict[int, tuple[int, int]] = {}  # number -> (run, its ticket)
        self._numbers: dict[tuple[int, int], int] = {}
        self._ready: dict[int, list[Answer]] = {}  # run -> answers it has not collected yet
        self._next = 0
        self._worker = make(self.run_of)

    def run_of(self, job: Job) -> int:
        return self._sent[job.ticket][0]

    def worker_for(self, run: int) -> RunWorker:
        return RunWorker(self, run)

    def submit(self, run: int, job: Job, due: float) -> None:
        number, self._next = self._next, self._next + 1
        self._sent[number], self._numbers[run, job.ticket] = (run, job.ticket), number
        self._worker.submit(replace(job, ticket=number), due)

    def cancel(self, run: int, ticket: int) -> None:
        number = self._numbers.pop((run, ticket), None)
        if number is not None:
            self._worker.cancel(number)
            self._sent.pop(number, None)

    def gather(self, needed: Mapping[int, int]) -> None:
        """Collect the answer to one ticket of each run, and any others that arrive with them."""
        for answer in self._worker.collect([self._numbers[run, ticket] for run, ticket in needed.items()]):
            number = ticket_of(answer)
            if number is None or number not in self._sent:
                continue  # cancelled
            run, ticket = self._sent.pop(number)
            self._numbers.pop((run, ticket), None)
            self._ready.setdefault(run, []).append(
                Result(ticket, answer.local, answer.num_examples, answer.steps, answer.extras, answer.memory)
                if isinstance(answer, Result)
                else replace(answer, ticket=ticket)
            )

    def ready(self, run: int) -> list[Answer]:
        return self._ready.pop(run, [])

    def remove(self, run: int) -> None:
        """Cancel all jobs of a run."""
        self._ready.pop(run, None)
        for key in [key for key in self._numbers if key[0] == run]:
            self.cancel(*key)

    def close(self) -> None:
        self._worker.close()


class RunWorker:
    """The shared worker as one run sees it."""

    def __init__(self, shared: SharedWorker, run: int) -> None:
        self._shared, self._run = shared, run

    def submit(self, job: Job, due: float) -> None:
        self._shared.submit(self._run, job, due)

    def cancel(self, ticket: int) -> None:
        self._shared.cancel(self._run, ticket)

    def collect(self, tickets: Collection[int]) -> list[Answer]:
        """Return the answers that were gathered for this run."""
        return self._shared.ready(self._run)

    def close(self) -> None:
        self._shared.remove(self._run)
