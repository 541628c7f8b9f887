"""One execution of an experiment, in one folder: start it, stop it at any moment, resume it, read it.

    experiment.yaml     the resolved experiment        run.sqlite          trace and metrics
    environment.json    versions and machine           checkpoint/         to resume from
    command.txt         the command that repeats it    model.safetensors   the final model, a plain state_dict
    world.json          checksums of data and traces
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shlex
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any

from safetensors.torch import save

from offbeat.core.errors import CheckpointError, ConfigError, OffbeatError, RunError
from offbeat.core.snapshot import unpack
from offbeat.engines.checkpoint import Checkpoints, write_whole
from offbeat.engines.progress import Outcome
from offbeat.engines.trace import Trace
from offbeat.engines.virtual import INTERRUPTED, VirtualEngine, Watch
from offbeat.experiment import build, files, identity, measures, metrics
from offbeat.experiment.config import Experiment

COMPARISON = "compare.json"  # what makes a folder one of several runs, not a run
OWN = ("experiment.yaml", "run.sqlite", "model.safetensors", "checkpoint", "environment.json", "command.txt", "world.json", COMPARISON)


class Unfinished(RunError):
    """A run that an error stopped. What is stored is whole: it can be resumed."""


@dataclass(frozen=True)
class Run:
    """A run folder."""

    folder: Path

    @property
    def experiment_file(self) -> Path:
        return self.folder / "experiment.yaml"

    @property
    def trace_file(self) -> Path:
        return self.folder / "run.sqlite"

    @property
    def model_file(self) -> Path:
        return self.folder / "model.safetensors"

    @property
    def world_file(self) -> Path:
        return self.folder / "world.json"

    @property
    def complete(self) -> bool:
        return self.model_file.is_file()

    def experiment(self) -> Experiment:
        if (self.folder / COMPARISON).is_file():
            raise ConfigError(f"{self.folder} is a comparison: finish it with 'offbeat compare --resume', or name one of the runs in it")
        if not self.experiment_file.is_file():
            raise ConfigError(f"{self.folder} is not a run folder: it has no experiment.yaml")
        return files.read(self.experiment_file)

    def summary(self) -> metrics.Summary:
        experiment = self.experiment()
        if not self.trace_file.is_file():
            raise RunError(f"{self.folder} has not begun: start it with 'offbeat run --resume {self.folder}'")
        with metrics.open_trace(self.trace_file) as db:
            return metrics.summarize(db, experiment.population, experiment.until.target or experiment.target)

    def curve(self, metric: str) -> measures.Curve:
        """A metric on the evaluation grid."""
        with metrics.open_trace(self.trace_file) as db:
            return metrics.curve(db, metric)

    def digest(self) -> str:
        """A hash of the whole trace and the final model: equal digests mean equal runs."""
        trace = Trace(self.trace_file)
        try:
            model = hashlib.sha256(self.model_file.read_bytes()).hexdigest() if self.complete else "unfinished"
            return hashlib.sha256(f"{trace.digest()} {model}".encode()).hexdigest()
        finally:
            trace.close()

    def export(self) -> bytes:
        """The model as a plain state_dict in safetensors: the final one, or of the last checkpoint."""
        if self.complete:
            return self.model_file.read_bytes()
        experiment = self.experiment()
        checkpoints = Checkpoints(self.folder / "checkpoint")
        if not checkpoints.exist():
            raise RunError(f"{self.folder} has neither a final model nor a checkpoint yet")
        tree, get = checkpoints.load()
        return save(build.setup(experiment).state_dict(unpack(tree["model"], get)))


def create(folder: Path, experiment: Experiment, command: str | None = None, world: identity.Identity | None = None) -> Run:
    """Make a run folder. Nothing that is there already is touched. `world` where it is known already: the data is large."""
    run = Run(folder)
    held = next((name for name in OWN if (folder / name).exists()), None)
    if held == "experiment.yaml":
        raise ConfigError(f"{folder} already holds a run: resume it with 'offbeat run --resume {folder}', or choose another --out")
    if held is not None:
        raise ConfigError(f"{folder} already holds {held}: choose another --out")
    world = world or identity.of(experiment)
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "environment.json", json.dumps(environment(), indent=2).encode())
        write_whole(folder / "command.txt", _repeat(run, command).encode())
        write_whole(run.world_file, world.dump())
        files.write(run.experiment_file, experiment)  # last: with it the folder is a run
    except (OSError, OffbeatError) as error:
        with contextlib.suppress(OSError):  # leave nothing half made
            for name in ("environment.json", "command.txt", "world.json"):
                (folder / name).unlink(missing_ok=True)
            if made:
                folder.rmdir()
        reason = error.strerror or error if isinstance(error, OSError) else error
        raise RunError(f"cannot make the run folder {folder}: {reason}") from None
    return run


def _repeat(run: Run, command: str | None) -> str:
    """What a preset or a file said may change with time; the resolved experiment does not."""
    repeat = f"offbeat run {shlex.quote(str(run.experiment_file))}\n"
    return f"{repeat}# it was made by: {command}\n" if command else repeat


def execute(run: Run, watch: Watch | None = None, checkpoint_every: float = 30.0) -> Outcome | None:
    """Run to the end, from the newest checkpoint if there is one; None if it was complete already.

    Ctrl-C ends it after the current event with a checkpoint; the outcome then says INTERRUPTED.
    """
    experiment = run.experiment()
    with _alone(run.folder):
        if run.complete:
            return None
        identity.check(run.folder, identity.read(run.world_file), identity.of(experiment))
        made = build.setup(experiment)
        trace = Trace(run.trace_file)
        try:
            before, began = _seconds_so_far(trace), time.monotonic()
            checkpoints = Checkpoints(run.folder / "checkpoint")
            engine = build.engine(made, experiment, trace=trace, checkpoints=checkpoints, checkpoint_every=checkpoint_every, watch=watch)
            _restore(run, engine)
            with _resumable(), _interruptible(engine):
                trace.set_facts(made.facts)
                outcome = engine.run()
                trace.set_facts({"wall_seconds": before + time.monotonic() - began, **outcome.costs()})
                if outcome.reason != INTERRUPTED:
                    write_whole(run.model_file, save(made.state_dict(outcome.model)))
        finally:
            with contextlib.suppress(OffbeatError):  # nothing is held back here but after an error, which says more
                trace.flush()
            trace.db.close()
        return outcome


def _restore(run: Run, engine: VirtualEngine) -> None:
    try:
        engine.restore()
        written = engine.trace.db.execute("SELECT COUNT(*) FROM trace").fetchone()[0]
    except sqlite3.Error as error:
        raise RunError(f"cannot read the trace {run.trace_file}: {error}") from None
    except CheckpointError as error:
        raise CheckpointError(f"{error}. Nothing was changed; to start over, remove {run.folder / 'checkpoint'}") from None
    if engine.trace.seq and not written:
        raise RunError(f"{run.trace_file} is gone, and the checkpoint is of row {engine.trace.seq}: put it back, or start over")


@contextlib.contextmanager
def _resumable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unfinished(f"{error.strerror or error}") from None
    except (OffbeatError, sqlite3.Error) as error:
        raise Unfinished(str(error)) from None


def environment() -> dict[str, Any]:
    names = ("offbeat", "torch", "numpy", "scipy", "scikit-learn", "safetensors")
    versions = {}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {"python": platform.python_version(), "platform": platform.platform(), "cores": os.cpu_count(), "packages": versions}


def _seconds_so_far(trace: Trace) -> float:
    """Of the attempts before this one; a killed one did not get to say."""
    rows = trace.db.execute("SELECT value FROM facts WHERE key = 'wall_seconds'").fetchone()
    return float(rows[0]) if rows else 0.0


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two processes on one run would tear it apart; the lock goes with the process, however it ends."""
    with open(folder / "lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"{folder} is being run by another process") from None
        yield


@contextlib.contextmanager
def _interruptible(engine: VirtualEngine) -> Iterator[None]:
    """Ctrl-C or a termination asks the engine to stop between two events; a second one stops at once (the last checkpoint stays).

    Who ignores Ctrl-C (a job in the background, one of several runs) goes on ignoring it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    heeded = [number for number, handler in before.items() if handler != signal.SIG_IGN]

    def ask(number: int, frame: FrameType | None) -> None:
        engine.interrupt = True
        signal.signal(number, signal.default_int_handler)

    for number in heeded:
        signal.signal(number, ask)
    try:
        yield
    finally:
        for number in heeded:
            signal.signal(number, before[number])
