"""What a run was made for: its experiment, and checksums of its data, of its recorded traces and of code of one's own,
written when its folder is made.

A file that is swapped between a stop and a resume, or between two runs of a comparison, would make a result of two
worlds, and nobody would notice. Files, labels, bytes and who holds which example are the same on every machine, so they
are summed to the bit. Inputs that were computed (standardised sensor readings) may differ elsewhere in their last bits:
of those two norms are compared, with a tolerance. The experiment is kept beside its file, so that an edit between a
stop and a resume is noticed and named.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from importlib import metadata
from itertools import zip_longest
from math import inf, isclose
from pathlib import Path
from typing import Any

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

NORM_TOLERANCE = 1e-5
MAX_HASHED_CLIENTS = 2000  # clients whose examples are looked at, where these are computed when asked for


@dataclass(frozen=True)
class Identity:
    data: str  # SHA-256 over shapes, whole numbers, and who holds what
    norms: list[float]  # two of each tensor of floats
    traces: dict[str, str]  # path -> SHA-256 of the file
    code: dict[str, str] = field(default_factory=dict)  # the same of one's own; known when the folder is made

    def dump(self, experiment: Experiment) -> bytes:
        return checksums.dump_checksummed({**asdict(self), "experiment": to_values(experiment)})

    def differences(self, other: Identity) -> list[str]:
        """In words, what is not the same."""
        found = [f"the recording {path}" for path in self.traces if self.traces[path] != other.traces.get(path)]
        norms = zip_longest(self.norms, other.norms, fillvalue=inf)
        same = self.data == other.data and all(isclose(a, b, rel_tol=NORM_TOLERANCE) for a, b in norms)
        return found if same else ["the data, or who holds what of it,", *found]


def compute_identity(experiment: Experiment) -> Identity:
    data = load(experiment.data)
    tensors = [t for t in (data.x_train, data.y_train, data.x_test, data.y_test, data.test_groups) if t is not None]
    sha, norms = hashlib.sha256(), []
    rows = data_assignment.training_rows(experiment, data)
    # a function of the labels, the experiment and the seed: some show that it is still the same one
    if isinstance(rows, ComputedRows):
        tensors.append(torch.from_numpy(np.fromiter(rows.counts.values(), dtype=np.int64, count=len(rows))))
        rows = [rows[client] for client in evenly_spaced(len(rows), MAX_HASHED_CLIENTS)]
    for tensor in (*tensors, *rows):
        sha.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        if tensor.is_floating_point():
            norms += [float(torch.linalg.vector_norm(tensor, order, dtype=torch.float64)) for order in (1, 2)]
        else:
            sha.update(tensor.contiguous().numpy().data)
    recorded = [getattr(law, "path", None) for law in (experiment.delays, experiment.network, experiment.availability)]
    return Identity(sha.hexdigest(), norms, {path: _file_digest(path) for path in recorded if path is not None})


@dataclass(frozen=True)
class StoredIdentity:
    identity: Identity
    experiment: Experiment | None  # None for a run of before it was kept


def read_identity(path: Path) -> StoredIdentity | None:
    """None for a run of before these were kept."""
    try:
        kept = checksums.read_checksummed(path)
        if kept.keys() - {f.name for f in fields(Identity)} not in (set(), {"experiment"}):
            raise ValueError(f"it holds {', '.join(kept)}")
        norms = [float(norm) for norm in kept["norms"]]
        world = Identity(str(kept["data"]), norms, dict(kept["traces"]), dict(kept.get("code", {})))
        looked = FileContext(path.parent, runs_code=False)
        return StoredIdentity(
            world, experiment_from_values(kept["experiment"], looked) if "experiment" in kept else None
        )
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise RunError(
            f"{path} is damaged ({type(error).__name__}: {error}): without it, the run goes on unchecked"
        ) from None


def check_experiment_file(path: Path, before: Experiment, now: Experiment) -> None:
    """Refuse an experiment file that was edited."""
    if before != now:
        found = list(setting_changes("", to_values(before), to_values(now)))
        listed = ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
        raise RunError(f"{path} changed since the run was made: {listed}; put it back, or make a new run")


def check_code(folder: Path, before: StoredIdentity | None) -> None:
    """Refuse code of one's own that was edited, before any of it is run."""
    for path in user_code.changed_files({} if before is None else before.identity.code, folder):
        copy = user_code.relative_path((folder / user_code.copy_path(path)).resolve())
        raise RunError(
            f"{folder}: {user_code.relative_path(path)} changed since the run was made: put back what was there ({copy}), or make a "
            "new run"
        )


def setting_changes(where: str, before: Any, now: Any) -> Iterator[str]:
    """Setting by setting; another choice is named as a whole."""
    if isinstance(before, dict) and isinstance(now, dict) and (not where or before.get("name") == now.get("name")):
        for key in {**before, **now}:
            yield from setting_changes(f"{where}.{key}" if where else key, before.get(key), now.get(key))
    elif before != now:
        yield f"{where} was {_short(before)}, is {_short(now)} now"


def _short(value: Any) -> str:
    return str(value.get("name", value) if isinstance(value, dict) else value)[:60]


def check_identity(folder: Path, before: StoredIdentity | None, now: Identity) -> None:
    """Refuse to run in another world than the run was made for."""
    if before is not None and (changed := before.identity.differences(now)):
        raise RunError(
            f"{folder}: {' and '.join(changed)} changed since the run was made: put back what was there, or make a "
            "new run"
        )


def _file_digest(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read the recording {path}: {getattr(error, 'strerror', None) or error}") from None


RECORDED_PACKAGES = ("offbeat", "torch", "numpy", "scipy", "scikit-learn", "safetensors")


def describe_machine(device: str = "cpu") -> dict[str, Any]:
    """`device`: what trains. A GPU is asked for its name only where it is used: asking takes hold of it."""
    versions = {}
    for name in RECORDED_PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    cpu = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    gpu = {"gpu": torch.cuda.get_device_name()} if device != "cpu" and torch.cuda.is_available() else {}
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu,
        "cores": os.cpu_count(),
        **gpu,
        "packages": versions,
    }


def machine_difference(path: Path) -> str | None:
    """In words, how this is not what a run began on; None if it is, or where that is not known."""
    try:
        before, now = (
            _bit_relevant_versions(checksums.read_checksummed(path)),
            _bit_relevant_versions(describe_machine()),
        )
    except FileNotFoundError:
        return None
    except RunError as error:
        return f"{error}: whether it began on this machine cannot be stored, and bits may differ"
    changed = [name for name in before if name in now and before[name] != now[name]]
    if not changed:
        return None
    stored = ", ".join(f"{name} {before[name]}" for name in changed)
    return f"it began with {stored}; here it is {', '.join(str(now[name]) for name in changed)}: bits may differ"


def _bit_relevant_versions(stored: dict[str, Any]) -> dict[str, str]:
    """What decides about the last bits."""
    packages = stored.get("packages")
    found = {"torch": packages.get("torch"), "numpy": packages.get("numpy")} if isinstance(packages, dict) else {}
    found |= {name: stored.get(name) for name in ("platform", "cpu")}
    return {name: str(value) for name, value in found.items() if value is not None}
