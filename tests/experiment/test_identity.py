"""Tests of the checksums that protect runs against changed inputs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from offbeat.core.errors import DataError, RunError
from offbeat.core.strategies import FedAsync, FedAvg
from offbeat.engine.until import Until
from offbeat.experiment import comparison as compare
from offbeat.experiment.run import execution as runs
from offbeat.experiment.run import identity
from offbeat.experiment.spec.config import Experiment
from offbeat.presets import load
from offbeat.scenario import availability, network
from offbeat.scenario.data import _load
from offbeat.scenario.data.user_data import Npz
from offbeat.scenario.delays import ConstantDelays, RecordedDelays
from offbeat.scenario.models import Linear
from offbeat.scenario.partition import Natural


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def record(*seconds: float) -> None:
    Path("speeds.csv").write_text(
        "client,t,seconds_per_step\n" + "".join(f"{c},0,{s}\n" for c, s in enumerate(seconds))
    )


def traced(**changes: object) -> Experiment:
    base = replace(
        load("quickstart").experiment,
        clients=4,
        model=Linear(),
        until=Until(seconds=300.0),
        delays=RecordedDelays(path="speeds.csv"),
    )
    return replace(base, **changes)


def save(x: float = 1.0, last: int = 1) -> None:
    """Two clients' data in files of their own."""
    Path("data").mkdir(exist_ok=True)
    for client in range(2):
        labels = np.arange(40) % 2
        labels[-1] = last
        np.savez(f"data/{client}.npz", x=np.full((40, 3), x, dtype=np.float32), y=labels)
    _load.cache_clear()  # as in a process of its own


def plugged() -> Experiment:
    data = Npz(folder=str(Path.cwd() / "data"))
    return traced(clients=2, data=data, partition=Natural(), delays=ConstantDelays(mean=1.0), until=Until(seconds=20.0))


def stop(status) -> bool:
    return status.updates >= 3


def test_a_changed_recording_is_rejected_without_changing_the_folder():
    record(1, 2, 3, 4)
    run, whole = runs.create_run(Path("x"), traced()), runs.create_run(Path("y"), traced())
    runs.execute_run(whole)
    runs.execute_run(run, stop, checkpoint_every=0.0)
    before = {path: path.read_bytes() for path in Path("x").rglob("*") if path.is_file()}
    record(1, 2, 3, 5)
    for _ in range(2):  # asking again does not help
        with pytest.raises(RunError, match=r"^x: the recording speeds.csv changed since the run was made: restore"):
            runs.execute_run(run)
    assert {path: path.read_bytes() for path in Path("x").rglob("*") if path.is_file()} == before
    record(1, 2, 3, 4)
    runs.execute_run(run)
    assert run.digest() == whole.digest()


def test_recordings_of_all_kinds_are_hashed():
    record(1, 2, 3, 4)
    Path("links.csv").write_text("client,t,mbps\n" + "".join(f"{client},0,8\n" for client in range(4)))
    Path("shifts.csv").write_text("client,t,available\n" + "".join(f"{client},0,1\n" for client in range(4)))
    experiment = traced(
        network=network.RecordedBandwidth(path="links.csv"),
        availability=availability.RecordedAvailability(path="shifts.csv"),
    )
    found = identity.compute_identity(experiment)
    assert list(found.traces) == ["speeds.csv", "links.csv", "shifts.csv"]
    Path("shifts.csv").write_text(
        "client,t,available\n" + "".join(f"{client},0,1\n{client},9,0\n" for client in range(4))
    )
    assert found.differences(identity.compute_identity(experiment)) == ["the recording shifts.csv"]


def test_a_changed_recording_is_rejected_before_the_first_start():
    record(1, 2, 3, 4)
    run = runs.create_run(Path("x"), traced())
    record(4, 3, 2, 1)
    with pytest.raises(RunError, match=r"the recording speeds.csv changed"):
        runs.execute_run(run)
    assert not run.trace_file.exists()


def test_all_runs_of_a_comparison_need_the_same_inputs(request):
    """One is done, the other not begun: it is not run in another world, and the comparison can still be finished."""
    record(1, 2, 3, 4)
    comparison = compare.create_comparison(
        Path("x"), {"fedavg": traced(strategy=FedAvg()), "fedasync": traced(strategy=FedAsync())}, [0]
    )
    runs.execute_run(comparison.runs("fedavg")[0])
    record(1, 2, 3, 5)
    # also tells it across processes
    with pytest.raises(RunError, match=r"^x/fedasync-seed0: the recording speeds.csv changed"):
        compare.execute_comparison(comparison, jobs=1)
    record(1, 2, 3, 4)
    request.getfixturevalue("sequential_runs")
    assert compare.execute_comparison(comparison)
    assert comparison.runs("fedasync")[0].complete


@pytest.mark.parametrize("changed", [{"last": 0}, {"x": 1.01}])
def test_changed_data_is_rejected(changed):
    save()
    run = runs.create_run(Path("x"), plugged())
    save(**changed)
    with pytest.raises(RunError, match=r"^x: the data, or its partition, changed"):
        runs.execute_run(run)
    save()
    runs.execute_run(run)
    assert run.complete


def test_a_difference_in_the_last_bit_is_accepted():
    """A mean over many values, summed in another order on another machine."""
    save()
    run = runs.create_run(Path("x"), plugged())
    save(x=float(np.nextafter(np.float32(1), np.float32(2))))
    runs.execute_run(run)
    assert run.complete


def test_a_damaged_or_missing_identity_is_rejected():
    record(1, 2, 3, 4)
    run = runs.create_run(Path("x"), traced())
    kept = run.world_file.read_text()
    for damage in (
        "{",
        "[]",
        "{}",
        json.dumps({**json.loads(kept), "norms": ["a"]}),
        json.dumps({**json.loads(kept), "traces": 3}),
    ):
        run.world_file.write_text(damage)
        with pytest.raises(RunError, match=r"x/world.json is damaged"):
            runs.execute_run(run)
    run.world_file.unlink()
    with pytest.raises(RunError, match=r"x/world.json is missing"):
        runs.execute_run(run)


def test_a_missing_recording_creates_no_folder():
    with pytest.raises(DataError, match=r"cannot read the recording speeds.csv: No such file"):
        runs.create_run(Path("x"), traced())
    assert not Path("x").exists()
