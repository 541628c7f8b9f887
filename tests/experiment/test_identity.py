"""Tests of the checksums that protect runs against changed inputs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiment import messages
from offbeat.core.errors import DataError, RunError
from offbeat.core.strategies import FedAsync, FedAvg
from offbeat.engine.until import Until
from offbeat.experiment import comparison as compare
from offbeat.experiment.run import execution as runs
from offbeat.experiment.run import identity
from offbeat.experiment.spec.config import Experiment
from offbeat.presets import load
from offbeat.scenario.availability import RecordedAvailability
from offbeat.scenario.data import _load
from offbeat.scenario.data.user_data import Npz
from offbeat.scenario.delays import ConstantDelays, RecordedDelays
from offbeat.scenario.models import Linear
from offbeat.scenario.network import RecordedBandwidth
from offbeat.scenario.partition import Natural


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def record(*seconds: float) -> None:
    rows = "".join(f"{client},0,{value}\n" for client, value in enumerate(seconds))
    Path("speeds.csv").write_text(f"client,t,seconds_per_step\n{rows}")


def traced(**changes: object) -> Experiment:
    speeds, until = RecordedDelays(path="speeds.csv"), Until(seconds=300.0)
    base = replace(load("quickstart").experiment, clients=4, model=Linear(), until=until, delays=speeds)
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
    for _ in range(2):  # also when it is resumed again
        with pytest.raises(RunError, match=messages.CHANGED_RECORDING.format("x: ")):
            runs.execute_run(run)
    assert {path: path.read_bytes() for path in Path("x").rglob("*") if path.is_file()} == before
    record(1, 2, 3, 4)
    runs.execute_run(run)
    assert run.digest() == whole.digest()


def test_recordings_of_all_kinds_are_hashed():
    record(1, 2, 3, 4)
    Path("links.csv").write_text("client,t,mbps\n" + "".join(f"{client},0,8\n" for client in range(4)))
    shifts = [f"{client},0,1\n" for client in range(4)]
    Path("shifts.csv").write_text("".join(["client,t,available\n", *shifts]))
    links, present = RecordedBandwidth(path="links.csv"), RecordedAvailability(path="shifts.csv")
    experiment = traced(network=links, availability=present)
    before = identity.compute_identity(experiment)
    assert list(before.traces) == ["speeds.csv", "links.csv", "shifts.csv"]
    Path("shifts.csv").write_text("".join(["client,t,available\n", *shifts, "3,9,0\n"]))
    assert before.differences(identity.compute_identity(experiment)) == ["the recording shifts.csv"]


def test_a_changed_recording_is_rejected_before_the_first_start():
    record(1, 2, 3, 4)
    run = runs.create_run(Path("x"), traced())
    record(4, 3, 2, 1)
    with pytest.raises(RunError, match=messages.CHANGED_RECORDING.format("x: ")):
        runs.execute_run(run)
    assert not run.trace_file.exists()


def test_all_runs_of_a_comparison_need_the_same_inputs(request):
    """If one run is complete and the recording changes, the other run is rejected and can be finished later."""
    record(1, 2, 3, 4)
    experiments = {"fedavg": traced(strategy=FedAvg()), "fedasync": traced(strategy=FedAsync())}
    comparison = compare.create_comparison(Path("x"), experiments, [0])
    runs.execute_run(comparison.runs("fedavg")[0])
    record(1, 2, 3, 5)
    with pytest.raises(RunError, match=messages.CHANGED_RECORDING.format("x/fedasync-seed0: ")):  # from a child process
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
    with pytest.raises(RunError, match=messages.CHANGED_DATA):
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
    stored = json.loads(run.world_file.read_text())
    for damage in ("{", "[]", "{}", json.dumps({**stored, "norms": ["a"]}), json.dumps({**stored, "traces": 3})):
        run.world_file.write_text(damage)
        with pytest.raises(RunError, match=messages.DAMAGED_IDENTITY):
            runs.execute_run(run)
    run.world_file.unlink()
    with pytest.raises(RunError, match=messages.MISSING_IDENTITY):
        runs.execute_run(run)


def test_a_missing_recording_creates_no_folder():
    with pytest.raises(DataError, match=messages.MISSING_RECORDING):
        runs.create_run(Path("x"), traced())
    assert not Path("x").exists()
