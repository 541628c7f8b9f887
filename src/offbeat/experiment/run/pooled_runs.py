"""Execute the runs of a comparison side by side in one process, with one worker that trains their jobs together.

Each run has its own folder, trace and checkpoints, and can be finished alone. The jobs that are trained together depend
only on the events of the runs and their order, so repeating a comparison gives the same bits. A run that is executed
alone agrees within rounding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import count

from offbeat.core.errors import OffbeatError
from offbeat.core.jobs import Job
from offbeat.core.threads import one_thread
from offbeat.engine import Answer, Outcome, Worker, infrequent_garbage_collection, ticket_of
from offbeat.engine.virtual import INTERRUPTED, VirtualEngine
from offbeat.experiment.run import execution
from offbeat.experiment.run.execution import OpenRun, Run
from offbeat.experiment.run.run_group import OnProgress, RunGroup
from offbeat.workers import CountingWorker, make_shared

MAX_RUNS_AT_ONCE = 64  # each has its models and caches in memory
CHECKPOINT_SECONDS = 30.0  # of host time

OnEnd = Callable[[int, Outcome | Exception], None]  # (run, its outcome or error)


def execute_side_by_side(
    runs: list[Run], on_progress: OnProgress | None = None, worker: str | None = None, memory: str | None = None
) -> bool:
    """Finish all incomplete runs; return False if they were interrupted.

    The first error of a run is raised when the other runs have ended.
    """
    group = RunGroup(runs, on_progress)
    for first in range(0, len(group.incomplete), MAX_RUNS_AT_ONCE):
        indices = group.incomplete[first : first + MAX_RUNS_AT_ONCE]
        with contextlib.ExitStack() as stack:
            opened = {i: stack.enter_context(execution.open_run(runs[i], worker, memory)) for i in indices}
            if not _execute_opened({i: run for i, run in opened.items() if run is not None}, group):
                return False
        for i in indices:
            if i not in group.failed:
                group.report(i, 1.0)
    group.raise_first_failure()
    return True


def _execute_opened(runs: dict[int, OpenRun], group: RunGroup) -> bool:
    """Execute open runs together; return False if they were interrupted."""
    trainers, positions = [run.setup.trainer for run in runs.values()], {i: at for at, i in enumerate(runs)}
    worker = SharedWorker(
        lambda run_of: CountingWorker(make_shared(trainers, lambda job: positions[run_of(job)]), group.work)
    )
    interrupted = False

    def on_end(i: int, outcome: Outcome | Exception) -> None:
        """Store the results of a run, or keep its error."""
        nonlocal interrupted
        try:
            if isinstance(outcome, Exception):
                raise outcome
            runs[i].finish(outcome)
        except Exception as error:  # the other runs continue after any error
            group.fail(i, error)
            return
        if outcome.reason == INTERRUPTED:
            interrupted = True
        else:
            group.shares[i] = 1.0  # a run that reaches its target ends early; the next report of another includes it

    engines = {}
    for i, run in runs.items():
        try:
            engines[i] = run.build_engine(worker.worker_for(i), group.watch_run(i), CHECKPOINT_SECONDS)
        except OffbeatError as error:  # for example an unreadable checkpoint
            group.fail(i, error)
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

    def end_run(run: int, outcome: Outcome | Exception) -> None:
        """Remove a run that has ended, and report its outcome or error."""
        del active[run]
        worker.cancel_run(run)
        on_end(run, outcome)

    def advance_run(run: int) -> None:
        """Continue a run until it needs a result or ends."""
        try:
            ticket = active[run].advance()
            if ticket is not None:
                needed[run] = ticket
                return
            outcome: Outcome | Exception = active[run].finish()
        except Exception as error:
            outcome = error
        end_run(run, outcome)

    try:
        with one_thread(), infrequent_garbage_collection():
            while active:
                for run in [run for run in active if run not in needed]:
                    advance_run(run)
                if needed:
                    worker.gather(needed)
                for run, ticket in needed.items():
                    try:
                        active[run].provide(active[run].worker.collect((ticket,)))
                    except Exception as error:
                        end_run(run, error)
                needed.clear()
    finally:
        worker.close()


class SharedWorker:
    """A worker that several runs share, which trains their jobs together.

    It numbers jobs itself, because runs use the same tickets. `make` creates the worker that trains; its argument is a
    function that returns the run of a job.
    """

    def __init__(self, make: Callable[[Callable[[Job], int]], Worker]) -> None:
        self._runs: dict[int, RunWorker] = {}
        self._sent: dict[int, tuple[RunWorker, int]] = {}  # number -> (worker of the run, ticket)
        self._numbers = count()
        self._worker = make(self.run_of)

    def run_of(self, job: Job) -> int:
        """Return the run that submitted a numbered job."""
        return self._sent[job.ticket][0].run

    def worker_for(self, run: int) -> RunWorker:
        """Create the worker of one run."""
        self._runs[run] = RunWorker(self, run)
        return self._runs[run]

    def submit(self, owner: RunWorker, job: Job, due: float) -> int:
        """Submit a job of a run and return its number."""
        number = next(self._numbers)
        self._sent[number] = (owner, job.ticket)
        self._worker.submit(replace(job, ticket=number), due)
        return number

    def cancel(self, number: int) -> None:
        """Cancel a numbered job."""
        self._worker.cancel(number)
        self._sent.pop(number, None)

    def gather(self, needed: Mapping[int, int]) -> None:
        """Collect the answer to one ticket of each run, and any others that arrive with them."""
        for answer in self._worker.collect([self._runs[run].numbers[ticket] for run, ticket in needed.items()]):
            number = ticket_of(answer)
            if number is None or number not in self._sent:
                continue  # cancelled
            owner, ticket = self._sent.pop(number)
            owner.store(replace(answer, ticket=ticket))

    def cancel_run(self, run: int) -> None:
        """Cancel all jobs of a run."""
        self._runs[run].close()

    def close(self) -> None:
        """Close the worker that trains."""
        self._worker.close()


class RunWorker:
    """The worker of one run; it passes jobs to the shared worker and keeps the answers until the run collects them."""

    def __init__(self, shared: SharedWorker, run: int) -> None:
        self.run = run
        self.numbers: dict[int, int] = {}  # ticket -> number of the job at the shared worker
        self._shared = shared
        self._answers: list[Answer] = []

    def submit(self, job: Job, due: float) -> None:
        """Submit a job to the shared worker."""
        self.numbers[job.ticket] = self._shared.submit(self, job, due)

    def cancel(self, ticket: int) -> None:
        """Cancel a job that is not answered yet."""
        if ticket in self.numbers:
            self._shared.cancel(self.numbers.pop(ticket))

    def store(self, answer: Answer) -> None:
        """Keep an answer of the shared worker until it is collected."""
        self.numbers.pop(answer.ticket, None)
        self._answers.append(answer)

    def collect(self, tickets: Collection[int]) -> list[Answer]:
        """Return the answers that were gathered for this run."""
        answers, self._answers = self._answers, []
        return answers

    def close(self) -> None:
        """Cancel all jobs and drop uncollected answers."""
        self._answers.clear()
        for ticket in list(self.numbers):
            self.cancel(ticket)
