"""The folder of a run: one execution of an experiment, made, read and checked.

experiment.yaml     the resolved experiment        run.sqlite          trace and metrics
environment.json    versions, machine, worker      checkpoint/         to resume from
command.txt         the command that repeats it    model.safetensors   the final model, a plain state_dict
world.json          the experiment once more,      finished.json       checksums of all this, once it is done
                    checksums of data and traces   lock                held by the process that runs it
code/               copies of one's own code

Where a script gave the model and the data, `given` says what stands in place of experiment.yaml and world.json.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from safetensors.torch import save
from torch import nn

from offbeat.core.errors import ConfigError, DataError, OffbeatError, RunError
from offbeat.core.snapshot import unpack
from offbeat.engine.checkpoint import Checkpoints, write_atomically
from offbeat.engine.trace_file import TraceDigest
from offbeat.experiment import build, data_assignment, model_card
from offbeat.experiment.data_assignment import ClassCounts
from offbeat.experiment.run import checksums, client_memory, identity, run_lock
from offbeat.experiment.run import checksums as final_checksums
from offbeat.experiment.run import identity as machine
from offbeat.experiment.scripted import scripted_run
from offbeat.experiment.scripted.scripted_run import ScriptedRun
from offbeat.experiment.spec import experiment_files, user_code
from offbeat.experiment.spec.choices import user_files
from offbeat.experiment.spec.config import Experiment
from offbeat.metrics import client_names, curves, trace_summary
from offbeat.scenario.data import load
from offbeat.scenario.data.data_files import named_root
from offbeat.training.torch_state import exclusive_generators
from offbeat.workers import registry

COMPARISON = run_lock.COMPARISON
DATA_ROOT_KEY = "data"  # of environment.json: the data root that was named when the run was made


@dataclass(frozen=True)
class Run:
    """A run folder; and, within a script, what that gave: its own model and data can be had from nowhere else."""

    folder: Path
    script: ScriptedRun | None = field(default=None, repr=False, compare=False)

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

    @property
    def scripted(self) -> bool:
        """Is it of a script, which alone can make what is run?"""
        return scripted_run.is_scripted(self.folder)

    def experiment(self) -> Experiment:
        """As the run was made for; an edited file is refused. Code of one's own is not run: see `runnable`."""
        run_lock.refuse_links(self.folder)
        if (self.folder / COMPARISON).is_file():
            raise ConfigError(
                f"{self.folder} is a comparison: finish it with 'offbeat compare --resume', or name one of the runs "
                "in it"
            )
        if self.script is not None:
            return self.script.experiment
        if self.scripted:
            return scripted_run.experiment_of(self.folder)
        if not self.experiment_file.is_file():
            if run_lock.creation_interrupted(self.folder):
                raise ConfigError(
                    f"{self.folder} was stopped while it was made: start the run again, with --out {self.folder}"
                )
            raise ConfigError(f"{self.folder} is not a run folder: it has no experiment.yaml")
        experiment = experiment_files.read_experiment(self.experiment_file, runs_code=False)
        kept = identity.read_identity(self.world_file)
        if kept is not None and kept.experiment is not None:
            identity.check_experiment_file(self.experiment_file, kept.experiment, experiment)
        return experiment

    def runnable_experiment(self) -> Experiment:
        """The experiment with the code of one's own that it names, which must be what the run was made with."""
        experiment = self.experiment()
        if self.scripted:
            return experiment
        identity.check_code(self.folder, identity.read_identity(self.world_file))
        return experiment_files.read_experiment(self.experiment_file)

    def check_results(self) -> None:
        """Refuse a finished run that is not what came out."""
        if self.complete:
            kept = identity.read_identity(self.world_file)
            final_checksums.check_final_checksums(
                self.folder, kept=self.scripted or (kept is not None and kept.experiment is not None)
            )

    def check_unchanged(self) -> None:
        """Refuse to go on in another world than the run was made for."""
        if self.script is not None:
            self.script.check_same_call(self.folder)
        elif self.scripted:
            made_by = (self.folder / "command.txt").read_text(encoding="utf-8").strip()
            raise ConfigError(f"{self.folder} is of a script, which has its model and data: go on with '{made_by}'")
        else:
            identity.check_identity(
                self.folder, identity.read_identity(self.world_file), self.current_identity(self.runnable_experiment())
            )

    def setup(self, device: str = "cpu") -> build.Setup:
        return build.setup(self.runnable_experiment(), device) if self.script is None else self.script.setup(device)

    def class_counts(self, runs_code: bool = False) -> ClassCounts:
        """Who trains on what; DataError where only code of one's own could tell, and that is not to be run."""
        if self.script is not None:
            return self.script.class_counts()
        return data_assignment.count_classes(self.runnable_experiment() if runs_code else self.experiment())

    def summary(self) -> trace_summary.Summary:
        experiment = self.experiment()
        if not self.trace_file.is_file():
            raise RunError(f"{self.folder} has not begun: start it with 'offbeat run --resume {self.folder}'")
        self.check_results()
        with trace_summary.open_trace(self.trace_file) as db:
            made = trace_summary.summarize(db, experiment.population, experiment.until.target or experiment.target)
        return replace(made, names=self.client_names())

    def machine_difference(self) -> str | None:
        """In words, how this machine is not the one it began on; bits may differ then."""
        begun = self.trace_file.is_file() and not self.complete
        return machine.machine_difference(self.folder / "environment.json") if begun else None

    def worker(self) -> registry.WorkerChoice:
        """The one it was begun with; inline where that cannot be told any more."""
        return registry.recorded_choice(self._environment_value("worker"))

    def data_root(self) -> Path | None:
        """The one that was named when it was made."""
        stored = self._environment_value(DATA_ROOT_KEY)
        return None if stored is None else Path(stored)

    def _environment_value(self, key: str) -> str | None:
        try:
            stored = checksums.read_checksummed(self.folder / "environment.json").get(key)
        except (FileNotFoundError, RunError):
            return None
        return stored if isinstance(stored, str) else None

    def current_identity(self, experiment: Experiment) -> identity.Identity:
        """As it is now; DataError if there is no data for it any more."""
        try:
            return identity.compute_identity(experiment)
        except DataError as error:
            root = self.data_root()
            if root is None or root.is_dir():
                raise
            moved = f"the run's data lay in {root}, which is gone: say where it is now, with --data DIR"
            raise DataError(f"{error}; {moved}") from None

    def client_names(self) -> dict[int, str]:
        """Client -> what it is called, of those that are called something."""
        with trace_summary.open_trace(self.trace_file) as db:
            return {**client_names.read_names(db), **client_names.read_site_names(self.folder)}

    def curve(self, metric: str) -> curves.Curve:
        """A metric on the evaluation grid."""
        with trace_summary.open_trace(self.trace_file) as db:
            return trace_summary.read_curve(db, metric)

    def digest(self) -> str:
        """A hash of the whole trace and the final model: equal digests mean equal runs."""
        model = hashlib.sha256(self.model_file.read_bytes()).hexdigest() if self.complete else "unfinished"
        with trace_summary.open_trace(self.trace_file) as db:
            return hashlib.sha256(f"{TraceDigest.from_database(db).hexdigest()} {model}".encode()).hexdigest()

    def export_model(self) -> bytes:
        """The model as a plain state_dict in safetensors: the final one, or of the last checkpoint; its header says
        what it is.
        """
        self.experiment()
        if self.complete:
            self.check_results()
            return model_card.with_metadata(self.model_file.read_bytes(), model_card.export_metadata(self))
        checkpoints = Checkpoints(self.folder / "checkpoint")
        if not checkpoints.exist():
            raise RunError(f"{self.folder} has neither a final model nor a checkpoint yet")
        module, told = self._module(), model_card.export_metadata(self)
        plain = checkpoints.load(lambda tree, get: save(build.state_dict(module, unpack(tree["model"], get))))
        return model_card.with_metadata(plain, told)

    def _module(self) -> nn.Module:
        """Of the world the run was made for. Whoever exports runs nobody's code."""
        if self.script is not None or self.scripted:
            self.check_unchanged()
            assert self.script is not None  # or that was refused
            return self.script.module
        experiment = self.experiment()
        identity.check_identity(self.folder, identity.read_identity(self.world_file), self.current_identity(experiment))
        data = load(experiment.data)
        with exclusive_generators():
            return experiment.model.build(data.input_shape, data.outputs, experiment.seed)


