"""Runs that are executed together: their progress, their errors, and their execution one after the other."""

from __future__ import annotations

import logging
import sqlite3
import traceback
from collections.abc import Callable
from pathlib import Path

from offbeat.core.errors import OffbeatError
from offbeat.engine.virtual import INTERRUPTED, Watch
from offbeat.experiment.run.execution import Run, Unfinished, execute_run
from offbeat.workers import Work

log = logging.getLogger("offbeat")

OnProgress = Callable[[list[float], Work], object]  # (finished share of each run, work computed so far)


class RunGroup:
    """The progress and the errors of runs; a run that fails does not stop the others."""

    def __init__(self, runs: list[Run], on_progress: OnProgress | None) -> None:
        self.runs = runs
        self.shares = [float(run.complete) for run in runs]  # the finished share of each run
        self.incomplete = [index for index, run in enumerate(runs) if not run.complete]
        self.work = Work()  # computed so far
        self.failed: dict[int, Exception] = {}  # index of a run -> its error
        self.progress_error: Exception | None = None  # error of the progress callback
        self._on_progress = on_progress

    def report(self, index: int, share: float) -> None:
        """Record the finished share of a run and call the progress callback."""
        self.shares[index] = share
        self.notify()

    def notify(self) -> None:
        """Call the progress callback."""
        if self._on_progress is not None:
            try:
                self._on_progress(list(self.shares), self.work)
            except Exception as error:
                self.progress_error = error
                raise

    def watch_run(self, index: int) -> Watch:
        """Return a callback for the engine of a run that reports its progress."""
        return lambda status: self.report(index, status.share)

    def fail(self, index: int, error: Exception) -> None:
        """Log the error of a run and keep it until the other runs have ended."""
        log.warning("%s", describe_failure(self.runs[index].folder, error))
        self.failed[index] = error

    def raise_first_failure(self) -> None:
        """Raise the first error of a run, if there is one."""
        for index, error in self.failed.items():
            if not isinstance(error, (OffbeatError, OSError, sqlite3.Error)):
                raise error  # a bug in offbeat or in user code: keep its traceback
            more = f" (and {len(self.failed) - 1} more)" if len(self.failed) > 1 else ""
            raise Unfinished(f"{describe_failure(self.runs[index].folder, error)}{more}")


def describe_failure(folder: Path, error: Exception) -> str:
    """Return the error message, preceded by the run folder unless the message begins with it."""
    return str(error) if str(error).startswith((f"{folder}: ", f"{folder} ")) else f"{folder}: {error}"


def execute_one_by_one(
    runs: list[Run], on_progress: OnProgress | None = None, worker: str | None = None, memory: str | None = None
) -> bool:
    """Finish all incomplete runs one after the other; return False if they were interrupted.

    The first error of a run is raised when the other runs have ended.
    """
    group = RunGroup(runs, on_progress)
    for index, run in enumerate(runs):
        try:
            outcome = execute_run(run, group.watch_run(index), worker=worker, memory=memory, work=group.work)
        except Exception as error:
            if group.progress_error is not None:
                raise
            group.fail(index, error)
            _clear_tracebacks(error)
            continue
        if outcome is not None and outcome.reason == INTERRUPTED:
            return False
        group.report(index, 1.0)
    group.raise_first_failure()
    return True


def _clear_tracebacks(error: BaseException | None) -> None:
    """Clear the frames of an error, which would keep the model, data and memory of its run alive."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
