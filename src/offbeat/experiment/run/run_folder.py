"""The folder of a run: one execution of an experiment.

experiment.yaml     the resolved experiment        run.sqlite          trace and metrics
environment.json    versions, machine, worker      checkpoint/         to resume from
command.txt         the command that repeats it    model.safetensors   the final model, a plain state_dict
world.json          experiment and checksums of    finished.json       checksums of all this, written at the end
                    data and recordings            lock                held by the process that executes the run
code/               copies of user code

If a script gave the model and the data, other files take the place of experiment.yaml and world.json; see
`experiment.scripted.scripted_run`.
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
from offbeat.engine import Checkpoints, TraceDigest, write_atomically
from offbeat.experiment import build, data_assignment, model_card
from offbeat.experiment.data_assignment import ClassCounts
from offbeat.experiment.run import checksums, client_memory, identity, run_lock
from offbeat.experiment.scripted import scripted_run
from offbeat.experiment.scripted.scripted_run import ScriptedRun
from offbeat.experiment.spec import experiment_files, user_code
from offbeat.experiment.spec.choices import user_files
from offbeat.experiment.spec.config import Experiment
from offbeat.metrics import Curve, Summary, open_trace, read_curve, read_names, read_site_names, summarize
from offbeat.scenario.data import load, named_root
from offbeat.training import exclusive_generators
from offbeat.workers import WorkerChoice, device_of, parse_worker, recorded_choice

COMPARISON = run_lock.COMPARISON
DATA_ROOT_KEY = "data"  # key in environment.json of the data root that was given when the run was created


@dataclass(frozen=True)
class Run:
    """The folder of a run and, if a script defines the run, its model and data.

    `experiment_file`, `trace_file`, `model_file` and `world_file` are paths of files that may not exist yet.
    """

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
        """The file with the experiment and checksums of data and recordings, which a resumed run must match."""
        return self.folder / "world.json"

    @property
    def complete(self) -> bool:
        """Tell whether the run is finished; the final model is written last."""
        return self.model_file.is_file()

    @property
    def scripted(self) -> bool:
        """Tell whether a script defined the run, so that only the script can build it."""
        return scripted_run.is_scripted(self.folder)

    def experiment(self) -> Experiment:
        """Read the experiment without executing user code; an edited file is rejected."""
        run_lock.refuse_links(self.folder)
        if (self.folder / COMPARISON).is_file():
            raise ConfigError(f"{self.folder} is a comparison: use 'offbeat compare --resume', or name one of its runs")
        if self.script is not None:
            return self.script.experiment
        if self.scripted:
            return scripted_run.experiment_of(self.folder)
        if not self.experiment_file.is_file():
            if run_lock.creation_interrupted(self.folder):
                again = f"start the run again with --out {self.folder}"
                raise ConfigError(f"{self.folder} is incomplete, because its creation was interrupted: {again}")
            raise ConfigError(f"{self.folder} is not a run folder: it has no experiment.yaml")
        experiment = experiment_files.read_experiment(self.experiment_file, runs_code=False)
        _, stored = identity.read_identity(self.world_file)
        identity.check_experiment_file(self.experiment_file, stored, experiment)
        return experiment

    def runnable_experiment(self) -> Experiment:
        """Read the experiment and load the user code that it names, which must be unchanged."""
        experiment = self.experiment()
        if self.scripted:
            return experiment
        identity.check_code(self.folder, identity.read_identity(self.world_file)[0])
        return experiment_files.read_experiment(self.experiment_file)

    def check_results(self) -> None:
        """Reject a finished run with files that changed since it ended."""
        if self.complete:
            checksums.check_final_checksums(self.folder)

    def check_unchanged(self) -> None:
        """Reject a run with inputs that changed since it was created."""
        if self.script is not None:
            self.script.check_same_call(self.folder)
        elif self.scripted:
            command = (self.folder / "command.txt").read_text(encoding="utf-8").strip()
            raise ConfigError(f"{self.folder} was created by a script, which has its model and data: run '{command}'")
        else:
            self.check_identity(self.runnable_experiment())

    def check_identity(self, experiment: Experiment) -> None:
        """Reject a run whose data or recordings changed since it was created."""
        try:
            now = identity.compute_identity(experiment)
        except DataError as error:
            root = self.data_root()
            if root is None or root.is_dir():
                raise
            raise DataError(f"{error}; the run's data was in {root}, which is gone: give --data DIR") from None
        identity.check_identity(self.folder, identity.read_identity(self.world_file)[0], now)

    def setup(self, device: str = "cpu") -> build.Setup:
        """Build everything that the run needs, with tensors on that device."""
        return build.setup(self.runnable_experiment(), device) if self.script is None else self.script.setup(device)

    def class_counts(self, runs_code: bool = False) -> ClassCounts:
        """Count the training examples of each client by class; raise DataError if that requires forbidden user code."""
        if self.script is not None:
            return self.script.class_counts()
        return data_assignment.count_classes(self.runnable_experiment() if runs_code else self.experiment())

    def summary(self) -> Summary:
        """Summarize the results so far."""
        experiment = self.experiment()
        if not self.trace_file.is_file():
            raise RunError(f"{self.folder} has not started: start it with 'offbeat run --resume {self.folder}'")
        self.check_results()
        with open_trace(self.trace_file) as db:
            target = experiment.until.target or experiment.target
            summary = summarize(db, experiment.population, target)
        return replace(summary, names=self.client_names())

    def machine_difference(self) -> str | None:
        """Describe how this machine differs from the one where the unfinished run started, or return None."""
        unfinished = self.trace_file.is_file() and not self.complete
        return identity.machine_difference(self.folder / "environment.json") if unfinished else None

    def worker(self) -> WorkerChoice:
        """Return the worker that the run was created with; inline if that is unreadable."""
        return recorded_choice(checksums.read_environment_text(self.folder, "worker"))

    def data_root(self) -> Path | None:
        """Return the data root that was given when the run was created."""
        root = checksums.read_environment_text(self.folder, DATA_ROOT_KEY)
        return None if root is None else Path(root)

    def client_names(self) -> dict[int, str]:
        """Return the names of clients that have one."""
        with open_trace(self.trace_file) as db:
            return {**read_names(db), **read_site_names(self.folder)}

    def curve(self, metric: str) -> Curve:
        """Return a metric at each evaluation."""
        with open_trace(self.trace_file) as db:
            return read_curve(db, metric)

    def digest(self) -> str:
        """Hash the whole trace and the final model: equal digests mean equal runs."""
        model = hashlib.sha256(self.model_file.read_bytes()).hexdigest() if self.complete else "unfinished"
        with open_trace(self.trace_file) as db:
            return hashlib.sha256(f"{TraceDigest.from_database(db).hexdigest()} {model}".encode()).hexdigest()

    def export_model(self) -> bytes:
        """Return the final model, or that of the last checkpoint, as safetensors with metadata in the header."""
        self.experiment()
        if self.complete:
            self.check_results()
            return model_card.with_metadata(self.model_file.read_bytes(), model_card.export_metadata(self))
        checkpoints = Checkpoints(self.folder / "checkpoint")
        if not checkpoints.exist():
            raise RunError(f"{self.folder} has neither a final model nor a checkpoint yet")
        module, metadata = self._build_module(), model_card.export_metadata(self)
        model = checkpoints.load(lambda tree, get: save(build.state_dict(module, unpack(tree["model"], get))))
        return model_card.with_metadata(model, metadata)

    def _build_module(self) -> nn.Module:
        """Build the module of the run without executing user code."""
        if self.script is not None or self.scripted:
            self.check_unchanged()
            assert self.script is not None  # otherwise check_unchanged raised
            return self.script.module
        experiment = self.experiment()
        self.check_identity(experiment)
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
    """Create a run folder; existing files are never overwritten.

    world: The identity, if the caller has computed it already.
    worker, memory: Defaults for executions that do not choose a worker or a limit of client memory.
    script: The model and the data of a script, in place of an experiment file.
    """
    run, choice = Run(folder, script), parse_worker(worker)
    limit = {} if memory is None else {client_memory.FACT: str(client_memory.parse_memory_limit(memory))}
    run_lock.refuse_occupied(folder)
    code = user_code.read_sources(user_files(experiment)) if script is None else {}
    if script is None:
        world = replace(world or identity.compute_identity(experiment), code=user_code.source_digests(code))
    new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with run_lock.exclusive_lock(folder) as lock:
            run_lock.refuse_occupied(folder)  # again under the lock
            run_lock.remove_temporary_files(folder)
            try:
                os.write(lock, run_lock.CREATION_MARK)
                os.fsync(lock)  # first: after a power failure the mark tells that the rest is ours
                machine = identity.describe_machine(device_of(choice))
                environment = {**machine, "worker": str(choice), **limit, **_data_root_entry()}
                write_atomically(folder / "environment.json", checksums.dump_checksummed(environment))
                write_atomically(folder / "command.txt", _command_text(run, command).encode())
                if script is not None:
                    script.write(folder)
                elif world is not None:
                    _copy_code(folder, code)
                    write_atomically(run.world_file, world.dump(experiment))
                    experiment_files.write_experiment(run.experiment_file, experiment)  # marks the folder as a run
                os.truncate(lock, 0)
            except (OSError, OffbeatError):
                run_lock.remove_partial_folder(folder, new)
                raise
    except (OSError, OffbeatError) as error:
        reason = error.strerror or error if isinstance(error, OSError) else error
        raise RunError(f"cannot create the run folder {folder}: {reason}") from None
    return run


def _data_root_entry() -> dict[str, str]:
    """Return the data root for environment.json if one was given; resumed runs use it."""
    root = named_root()
    return {} if root is None else {DATA_ROOT_KEY: str(root)}


def _copy_code(folder: Path, code: Mapping[Path, bytes]) -> None:
    """Copy user code into the run folder, so that the run can be read, exported and resumed without the files."""
    for path, source in code.items():
        copy = folder / user_code.copy_path(path)
        copy.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(copy, source)


def _command_text(run: Run, command: str | None) -> str:
    """Return the command that repeats the run from its resolved experiment, which presets and files do not change."""
    if run.script is not None:
        return f"{command or 'python'}\n"
    data_options = [option for root in _data_root_entry().values() for option in ("--data", root)]
    repeat = f"{shlex.join(['offbeat', 'run', str(run.experiment_file), *data_options])}\n"
    return f"{repeat}# created by: {command}\n" if command else repeat