def create_run(
    folder: Path,
    experiment: Experiment,
    command: str | None = None,
    world: identity.Identity | None = None,
    worker: str = "inline",
    memory: str | None = None,
    script: ScriptedRun | None = None,
) -> Run:
    """Make a run folder. Nothing that is there already is touched. `world` where it is known already: the data is
    large. `worker`: who is to compute it, unless whoever executes it says otherwise; `memory`: for what is kept of
    clients. `script`: what one gave, in place of what a file can hold.
    """
    run, chosen = Run(folder, script), registry.parse_worker(worker)
    limit = {} if memory is None else {client_memory.FACT: str(client_memory.parse_memory_limit(memory))}
    run_lock.refuse_occupied(folder)
    code = user_code.read_sources(user_files(experiment)) if script is None else {}
    if script is None:
        world = replace(world or identity.compute_identity(experiment), code=user_code.source_digests(code))
    new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with run_lock.exclusive_lock(folder) as lock:
            run_lock.refuse_occupied(folder)  # somebody may have been quicker
            run_lock.remove_temporary_files(folder)
            try:
                os.write(lock, run_lock.CREATION_MARK)
                os.fsync(lock)  # before anything else is: after a power failure it tells whose the rest is
                made_with = machine.describe_machine(registry.device_of(chosen))
                stored = {**made_with, "worker": str(chosen), **limit, **_data_root_entry()}
                write_atomically(folder / "environment.json", checksums.dump_checksummed(stored))
                write_atomically(folder / "command.txt", _command_text(run, command).encode())
                if script is not None:
                    script.write(folder)
                elif world is not None:
                    _copy_code(folder, code)
                    write_atomically(run.world_file, world.dump(experiment))
                    experiment_files.write_experiment(
                        run.experiment_file, experiment
                    )  # last: with it the folder is a run
                os.truncate(lock, 0)
            except (OSError, OffbeatError):
                run_lock.remove_partial_folder(folder, new)
                raise
    except (OSError, OffbeatError) as error:
        reason = error.strerror or error if isinstance(error, OSError) else error
        raise RunError(f"cannot make the run folder {folder}: {reason}") from None
    return run


def _data_root_entry() -> dict[str, str]:
    """Where data sets lie, if somebody said so: a run is gone on with there."""
    root = named_root()
    return {} if root is None else {DATA_ROOT_KEY: str(root)}


def _copy_code(folder: Path, code: Mapping[Path, bytes]) -> None:
    """Copies of one's own code: a run can be read, exported and resumed where the files are gone."""
    for path, source in code.items():
        copy = folder / user_code.copy_path(path)
        copy.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(copy, source)


def _command_text(run: Run, command: str | None) -> str:
    """What a preset or a file said may change with time; the resolved experiment does not."""
    if run.script is not None:
        return f"{command or 'python'}\n"
    where = [option for root in _data_root_entry().values() for option in ("--data", root)]
    repeat = f"{shlex.join(['offbeat', 'run', str(run.experiment_file), *where])}\n"
    return f"{repeat}# it was made by: {command}\n" if command else repeat
