"""The identity of a run: experiment, checksums of data, recordings and user code, and the machine it started on.

`world.json` stores it when the run folder is created. A run whose inputs were replaced between a stop and a resume, or
between two runs of a comparison, is rejected. Files, labels, whole numbers and the partition are the same on every
machine, so they are hashed exactly. Computed inputs, such as standardized sensor readings, may differ in their last
bits, so two norms of each are compared with a tolerance.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib import metadata
from itertools import zip_longest
from math import inf, isclose
from pathlib import Path

import numpy as np
import torch

from offbeat.core.computed_rows import ComputedRows, evenly_spaced
from offbeat.core.errors import DataError, RunError
from offbeat.experiment import data_assignment
from offbeat.experiment.run import checksums
from offbeat.experiment.spec import user_code
from offbeat.experiment.spec.config import Experiment
from offbeat.experiment.spec.serialization import FileContext, experiment_from_values, to_values
from offbeat.scenario.data import load

BITS_MAY_DIFFER = "results may differ in their last bits"
NORM_TOLERANCE = 1e-5
MAX_HASHED_CLIENTS = 2000  # clients whose examples are hashed if the partition is computed on demand
RECORDED_PACKAGES = ("offbeat", "torch", "numpy", "scipy", "scikit-learn", "safetensors")


@dataclass(frozen=True)
class Identity:
    """Checksums of the inputs of a run."""

    data: str  # SHA-256 of shapes, whole numbers and the partition
    norms: list[float]  # two norms of each floating-point tensor
    traces: dict[str, str]  # path of a recording -> SHA-256 of the file
    code: dict[str, str] = field(default_factory=dict)  # path of user code -> SHA-256; set when the folder is created

    def dump(self, experiment: Experiment) -> bytes:
        """Serialize the identity together with the experiment, which reveals later edits of its file."""
        return checksums.dump_checksummed({**asdict(self), "experiment": to_values(experiment)})

    def differences(self, other: Identity) -> list[str]:
        """List the inputs that differ."""
        recordings = [f"the recording {path}" for path in self.traces if self.traces[path] != other.traces.get(path)]
        norms = zip_longest(self.norms, other.norms, fillvalue=inf)
        same = self.data == other.data and all(isclose(a, b, rel_tol=NORM_TOLERANCE) for a, b in norms)
        return recordings if same else ["the data, or its partition,", *recordings]


def compute_identity(experiment: Experiment) -> Identity:
    """Load the data of an experiment and compute its checksums."""
    data = load(experiment.data)
    tensors = [t for t in (data.x_train, data.y_train, data.x_test, data.y_test, data.test_groups) if t is not None]
    sha, norms = hashlib.sha256(), []
    rows = data_assignment.training_rows(experiment, data)
    if isinstance(rows, ComputedRows):  # a function of labels, experiment and seed, so a sample is sufficient
        tensors.append(torch.from_numpy(np.fromiter(rows.counts.values(), dtype=np.int64, count=len(rows))))
        rows = [rows[client] for client in evenly_spaced(len(rows), MAX_HASHED_CLIENTS)]
    for tensor in (*tensors, *rows):
        sha.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        if tensor.is_floating_point():
            norms += [float(torch.linalg.vector_norm(tensor, order, dtype=torch.float64)) for order in (1, 2)]
        else:
            sha.update(tensor.contiguous().numpy().data)
    recorded = [getattr(law, "path", None) for law in (experiment.delays, experiment.network, experiment.availability)]
    return Identity(sha.hexdigest(), norms, {path: _hash_recording(path) for path in recorded if path is not None})


def read_identity(path: Path) -> tuple[Identity, Experiment]:
    """Read identity and experiment from `world.json`; user code that the experiment names is not executed."""
    try:
        stored = checksums.read_checksummed(path)
        if stored.keys() != {"data", "norms", "traces", "code", "experiment"}:
            raise ValueError(f"it holds {', '.join(stored)}")
        norms = [float(norm) for norm in stored["norms"]]
        identity = Identity(str(stored["data"]), norms, dict(stored["traces"]), dict(stored["code"]))
        context = FileContext(path.parent, runs_code=False)
        return identity, experiment_from_values(stored["experiment"], context)
    except FileNotFoundError:
        raise RunError(f"{path} is missing, so the run cannot be verified; restore it") from None
    except (ValueError, TypeError, KeyError) as error:
        raise RunError(f"{path} is damaged: {type(error).__name__}: {error}") from None


def check_experiment_file(path: Path, before: Experiment, now: Experiment) -> None:
    """Reject an experiment file that was edited after the run was created."""
    if before != now:
        changes = list(setting_changes("", to_values(before), to_values(now)))
        raise RunError(f"{path} changed since the run was made: {list_changes(changes)}; restore it")


def check_code(folder: Path, before: Identity) -> None:
    """Reject user code that was edited after the run was created, before any of it is executed."""
    for path in user_code.changed_files(before.code, folder):
        copy = user_code.relative_path((folder / user_code.copy_path(path)).resolve())
        file = user_code.relative_path(path)
        raise RunError(f"{folder}: {file} changed since the run was made: restore it from {copy}")


def check_identity(folder: Path, before: Identity, now: Identity) -> None:
    """Reject a run whose data or recordings changed since it was created."""
    if changed := before.differences(now):
        raise RunError(f"{folder}: {' and '.join(changed)} changed since the run was made: restore what was there")


def setting_changes(path: str, before: object, now: object) -> Iterator[str]:
    """Yield a phrase for each setting that differs; if the name of a choice differs, its settings are skipped."""
    if isinstance(before, dict) and isinstance(now, dict) and (not path or before.get("name") == now.get("name")):
        for key in {**before, **now}:
            yield from setting_changes(f"{path}.{key}" if path else key, before.get(key), now.get(key))
    elif before != now:
        yield f"{path} was {_format_setting(before)}, is {_format_setting(now)} now"


def list_changes(changes: list[str]) -> str:
    """Join the first three changes and count the others."""
    return ", ".join(changes[:3]) + (f" and {len(changes) - 3} more" if len(changes) > 3 else "")


def _format_setting(value: object) -> str:
    """Format a setting in at most 60 characters; a choice is represented by its name."""
    return str(value.get("name", value) if isinstance(value, dict) else value)[:60]


def _hash_recording(path: str) -> str:
    """Return the SHA-256 of a recording."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read the recording {path}: {getattr(error, 'strerror', None) or error}") from None


