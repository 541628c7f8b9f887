"""One execution of an experiment, in one folder: start it, stop it at any moment, resume it, read it.

    experiment.yaml     the resolved experiment        run.sqlite          trace and metrics
    environment.json    versions and machine           checkpoint/         to resume from
    command.txt         the command that repeats it    model.safetensors   the final model, a plain state_dict
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
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any

from safetensors.torch import save

from offbeat.core.errors import RunError
from offbeat.core.snapshot import unpack
from offbeat.engines.checkpoint import Checkpoints, write_whole
from offbeat.engines.trace import Trace
from offbeat.engines.virtual import INTERRUPTED, Outcome, VirtualEngine
from offbeat.experiment import build, files, metrics
from offbeat.experiment.config import Experiment

Watch = Callable[[VirtualEngine], None]


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
    def complete(self) -> bool:
        return self.model_file.is_file()

    def experiment(self) -> Experiment:
        if not self.experiment_file.is_file():
            raise RunError(f"{self.folder} is not a run folder: it has no experiment.yaml")
        return files.read(self.experiment_file)

    def summary(self) -> metrics.Summary:
        experiment = self.experiment()
        with contextlib.closing(metrics.open_trace(self.trace_file)) as db:
            return metrics.summarize(db, experiment.clients, experiment.until.target or experiment.target)

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
        checkpoints = Checkpoints(self.folder / "checkpoint")
        made = build.setup(self.experiment())
        if not checkpoints.exist():
            raise RunError(f"{self.folder} has neither a final model nor a checkpoint yet")
        tree, get = checkpoints.load()
        return save(made.state_dict(unpack(tree["model"], get)))


def create(folder: Path, experiment: Experiment, command: str | None = None) -> Run:
    """Make a run folder. Nothing that is there already is touched."""
    run = Run(folder)
    if run.experiment_file.exists():
        raise RunError(f"{folder} already holds a run: resume it with 'offbeat run --resume {folder}', or choose another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "environment.json", json.dumps(environment(), indent=2).encode())
        repeat = command or f"offbeat run {shlex.quote(str(run.experiment_file))} --seed {experiment.seed}"
        write_whole(folder / "command.txt", f"{repeat}\n".encode())
        files.write(run.experiment_file, experiment)  # last: with it the folder is a run
    except (OSError, RunError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise RunError(f"cannot make the run folder {folder}: {reason}") from None
    return run


def execute(run: Run, watch: Watch | None = None, checkpoint_every: float = 30.0) -> Outcome | None:
    """Run to the end, from the newest checkpoint if there is one; None if it was complete already.

    Ctrl-C ends it after the current event with a checkpoint; the outcome then says INTERRUPTED.
    """
    experiment = run.experiment()
    with _alone(run.folder):
        if run.complete:
            return None
        made = build.setup(experiment)
        trace = Trace(run.trace_file)
        try:
            before = _seconds_so_far(trace)
            began = time.monotonic()
            checkpoints = Checkpoints(run.folder / "checkpoint")
            engine = build.engine(made, experiment, trace=trace, checkpoints=checkpoints, checkpoint_every=checkpoint_every, watch=watch)
            engine.restore()
            with _interruptible(engine):
                outcome = engine.run()
            trace.set_facts({"wall_seconds": before + time.monotonic() - began, "server_seconds": outcome.server_seconds})
        finally:
            trace.close()
        if outcome.reason != INTERRUPTED:
            write_whole(run.model_file, save(made.state_dict(outcome.model)))
        return outcome


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
        except OSError:
            raise RunError(f"{folder} is being run by another process") from None
        yield


@contextlib.contextmanager
def _interruptible(engine: VirtualEngine) -> Iterator[None]:
    """Ctrl-C asks the engine to stop between two events; a second one stops at once (the last checkpoint stays)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, frame: FrameType | None) -> None:
        engine.interrupt = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
