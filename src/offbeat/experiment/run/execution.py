"""Execute a run: start it, stop it at any moment, resume it."""

from __future__ import annotations

import contextlib
import logging
import signal
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import nan
from types import FrameType
from typing import Protocol

from safetensors.torch import save
from torch import Tensor

from offbeat.core.errors import CheckpointError, OffbeatError, RunError
from offbeat.engine import (
    WALL_SECONDS,
    WORKER_FACT,
    Checkpoints,
    ClientMemory,
    Outcome,
    Trace,
    Worker,
    remove_slot_files,
    write_atomically,
)
from offbeat.engine.virtual import INTERRUPTED, VirtualEngine, Watch
from offbeat.experiment import build
from offbeat.experiment.run import checksums, client_memory, run_lock
from offbeat.experiment.run.run_folder import COMPARISON as COMPARISON
from offbeat.experiment.run.run_folder import Run as Run
from offbeat.experiment.run.run_folder import create_run as create_run
from offbeat.experiment.spec.config import Experiment
from offbeat.metrics import open_trace
from offbeat.workers import CountingWorker, Work, WorkerChoice, registry, replaced_handlers

log = logging.getLogger("offbeat")


class Unfinished(RunError):
    """An error stopped a run; its folder is intact, so it can be resumed."""


def execute_run(
    run: Run,
    watch: Watch | None = None,
    checkpoint_every: float = 30.0,
    worker: str | None = None,
    memory: str | None = None,
    work: Work | None = None,
) -> Outcome | None:
    """Execute a run to its end, from the newest checkpoint if there is one; return None if it was complete.

    worker, memory: Worker and limit of client memory, by default those that the run was created with.
    work: Counts what is computed.

    After Ctrl-C, the run writes a checkpoint, and the reason of the outcome is INTERRUPTED.
    """
    with open_run(run, worker, memory) as opened:
        if opened is None:
            return None
        computing = registry.make_worker(opened.worker_choice, opened.setup.trainer, opened.record_worker_note)
        if work is not None:
            computing = CountingWorker(computing, work)
        engine = opened.build_engine(computing, watch, checkpoint_every)
        with errors_as_unfinished(), interrupt_on_signals([engine]):
            opened.record_start()
            outcome = engine.run()
            opened.finish(outcome)
    return outcome


@dataclass
class OpenRun:
    """A run folder that is locked and checked, ready to execute."""

    run: Run
    experiment: Experiment
    setup: build.Setup
    worker_choice: WorkerChoice
    trace: Trace
    memory: ClientMemory | None  # None without a limit
    facts: Mapping[str, object]
    started: float
    earlier_seconds: float = 0.0  # host time of earlier executions

    def build_engine(self, worker: Worker, watch: Watch | None, checkpoint_every: float) -> VirtualEngine:
        """Build the engine and restore the newest checkpoint."""
        checkpoints = Checkpoints(self.run.folder / "checkpoint", self.setup.world.model.device, external=self.memory)
        engine = build.build_engine(
            self.setup,
            self.experiment,
            trace=self.trace,
            checkpoints=checkpoints,
            checkpoint_every=checkpoint_every,
            watch=watch,
            worker=worker,
            memory=self.memory,
        )
        _restore(self.run, engine)
        return engine

    def record_start(self) -> None:
        """Store the facts of the run and the worker in the trace."""
        self.earlier_seconds = earlier_wall_seconds(self.trace)
        self.trace.set_facts({**self.facts, WORKER_FACT: _worker_history(self.trace, self.worker_choice)})

    def record_worker_note(self, text: str) -> None:
        """Store a remark about the worker in the trace at once."""
        self.trace.set_facts({WORKER_FACT: f"{_worker_history(self.trace, self.worker_choice)} ({text})"})

    def finish(self, outcome: Outcome) -> None:
        """Store the results."""
        seconds = self.earlier_seconds + time.monotonic() - self.started
        store_results(self.run, self.trace, outcome, seconds, self.setup.state_dict)
        if outcome.reason != INTERRUPTED:
            remove_slot_files(self.run.folder / "checkpoint")


def store_results(
    run: Run, trace: Trace, outcome: Outcome, seconds: float, state_dict: Callable[[Tensor], dict[str, Tensor]]
) -> None:
    """Store costs and, if the run has ended, the model, which `state_dict` converts to named tensors.

    seconds: Host time of all executions.
    """
    trace.set_facts({WALL_SECONDS: seconds, **outcome.costs()})
    if outcome.reason != INTERRUPTED:
        model = save(state_dict(outcome.model))
        checksums.write_final_checksums(run.folder, trace, model)
        write_atomically(run.model_file, model)  # last: marks the run as complete