def describe_machine(device: str = "cpu") -> checksums.JsonObject:
    """Describe versions and hardware.

    The name of a GPU is queried only if the run uses it, because the query initializes the GPU.
    """
    versions = {}
    for name in RECORDED_PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    gpu = {"gpu": torch.cuda.get_device_name()} if device != "cpu" and torch.cuda.is_available() else {}
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "cores": os.cpu_count(),
        **gpu,
        "packages": versions,
    }


def machine_difference(path: Path) -> str | None:
    """Describe how this machine differs from the one in `environment.json`; None if it does not, or is unknown."""
    try:
        before = _bit_relevant_versions(checksums.read_checksummed(path))
    except FileNotFoundError:
        return None
    except RunError as error:
        return f"{error}: it is unknown whether the run started on this machine, so {BITS_MAY_DIFFER}"
    now = _bit_relevant_versions(describe_machine())
    changed = [name for name in before if name in now and before[name] != now[name]]
    earlier, current = (", ".join(f"{name} {versions[name]}" for name in changed) for versions in (before, now))
    return f"the run started with {earlier}; this machine has {current}: {BITS_MAY_DIFFER}" if changed else None


def _bit_relevant_versions(environment: checksums.JsonObject) -> dict[str, str]:
    """Select the entries that decide the last bits of results."""
    packages = environment.get("packages")
    versions = {name: packages.get(name) for name in ("torch", "numpy")} if isinstance(packages, dict) else {}
    versions |= {name: environment.get(name) for name in ("platform", "cpu")}
    return {name: str(value) for name, value in versions.items() if value is not None}
