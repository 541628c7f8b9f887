"""--track with the trackers themselves: what they were told is read back from their own files."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from command_line import TINY, quickstart
from damaged_runs import CHANGES, stop_after

from offbeat.experiment.run import execution as runs
from offbeat.experiment.run.execution import Run
from offbeat.results.tracking import track_runs

real = pytest.mark.track


def curve(run: Path, metric: str = "acc") -> list[tuple[int, float, float]]:
    """Updates, virtual seconds and value, as the trace has them."""
    with sqlite3.connect(run / "run.sqlite") as db:
        return db.execute("SELECT updates, now, value FROM metrics WHERE key = ? ORDER BY seq", (metric,)).fetchall()


def events(place: Path, tag: str) -> list[tuple[int, float, float]]:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    found = []
    for file in sorted(place.glob("events.out.tfevents.*.offbeat")):
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                if value.tag == tag:
                    found.append((event.step, event.wall_time, value.tensor.float_val[0]))
    return found


@real
def test_tensorboard_has_every_point_and_the_settings(offbeat):
    options = ["--set", "strategy=fedpsa", "--out", "x", "--track", "tensorboard"]
    assert offbeat("run", "quickstart", *TINY, *options).status == 0
    place = Path("x/tensorboard")
    assert events(place, "acc") == [(s, now, pytest.approx(v)) for s, now, v in curve(Path("x"))]
    assert events(place, "note/kappa")
    assert events(place, "staleness")
    (file,) = place.iterdir()
    assert b"strategy.name" in file.read_bytes()
    assert [path for path in place.rglob("*") if path.is_dir()] == []  # no second run beside it


@real
def test_after_ctrl_c_and_resume_tensorboard_has_each_point_once(offbeat):
    run = runs.create_run(Path("x"), quickstart(*CHANGES))
    stop_after(run, 16)
    with track_runs({"x": run}, None, ["tensorboard"]):
        pass
    told = len(events(Path("x/tensorboard"), "acc"))
    assert told > 0
    assert offbeat("run", "--resume", "x", "--track", "tensorboard").status == 0
    assert events(Path("x/tensorboard"), "acc") == [(s, now, pytest.approx(v)) for s, now, v in curve(Path("x"))]
    assert len(events(Path("x/tensorboard"), "acc")) > told
    assert offbeat("run", "--resume", "x", "--track", "tensorboard").status == 0  # already complete
    assert len(events(Path("x/tensorboard"), "acc")) == len(curve(Path("x")))


@real
def test_mlflow_has_a_comparison_run_by_run(offbeat):
    from mlflow.tracking import MlflowClient

    given = ["--strategies", "fedavg,fedasync", "--seeds", "1", "--out", "c", "--track", "mlflow:store"]
    assert offbeat("compare", "quickstart", *TINY, *given).status == 0
    client = MlflowClient(tracking_uri=f"sqlite:///{Path('store').resolve()}/mlflow.db")
    home = client.get_experiment_by_name("offbeat")
    found = {run.info.run_name: run for run in client.search_runs([home.experiment_id])}
    assert set(found) == {"c/fedavg-seed0", "c/fedasync-seed0"}
    run = found["c/fedasync-seed0"]
    assert run.info.status == "FINISHED"
    assert run.data.params["strategy.name"] == "fedasync"
    assert run.data.metrics["summary/final"] == pytest.approx(curve(Path("c/fedasync-seed0"))[-1][2])
    history = [(m.step, m.timestamp / 1000, m.value) for m in client.get_metric_history(run.info.run_id, "acc")]
    assert sorted(history) == sorted(curve(Path("c/fedasync-seed0")))


@real
def test_wandb_offline_has_the_points(offbeat, monkeypatch, caplog):
    monkeypatch.setenv("WANDB_MODE", "offline")
    given = offbeat("run", "quickstart", *TINY, "--out", "x", "--track", "wandb")
    assert (given.status, given.err, caplog.text) == (0, "", "")
    (file,) = Path("x/wandb").glob("offline-run-*/run-*.wandb")
    assert file.stat().st_size > 1000
    kept = file.read_bytes()
    for word in (b"virtual_seconds", b"staleness", b"strategy.name"):
        assert word in kept


@real
def test_wandb_without_a_key_is_warned_of_and_the_run_goes_on(offbeat, monkeypatch, caplog):
    import wandb

    wandb.teardown()  # else it remembers that another test was offline
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", "nothing")
    monkeypatch.setenv("HOME", str(Path().resolve()))
    assert offbeat("run", "quickstart", *TINY, "--out", "x", "--track", "wandb").status == 0
    assert Run(Path("x")).complete
    assert caplog.text.count("wandb is told no more, the run goes on") == 1
