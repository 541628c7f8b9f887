"""Execute several runs at the same time, each in a child process of a `ProcessPool`.

Runs of a script's own model and data need forks, which inherit these. Other runs use new Python processes, which can
train whatever the parent did before.
"""

from __future__ import annotations

import pickle
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from offbeat.core.errors import OffbeatError, RunError
from offbeat.engine import Status
from offbeat.engine.virtual import INTERRUPTED
from offbeat.experiment.run import execution
from offbeat.experiment.run.execution import Run
from offbeat.experiment.run.run_group import OnProgress, RunGroup
from offbeat.experiment.spec import user_code
from offbeat.workers import ChildProcess, Message, ProcessPool, Work, process_pool

PROGRESS_INTERVAL = 0.2  # seconds

Task = tuple[int, str, str | None]  # index of a run, its folder, its worker
RunResult = bool | Exception  # whether a run was finished and not interrupted, or its error


class ForksUnfit(Exception):
    """Raised if forks of this process cannot train; no run was changed."""


def can_run_in_parallel(runs: Sequence[Run]) -> bool:
    """Return whether child processes can execute these runs; only starting one shows whether forks can train."""
    return sys.platform == "linux" or all(run.script is None for run in runs)


def execute_in_parallel(
    runs: list[Run],
    jobs: int,
    on_progress: OnProgress | None = None,
    workers: Sequence[str] = (),
    memory: str | None = None,
) -> bool:
    """Finish all incomplete runs, `jobs` at a time; return False if they were interrupted.

    `workers` has the worker of each run. The first error of a run is raised when the other runs have ended. Raises
    ForksUnfit if forks are needed and cannot train.
    """
    group = RunGroup(runs, on_progress)
    tasks = iter([(i, str(runs[i].folder), workers[i] if workers else None) for i in group.incomplete])
    work: dict[int, Work] = {}  # index of a run -> its work
    current: dict[ChildProcess, int] = {}  # process -> index of its run
    forked = any(run.script is not None for run in runs)
    serve = partial(_execute_runs, runs if forked else (), memory)
    pool = ProcessPool[ChildProcess](kill=False)  # at the end, unfinished runs write a checkpoint
    # without this handler, a termination would leave the children behind
    with process_pool.replaced_handlers({signal.SIGTERM: signal.default_int_handler}):
        try:
            for _ in range(min(jobs, len(group.incomplete))):
                if forked:
                    pool.fork(serve, ChildProcess)
                else:
                    pool.spawn(serve, ChildProcess)
            for process in pool.processes:
                current[process] = _assign_run(process, next(tasks))
            while current:
                for process in pool.wait(PROGRESS_INTERVAL):
                    index = current[process]
                    kind, result, work[index], group.shares[index] = _receive_status(process)
                    if kind == process_pool.PROGRESS:
                        continue
                    if isinstance(result, Exception):
                        group.fail(index, result)
                    elif not result:
                        return False
                    del current[process]
                    if (task := next(tasks, None)) is None:
                        pool.remove(process)
                    else:
                        current[process] = _assign_run(process, task)
                group.work = sum(work.values(), Work())
                group.notify()
        except KeyboardInterrupt:
            return False
        finally:
            pool.end()
    group.raise_first_failure()
    return True


def _assign_run(process: ChildProcess, task: Task) -> int:
    """Give a process its next run and return the index of the run."""
    try:
        process_pool.send(process.pipe, Message(0, task[0], pickle.dumps(task)))
    except process_pool.CLOSED:
        raise _process_died_error() from None
    return task[0]


def _receive_status(process: ChildProcess) -> tuple[int, RunResult, Work, float]:
    """Return the kind of a message, the result of the run, its work and its finished share."""
    try:
        message = process_pool.receive(process.pipe)
    except process_pool.CLOSED:
        raise _process_died_error() from None
    if message.kind == process_pool.UNFIT:
        raise ForksUnfit(process_pool.decode_text(message.body))
    return message.kind, *pickle.loads(message.body)


def _process_died_error() -> execution.Unfinished:
    return execution.Unfinished("a process of the comparison died (out of memory?)")


# ---------------------------------------------------------------- in a child process


def _execute_runs(runs: Sequence[Run], memory: str | None, pipe: Connection) -> None:
    """Execute one run after the other; forks have the `runs` with what the script provided."""
    while True:
        index, folder, worker = pickle.loads(process_pool.receive(pipe).body)
        run = runs[index] if runs else Run(Path(folder))
        result = pickle.dumps(_execute_run(run, worker, memory, pipe))
        process_pool.send(pipe, Message(process_pool.ANSWER, index, result))


def _execute_run(run: Run, worker: str | None, memory: str | None, pipe: Connection) -> tuple[RunResult, Work, float]:
    """Execute a run and return its result, its work and its finished share."""
    work, share, reported = Work(), 0.0, 0.0

    def watch(status: Status) -> bool:
        """Report progress, and stop if the parent has closed the pipe or died."""
        nonlocal share, reported
        share = status.share
        try:
            if time.monotonic() - reported >= PROGRESS_INTERVAL:
                reported = time.monotonic()
                process_pool.send(pipe, Message(process_pool.PROGRESS, 0, pickle.dumps((True, work, share))))
            return pipe.poll()  # the parent sends nothing during a run, so this means that the pipe is closed
        except process_pool.CLOSED:
            return True

    try:
        outcome = execution.execute_run(run, watch, worker=worker, memory=memory, work=work)
    except Exception as error:
        return _make_sendable(error), work, share
    if outcome is not None and outcome.reason == INTERRUPTED:
        return False, work, share
    return True, work, 1.0


def _make_sendable(error: Exception) -> Exception:
    """Return the error, or one without attributes that cannot be pickled, with its traceback as a note."""
    if not isinstance(error, OffbeatError):
        description = user_code.describe_user_error(error)
        error = RuntimeError(f"{type(error).__name__}: {error}") if description is None else RunError(description)
    error.add_note(traceback.format_exc())
    return error
