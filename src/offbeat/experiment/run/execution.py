"""One execution of an experiment: start it, stop it at any moment, resume it. `folder` has where it lies."""

from __future__ import annotations

import contextlib
import logging
import signal
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import nan
from pathlib import Path
from types import FrameType
from typing import Protocol

from safetensors.torch import save
from torch import Tensor

from offbeat.core.errors import CheckpointError, OffbeatError, RunError
from offbeat.engine.checkpoint import Checkpoints, write_atomically
from offbeat.engine.client_store import ClientMemory
from offbeat.engine.progress import Outcome
from offbeat.engine.trace import WALL_SECONDS, WORKER_FACT, Trace
from offbeat.engine.virtual.virtual_engine import INTERRUPTED, VirtualEngine, Watch
from offbeat.engine.worker import Worker
from offbeat.experiment import build
from offbeat.experiment.run import auto_worker, checksums, client_memory, run_lock
from offbeat.experiment.run.run_folder import COMPARISON, Run, create_run
from offbeat.experiment.spec.config import Experiment
from offbeat.metrics import trace_summary
from offbeat.workers import registry
from offbeat.workers.wrappers import CountingWorker, Work

log = logging.getLogger("offbeat")


__all__ = [
    "COMPARISON",
    "OpenRun",
    "Run",
    "Unfinished",
    "open_run",
    "last_worker",
    "create_run",
    "execute_run",
    "interrupt_on_signals",
    "describe_failure",
    "errors_as_unfinished",
    "choose_auto_worker",
    "raise_failures",
]


class Unfinished(RunError):
    """A run that an error stopped. What is stored is whole: it can be resumed."""


def raise_failures(failed: Mapping[Path, Exception]) -> None:
    """Raise what became of runs that were to go on beside others."""
    for folder, error in failed.items():
        if not isinstance(error, (OffbeatError, OSError, sqlite3.Error)):
            raise error  # of ours or of somebody's code: where it came from is worth more than a line
        raise Unfinished(
            describe_failure(folder, error) + (f" (and {len(failed) - 1} more)" if len(failed) > 1 else "")
        )


def describe_failure(folder: Path, error: Exception) -> str:
    """What went wrong, and with which run; some errors say that themselves."""
    return str(error) if str(error).startswith((f"{folder}: ", f"{folder} ")) else f"{folder}: {error}"


def execute_run(
    run: Run,
    watch: Watch | None = None,
    checkpoint_every: float = 30.0,
    worker: str | None = None,
    memory: str | None = None,
    work: Work | None = None,
) -> Outcome | None:
    """Run to the end, from the newest checkpoint if there is one; None if it was complete already.

    `worker` computes the jobs, `memory` is for what is kept of clients; without one, what the run was begun with.
    What is computed is added to `work`.
    Ctrl-C ends it after the current event with a checkpoint; the outcome then says INTERRUPTED.
    """
    with open_run(run, worker, memory) as going:
        if going is None:
            return None
        computing = registry.make_worker(going.chosen, going.setup.trainer, going.record_worker_note)
        if work is not None:
            computing = CountingWorker(computing, work)
        engine = going.build_engine(computing, watch, checkpoint_every)
        with errors_as_unfinished(), interrupt_on_signals([engine]):
            going.record_start()
            outcome = engine.run()
            going.finish(outcome)
    return outcome


@dataclass
class OpenRun:
    """A run folder that is open: locked, checked, and going on."""

    run: Run
    experiment: Experiment
    setup: build.Setup
    chosen: registry.WorkerChoice
    trace: Trace
    client_memory: ClientMemory | None  # of clients, under a limit
    facts: Mapping[str, object]
    started: float
    earlier_seconds: float = 0.0  # host seconds of earlier attempts

    def build_engine(self, worker: Worker, watch: Watch | None, checkpoint_every: float) -> VirtualEngine:
        """As the newest checkpoint has it."""
        checkpoints = Checkpoints(
            self.run.folder / "checkpoint", self.setup.world.model.device, external=self.client_memory
        )
        engine = build.build_engine(
            self.setup,
            self.experiment,
            trace=self.trace,
            checkpoints=checkpoints,
            checkpoint_every=checkpoint_every,
            watch=watch,
            worker=worker,
            memory=self.client_memory,
        )
        _restore(self.run, engine)
        return engine

    def record_start(self) -> None:
        self.earlier_seconds = earlier_wall_seconds(self.trace)
        self.trace.set_facts({**self.facts, WORKER_FACT: _worker_history(self.trace, self.chosen)})

    def record_worker_note(self, text: str) -> None:
        """Who computes it turns out to be somebody particular: stored at once, whatever becomes of the run."""
        self.trace.set_facts({WORKER_FACT: f"{_worker_history(self.trace, self.chosen)} ({text})"})

    def finish(self, outcome: Outcome) -> None:
        """Store what came out."""
        store_results(self.run, self.trace, outcome, self.earlier_seconds + time.monotonic() - self.started, self.setup)
        if outcome.reason != INTERRUPTED:
            client_memory.remove_memory_files(self.run.folder)


