"""The world a run was made for: checksums of its data and of its recorded traces, written when its folder is made.

A file that is swapped between a stop and a resume, or between two runs of a comparison, would make a result of two worlds,
and nobody would notice. Files, labels, bytes and who holds which example are the same on every machine, so they are summed
to the bit. Inputs that were computed (standardised sensor readings) may differ elsewhere in their last bits: of those two
norms are compared, with a tolerance.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from itertools import zip_longest
from math import inf, isclose
from pathlib import Path

import torch

from offbeat.core.errors import DataError, RunError
from offbeat.experiment import build
from offbeat.experiment.config import Experiment
from offbeat.scenario.data import load

TOLERANCE = 1e-5


@dataclass(frozen=True)
class Identity:
    data: str  # SHA-256 over shapes, whole numbers, and who holds what
    norms: list[float]  # two of each tensor of floats
    traces: dict[str, str]  # path -> SHA-256 of the file

    def dump(self) -> bytes:
        return json.dumps(asdict(self), indent=2).encode()

    def differences(self, other: Identity) -> list[str]:
        """In words, what is not the same."""
        found = [f"the trace {path}" for path in self.traces if self.traces[path] != other.traces.get(path)]
        norms = zip_longest(self.norms, other.norms, fillvalue=inf)
        same = self.data == other.data and all(isclose(a, b, rel_tol=TOLERANCE) for a, b in norms)
        return found if same else ["the data, or who holds what of it,", *found]


def of(experiment: Experiment) -> Identity:
    data = load(experiment.data)
    tensors = [t for t in (data.x_train, data.y_train, data.x_test, data.y_test, data.test_groups) if t is not None]
    sha, norms = hashlib.sha256(), []
    for tensor in (*tensors, *build.split(experiment, data)):
        sha.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        if tensor.is_floating_point():
            norms += [float(torch.linalg.vector_norm(tensor, order, dtype=torch.float64)) for order in (1, 2)]
        else:
            sha.update(tensor.contiguous().numpy().data)
    recorded = [getattr(law, "path", None) for law in (experiment.delays, experiment.network, experiment.availability)]
    return Identity(sha.hexdigest(), norms, {path: _of_file(path) for path in recorded if path is not None})


def read(path: Path) -> Identity | None:
    """None for a run of before these were kept."""
    try:
        kept = json.loads(path.read_text())
        return Identity(str(kept["data"]), [float(norm) for norm in kept["norms"]], dict(kept["traces"]))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise RunError(f"{path} is damaged ({type(error).__name__}: {error}): without it, the run goes on unchecked") from None


def check(folder: Path, before: Identity | None, now: Identity) -> None:
    """Refuse to run in another world than the run was made for."""
    if before is not None and (changed := before.differences(now)):
        raise RunError(f"{folder}: {' and '.join(changed)} changed since the run was made: put back what was there, or make a new run")


def _of_file(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read the trace {path}: {getattr(error, 'strerror', None) or error}") from None
