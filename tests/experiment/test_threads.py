"""Tests that results do not depend on the number of threads."""

from __future__ import annotations

import gzip
import hashlib
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

from offbeat.core.strategies import REGISTRY
from offbeat.core.strategies.fedpac.simplex import simplex_minimum
from offbeat.engine.until import Until
from offbeat.experiment import build
from offbeat.experiment.run import execution as runs
from offbeat.experiment.spec.config import Experiment
from offbeat.scenario import data as sets
from offbeat.scenario.data import DATASETS, Dataset
from offbeat.scenario.data.activity import HAR_ACTIVITIES, HAR_FOLDER, HAR_SIGNALS, HAR_STEPS
from offbeat.scenario.data.mnist import IDX_FILES
from offbeat.scenario.models import Linear, Mlp
from waiting import MAX_WAIT_SECONDS

THREADS = (1, 2, 4)


@pytest.fixture(autouse=True)
def as_many_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def digest(data: Dataset) -> str:
    sha = hashlib.sha256()
    for tensor in (data.x_train, data.y_train, data.x_test, data.y_test, data.groups, data.test_groups):
        if tensor is not None:
            sha.update(tensor.contiguous().numpy().tobytes())
    return sha.hexdigest()


def loaded(source: sets.DataSource, counts: tuple[int, ...] = (1, 2, 3, 4)) -> set[str]:
    """The digests of what is loaded with each number of threads: one, if all is well."""
    found = set()
    for threads in counts:
        torch.set_num_threads(threads)
        found.add(digest(source.load()))
    return found


# ---------------------------------------------------------------- loading


def write_images(root: Path, rng: np.random.Generator) -> None:
    """Write random images and labels in the format of MNIST."""
    (root / "mnist").mkdir()
    for name, count in zip(IDX_FILES, (1000, 1000, 10, 10), strict=True):
        shape = (count, 28, 28) if "images" in name else (count,)
        values = rng.integers(0, 256 if "images" in name else 10, shape, dtype=np.uint8)
        header = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape)
        (root / "mnist" / f"{name}.gz").write_bytes(gzip.compress(header + values.tobytes(), 1))


def write_signals(root: Path, rng: np.random.Generator) -> None:
    """Write random signals in the format of UCI HAR."""
    for part, count in (("train", 300), ("test", 6)):
        home = root / "uci-har" / HAR_FOLDER / part
        (home / "Inertial Signals").mkdir(parents=True)
        (home / f"y_{part}.txt").write_text("".join(f"{1 + i % len(HAR_ACTIVITIES)}\n" for i in range(count)))
        (home / f"subject_{part}.txt").write_text("".join(f"{1 + i % 3}\n" for i in range(count)))
        values = rng.normal(1, 1, (count, HAR_STEPS)).astype(np.float32).tolist()
        for signal in HAR_SIGNALS:
            rows = "".join(" ".join(map(repr, row)) + "\n" for row in values)
            (home / "Inertial Signals" / f"{signal}_{part}.txt").write_text(rows)


def write_volumes(root: Path, rng: np.random.Generator) -> None:
    """Write random volumes in the format of IXI (NIfTI)."""
    for subject in range(5):
        for kind in ("T1", "label"):
            folder = root / "ixi" / "IXI_sample" / f"IXI00{subject}-Guys-0828" / kind
            folder.mkdir(parents=True)
            values = rng.integers(0, 1000 if kind == "T1" else 2, (50, 50, 50)).astype("<i2")
            header = bytearray(352)
            for form, offset, *fields in (("<i", 0, 348), ("<8h", 40, 3, 50, 50, 50, 1, 1, 1, 1), ("<h", 70, 4)):
                struct.pack_into(form, header, offset, *fields)
            struct.pack_into("<f", header, 108, 352.0)
            header[344:348] = b"n+1\0"
            (folder / "volume.nii").write_bytes(bytes(header) + values.tobytes())


WRITERS = {"digits": None, "synthetic": None, "mnist": write_images, "uci-har": write_signals, "ixi": write_volumes}


