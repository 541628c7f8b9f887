"""What a run was started on: checksums of its data and of its recorded files, kept with it and compared on a resume.

A file that was swapped in between would make one half of a run of one world and the other half of another, and nobody
would notice. Only what is exact on every machine is summed: files, labels, bytes, who holds which example. Inputs that
were computed (standardised sensor readings) may differ in their last bit elsewhere; of those the shape has to do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from offbeat.core.errors import RunError
from offbeat.experiment.config import Experiment
from offbeat.scenario.data import Dataset

DATA, TRACES = "data_sha256", "traces_sha256"
WHAT = {DATA: "the data, or who holds what of it,", TRACES: "a recorded trace"}


def of(experiment: Experiment, data: Dataset, parts: Sequence[Tensor]) -> dict[str, str]:
    """The facts a run keeps about where it came from."""
    facts = {DATA: _of_tensors([data.x_train, data.y_train, data.x_test, data.y_test, *parts])}
    if files := list(_recorded(experiment)):
        sums = [hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in files]
        facts[TRACES] = hashlib.sha256(" ".join(sums).encode()).hexdigest()
    return facts


def check(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Refuse to go on in another world than the run began in."""
    for name, what in WHAT.items():
        if name in before and before[name] != now.get(name):
            raise RunError(f"{what} changed since the run began: put back what was there, or start a new run")


def _of_tensors(tensors: Sequence[Tensor]) -> str:
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        if not tensor.is_floating_point():
            sha.update(tensor.contiguous().numpy().data)
    return sha.hexdigest()


def _recorded(experiment: Experiment) -> Iterator[str]:
    laws: list[Any] = [experiment.delays, experiment.network, experiment.availability]
    while laws:
        law = laws.pop(0)
        if (path := getattr(law, "path", None)) is not None:
            yield path
        if (inner := getattr(law, "delays", None)) is not None:  # a law that changes another
            laws.append(inner)