@contextlib.contextmanager
def open_run(run: Run, worker: str | None = None, memory: str | None = None) -> Iterator[OpenRun | None]:
    """Lock and check a run folder for execution; yield None if the run is complete."""
    run.experiment()  # rejects folders that are no runs before anything is locked
    with run_lock.exclusive_lock(run.folder):
        if run.complete:
            remove_slot_files(run.folder / "checkpoint")
            yield None
            return
        run_lock.remove_temporary_files(run.folder)
        run.check_unchanged()
        choice = registry.usable(run.worker() if worker is None else registry.parse_worker(worker))
        if choice == registry.AUTO:
            choice = choose_auto_worker(run)
        setup = run.setup(registry.device_of(choice))
        limit = client_memory.resume_limit(run.folder, memory)
        trace = Trace(run.trace_file)
        client_store = client_memory.open_memory(run.folder, limit, setup.world.model.device)
        try:
            facts = {**setup.facts, **client_memory.memory_facts(limit)}
            yield OpenRun(run, run.runnable_experiment(), setup, choice, trace, client_store, facts, time.monotonic())
        finally:
            trace.close_after_error()
            if client_store is not None:
                client_store.close()


def _restore(run: Run, engine: VirtualEngine) -> None:
    """Restore the newest checkpoint; errors name the files of the run."""
    try:
        engine.restore()
    except sqlite3.Error as error:
        raise RunError(f"cannot read the trace {run.trace_file}: {error}") from None
    except CheckpointError as error:
        restart = f"to start over, remove {run.folder / 'checkpoint'}"
        raise CheckpointError(f"{error}. Nothing was changed; restore what was there, or {restart}") from None


@contextlib.contextmanager
def errors_as_unfinished() -> Iterator[None]:
    """Convert expected errors inside the context to `Unfinished`."""
    try:
        yield
    except OSError as error:
        raise Unfinished(f"{error.strerror or error}") from None
    except (OffbeatError, sqlite3.Error) as error:
        raise Unfinished(str(error)) from None


def earlier_wall_seconds(trace: Trace) -> float:
    """Return the wall time of earlier executions; a killed one left none."""
    try:
        return float(_stored_fact(trace.db, WALL_SECONDS) or 0.0)
    except ValueError:
        return nan


def _stored_fact(db: sqlite3.Connection, key: str) -> str | None:
    """Return the value of a fact in a trace; None if there is none."""
    row = db.execute("SELECT value FROM facts WHERE key = ?", (key,)).fetchone()
    return None if row is None else str(row[0])


def choose_auto_worker(run: Run, cores: int | None = None) -> WorkerChoice:
    """Return the worker that `auto` chose when the run started, or choose one now for that many cores."""
    if (stored := last_worker(run)) is not None:
        return stored
    setup = run.setup()
    choice, why = registry.choose_fastest(setup.trainer, setup.world, cores)
    log.warning("worker auto: using %s (%s)", choice, why)
    return choice


def last_worker(run: Run) -> WorkerChoice | None:
    """Return the last worker of the run; None before it started."""
    if run.trace_file.is_file():
        with open_trace(run.trace_file) as db:
            workers = _stored_fact(db, WORKER_FACT)
        if workers is not None:
            return registry.usable(registry.recorded_choice(workers.split(", then ")[-1]))
    return None


def _worker_history(trace: Trace, now: WorkerChoice) -> str:
    """List the workers of all executions, without immediate repetitions."""
    stored = _stored_fact(trace.db, WORKER_FACT)
    before = [] if stored is None else stored.split(", then ")
    return ", then ".join(before if before[-1:] == [str(now)] else [*before, str(now)])


class Stoppable(Protocol):
    """An engine that stops after the current event if `interrupt` is set."""

    interrupt: bool


@contextlib.contextmanager
def interrupt_on_signals(engines: Iterable[Stoppable]) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM stop the engines after the current event; a second signal stops at once.

    A process that ignores these signals, such as a background job, continues to ignore them.
    """

    def request_stop(number: int, frame: FrameType | None) -> None:
        """Stop all engines, and let a second signal raise KeyboardInterrupt."""
        for engine in engines:
            engine.interrupt = True
        signal.signal(number, signal.default_int_handler)

    numbers = (number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) != signal.SIG_IGN)
    with replaced_handlers(dict.fromkeys(numbers, request_stop)):
        yield