@pytest.mark.parametrize("name", WRITERS)
def test_loaded_data_does_not_depend_on_threads(name, tmp_path, monkeypatch):
    monkeypatch.setattr("offbeat.scenario.data.mnist.MNIST", (None,) * 4)  # random files have no published checksum
    monkeypatch.setenv("OFFBEAT_DATA", str(tmp_path))
    if (write := WRITERS[name]) is not None:
        write(tmp_path, np.random.default_rng(0))
    assert len(loaded(DATASETS[name]())) == 1


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(DATASETS.keys() - {"digits", "synthetic", "stand-in", "npz"}))
def test_no_real_data_depends_on_threads(name):
    given = os.environ.get("OFFBEAT_DATA")
    if not given or not (Path(given) / name).is_dir():
        pytest.skip(f"OFFBEAT_DATA does not point at {name}: the real files were not read")
    assert len(loaded(DATASETS[name](), THREADS)) == 1


@dataclass(frozen=True, kw_only=True)
class Counting:
    """Data that tells how many threads it was made with: torch's, and those of numpy's linear algebra."""

    name: str = "counting"

    def load(self) -> Dataset:
        blas = [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]
        x = torch.tensor([[float(max([torch.get_num_threads(), *blas]))]]).repeat(40, 1)
        y = torch.arange(40) % 2
        return Dataset("counting", x, y, x, y, num_classes=2)


def test_user_data_is_loaded_on_one_thread():
    torch.set_num_threads(4)
    assert sets.load(Counting()).x_train.unique().tolist() == [1.0]
    assert torch.get_num_threads() == 4


# ---------------------------------------------------------------- what a run is made of


@dataclass(frozen=True)
class Watched(Linear):
    """A model that notes how many threads there are whenever it is asked for anything."""

    def build(self, input_shape, num_outputs, seed):
        module = super().build(input_shape, num_outputs, seed)
        SEEN.append(torch.get_num_threads())
        module.register_forward_pre_hook(lambda module, inputs: SEEN.append(torch.get_num_threads()))
        return module


SEEN: list[int] = []


@pytest.mark.parametrize("strategy", ["fedavg", "fedpsa"])
def test_a_model_is_created_checked_and_trained_on_one_thread(strategy):
    SEEN.clear()
    torch.set_num_threads(4)
    experiment = Experiment(model=Watched(), clients=3, strategy=REGISTRY[strategy](), until=Until(updates=4))
    made = build.setup(experiment)
    assert set(SEEN) == {1}
    build.build_engine(made, experiment).run()
    assert set(SEEN) == {1}
    assert torch.get_num_threads() == 4


@dataclass(frozen=True, kw_only=True)
class Planning:
    """A strategy that computes something before its first event."""

    def init(self, world):
        SEEN.append(torch.get_num_threads())
        return world.model

    def on_event(self, state, event):
        return []


def test_a_strategy_is_initialized_on_one_thread():
    SEEN.clear()
    torch.set_num_threads(4)
    experiment = Experiment(model=Linear(), clients=3, strategy=Planning(), until=Until(updates=1))
    build.build_engine(build.setup(experiment), experiment)
    assert SEEN == [1]


def test_programs_of_a_hundred_clients_have_one_thread_of_linear_algebra():
    """A Cholesky factor of 100 rows differs in its last bits when OpenBLAS shares the work."""
    from offbeat.core.threads import one_thread

    with one_thread():
        assert {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"} <= {1}
        assert simplex_minimum(np.eye(100)) == pytest.approx(0.01)  # all alike: each a hundredth


def run_digest(folder: Path, strategy: str) -> str:
    experiment = Experiment(model=Mlp(hidden=(8,)), clients=6, strategy=REGISTRY[strategy](), until=Until(updates=12))
    run = runs.create_run(folder, experiment)
    runs.execute_run(run)
    return run.digest()


@pytest.mark.parametrize("strategy", ["fedpsa", "fedpac"])
def test_a_short_run_has_the_same_digest_with_any_number_of_threads(tmp_path, strategy):
    digests = set()
    for threads in THREADS:
        torch.set_num_threads(threads)
        sets._load.cache_clear()
        digests.add(run_digest(tmp_path / str(threads), strategy))
    assert len(digests) == 1


@pytest.mark.slow
def test_a_run_has_the_same_digest_whatever_the_environment_says(tmp_path):
    digests = set()
    world = ["--set", "strategy=fedpsa", "--set", "clients=3", "--set", "model=linear", "--until", "60s"]
    for threads in ("1", "2", "4"):
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        environment = {**os.environ, **dict.fromkeys(names, threads)}
        command = [sys.executable, "-m", "offbeat", "run", "quickstart", *world, "--out", str(tmp_path / threads)]
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=MAX_WAIT_SECONDS)
        digests.add(runs.Run(tmp_path / threads).digest())
    assert len(digests) == 1