class ModelNames(Protocol):
    """Knows the parts of a model by name."""

    def state_dict(self, model: Tensor) -> dict[str, Tensor]: ...


def store_results(run: Run, trace: Trace, outcome: Outcome, seconds: float, made: ModelNames) -> None:
    """What it cost, and, of a run that came to its end, the model. `seconds`: host time of all attempts."""
    trace.set_facts({WALL_SECONDS: seconds, **outcome.costs()})
    if outcome.reason != INTERRUPTED:
        model = save(made.state_dict(outcome.model))
        checksums.write_final_checksums(run.folder, trace, model)
        write_atomically(run.model_file, model)  # last: with it the run is complete


@contextlib.contextmanager
def open_run(run: Run, worker: str | None = None, memory: str | None = None) -> Iterator[OpenRun | None]:
    """Open a run folder to go on with it; None if it is complete."""
    run.experiment()  # which says what is no run, before anything is locked
    with run_lock.exclusive_lock(run.folder):
        if run.complete:
            client_memory.remove_memory_files(run.folder)  # it is not resumed any more
            yield None
            return
        run_lock.remove_temporary_files(run.folder)
        run.check_unchanged()
        chosen = registry.usable(run.worker() if worker is None else registry.parse_worker(worker))
        if chosen == registry.AUTO:
            chosen = choose_auto_worker(run)
        made = run.setup(registry.device_of(chosen))
        limit = client_memory.resume_limit(run.folder, memory)
        trace = Trace(run.trace_file)
        kept = client_memory.open_memory(run.folder, limit, made.world.model.device)
        try:
            facts = {**made.facts, **client_memory.memory_facts(limit)}
            yield OpenRun(run, run.runnable_experiment(), made, chosen, trace, kept, facts, time.monotonic())
        finally:
            trace.close_after_error()
            if kept is not None:
                kept.close()


def _restore(run: Run, engine: VirtualEngine) -> None:
    try:
        engine.restore()
    except sqlite3.Error as error:
        raise RunError(f"cannot read the trace {run.trace_file}: {error}") from None
    except CheckpointError as error:
        over = f"to start over, remove {run.folder / 'checkpoint'}"
        raise CheckpointError(f"{error}. Nothing was changed; put back what was there, or {over}") from None


@contextlib.contextmanager
def errors_as_unfinished() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unfinished(f"{error.strerror or error}") from None
    except (OffbeatError, sqlite3.Error) as error:
        raise Unfinished(str(error)) from None


def earlier_wall_seconds(trace: Trace) -> float:
    """Of the attempts before this one; a killed one did not get to say."""
    stored = trace.db.execute("SELECT value FROM facts WHERE key = ?", (WALL_SECONDS,)).fetchone()
    try:
        return float(stored[0]) if stored else 0.0
    except ValueError:
        return nan  # nobody knows any more


def choose_auto_worker(run: Run, cores: int | None = None) -> registry.WorkerChoice:
    """Whom `auto` chose when the run began, or chooses now, for so many cores."""
    if (stored := last_worker(run)) is not None:
        return stored
    chosen, why = auto_worker.settle(run.setup(), cores)
    log.warning("worker auto: %s is used (%s)", chosen, why)
    return chosen


def last_worker(run: Run) -> registry.WorkerChoice | None:
    """Who was last at it; None before it began."""
    if run.trace_file.is_file():
        with trace_summary.open_trace(run.trace_file) as db:
            stored = db.execute("SELECT value FROM facts WHERE key = ?", (WORKER_FACT,)).fetchone()
        if stored:
            return registry.usable(registry.recorded_choice(str(stored[0]).split(", then ")[-1]))
    return None


def _worker_history(trace: Trace, now: registry.WorkerChoice) -> str:
    """With the one of this attempt, where that is another."""
    stored = trace.db.execute("SELECT value FROM facts WHERE key = ?", (WORKER_FACT,)).fetchone()
    before = str(stored[0]).split(", then ") if stored else []
    return ", then ".join(before if before[-1:] == [str(now)] else [*before, str(now)])


class Stoppable(Protocol):
    interrupt: bool


@contextlib.contextmanager
def interrupt_on_signals(engines: Iterable[Stoppable]) -> Iterator[None]:
    """Ctrl-C or a termination asks the engines to stop between two events; a second one stops at once (the last
    checkpoint stays).

    Who ignores Ctrl-C (a job in the background, one of several runs) goes on ignoring it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    heeded = [number for number, handler in before.items() if handler != signal.SIG_IGN]

    def ask(number: int, frame: FrameType | None) -> None:
        for engine in engines:
            engine.interrupt = True
        signal.signal(number, signal.default_int_handler)

    for number in heeded:
        signal.signal(number, ask)
    try:
        yield
    finally:
        for number in heeded:
            signal.signal(number, before[number])
