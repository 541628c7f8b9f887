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
from offbeat.engine.checkpoint import Checkpoints, write_whole
from offbeat.engine.client_store import ClientMemory
from offbeat.engine.progress import Outcome
from offbeat.engine.trace import SPENT, WORKER, Trace
from offbeat.engine.virtual.virtual_engine import INTERRUPTED, VirtualEngine, Watch
from offbeat.engine.worker import Worker
from offbeat.experiment import build
from offbeat.experiment.run import auto_worker, client_memory, final_checksums, run_lock
from offbeat.experiment.run.run_folder import COMPARISON, Run, create
from offbeat.experiment.spec.config import Experiment
from offbeat.metrics import trace_summary
from offbeat.workers import registry
from offbeat.workers.counting import Counted, Work

log = logging.getLogger("offbeat")


__all__ = [
    "COMPARISON",
    "Attempt",
    "Run",
    "Unfinished",
    "attempt",
    "computed_by",
    "create",
    "execute",
    "interruptible",
    "of_run",
    "resumable",
    "settled",
    "tell_failed",
]


class Unfinished(RunError):
    """A run that an error stopped. What is stored is whole: it can be resumed."""


def tell_failed(failed: Mapping[Path, Exception]) -> None:
    """Raise what became of runs that were to go on beside others."""
    for folder, error in failed.items():
        if not isinstance(error, (OffbeatError, OSError, sqlite3.Error)):
            raise error  # of ours or of somebody's code: where it came from is worth more than a line
        raise Unfinished(of_run(folder, error) + (f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""))


def of_run(folder: Path, error: Exception) -> str:
    """What went wrong, and with which run; some errors say that themselves."""
    return str(error) if str(error).startswith((f"{folder}: ", f"{folder} ")) else f"{folder}: {error}"


def execute(
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
    with attempt(run, worker, memory) as going:
        if going is None:
            return None
        computing = registry.make(going.chosen, going.made.trainer, going.note)
        if work is not None:
            computing = Counted(computing, work)
        engine = going.engine(computing, watch, checkpoint_every)
        with resumable(), interruptible([engine]):
            going.begin()
            outcome = engine.run()
            going.finish(outcome)
    return outcome


@dataclass
class Attempt:
    """A run folder that is open: locked, checked, and going on."""

    run: Run
    experiment: Experiment
    made: build.Setup
    chosen: registry.Choice
    trace: Trace
    kept: ClientMemory | None  # of clients, under a limit
    facts: Mapping[str, object]
    began: float
    before: float = 0.0  # host seconds of earlier attempts

    def engine(self, worker: Worker, watch: Watch | None, checkpoint_every: float) -> VirtualEngine:
        """As the newest checkpoint has it."""
        checkpoints = Checkpoints(self.run.folder / "checkpoint", self.made.world.model.device, beside=self.kept)
        engine = build.engine(
            self.made,
            self.experiment,
            trace=self.trace,
            checkpoints=checkpoints,
            checkpoint_every=checkpoint_every,
            watch=watch,
            worker=worker,
            memory=self.kept,
        )
        _restore(self.run, engine)
        return engine

    def begin(self) -> None:
        self.before = seconds_so_far(self.trace)
        self.trace.set_facts({**self.facts, WORKER: _workers_so_far(self.trace, self.chosen)})

    def note(self, text: str) -> None:
        """Who computes it turns out to be somebody particular: stored at once, whatever becomes of the run."""
        self.trace.set_facts({WORKER: f"{_workers_so_far(self.trace, self.chosen)} ({text})"})

    def finish(self, outcome: Outcome) -> None:
        """Store what came out."""
        conclude(self.run, self.trace, outcome, self.before + time.monotonic() - self.began, self.made)
        if outcome.reason != INTERRUPTED:
            client_memory.remove(self.run.folder)


class Named(Protocol):
    """Knows the parts of a model by name."""

    def state_dict(self, model: Tensor) -> dict[str, Tensor]: ...


def conclude(run: Run, trace: Trace, outcome: Outcome, seconds: float, made: Named) -> None:
    """What it cost, and, of a run that came to its end, the model. `seconds`: host time of all attempts."""
    trace.set_facts({SPENT: seconds, **outcome.costs()})
    if outcome.reason != INTERRUPTED:
        model = save(made.state_dict(outcome.model))
        final_checksums.write(run.folder, trace, model)
        write_whole(run.model_file, model)  # last: with it the run is complete


@contextlib.contextmanager
def attempt(run: Run, worker: str | None = None, memory: str | None = None) -> Iterator[Attempt | None]:
    """Open a run folder to go on with it; None if it is complete."""
    run.experiment()  # which says what is no run, before anything is locked
    with run_lock.alone(run.folder):
        if run.complete:
            client_memory.remove(run.folder)  # it is not resumed any more
            yield None
            return
        run_lock.sweep(run.folder)
        run.check_world()
        chosen = registry.usable(run.worker() if worker is None else registry.parse(worker))
        if chosen == registry.AUTO:
            chosen = settled(run)
        made = run.setup(registry.device_of(chosen))
        limit = client_memory.gone_on_with(run.folder, memory)
        trace = Trace(run.trace_file)
        kept = client_memory.of_run(run.folder, limit, made.world.model.device)
        try:
            facts = {**made.facts, **client_memory.facts(limit)}
            yield Attempt(run, run.runnable(), made, chosen, trace, kept, facts, time.monotonic())
        finally:
            trace.abandon()
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
def resumable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unfinished(f"{error.strerror or error}") from None
    except (OffbeatError, sqlite3.Error) as error:
        raise Unfinished(str(error)) from None


def seconds_so_far(trace: Trace) -> float:
    """Of the attempts before this one; a killed one did not get to say."""
    stored = trace.db.execute("SELECT value FROM facts WHERE key = ?", (SPENT,)).fetchone()
    try:
        return float(stored[0]) if stored else 0.0
    except ValueError:
        return nan  # nobody knows any more


def settled(run: Run, cores: int | None = None) -> registry.Choice:
    """Whom `auto` chose when the run began, or chooses now, for so many cores."""
    if (stored := computed_by(run)) is not None:
        return stored
    chosen, why = auto_worker.settle(run.setup(), cores)
    log.warning("worker auto: %s is used (%s)", chosen, why)
    return chosen


def computed_by(run: Run) -> registry.Choice | None:
    """Who was last at it; None before it began."""
    if run.trace_file.is_file():
        with trace_summary.open_trace(run.trace_file) as db:
            stored = db.execute("SELECT value FROM facts WHERE key = ?", (WORKER,)).fetchone()
        if stored:
            return registry.usable(registry.begun_with(str(stored[0]).split(", then ")[-1]))
    return None


def _workers_so_far(trace: Trace, now: registry.Choice) -> str:
    """With the one of this attempt, where that is another."""
    stored = trace.db.execute("SELECT value FROM facts WHERE key = ?", (WORKER,)).fetchone()
    before = str(stored[0]).split(", then ") if stored else []
    return ", then ".join(before if before[-1:] == [str(now)] else [*before, str(now)])


class Stoppable(Protocol):
    interrupt: bool


@contextlib.contextmanager
def interruptible(engines: Iterable[Stoppable]) -> Iterator[None]:
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
