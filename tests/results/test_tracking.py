"""Trackers, played by fakes: what they are told, once, and that nothing of theirs stops a run."""

from __future__ import annotations

import json
import sys
import threading
import types
from dataclasses import dataclass, field
from typing import Any

import pytest
from handwritten_runs import END, empty_run, write_run

from offbeat.core.errors import ConfigError
from offbeat.results import tracking as track
from offbeat.results.tracking import TrackedRun, TrackerChoice, flatten_settings, track_runs
from results import messages


@dataclass
class Heard:
    """By all fakes."""

    points: list[tuple[str, float, int, float]] = field(default_factory=list)  # name, value, step, time
    opened: list[dict[str, Any]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, float] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)


@pytest.fixture
def tensorboard(monkeypatch) -> Heard:
    heard = Heard()

    class Files:
        def add_summary(self, part):
            heard.settings, heard.summary = part

    class SummaryWriter:
        def __init__(self, place, filename_suffix):
            heard.opened.append({"place": place, "suffix": filename_suffix})
            self.file_writer = Files()

        def add_scalar(self, key, value, step=None, now=None):
            if step is not None:
                heard.points.append((key, value, step, now))

        def flush(self):
            pass

        def close(self):
            heard.ended.append("closed")

    _module(monkeypatch, "tensorboard")
    _module(monkeypatch, "torch.utils.tensorboard", SummaryWriter=SummaryWriter)
    _module(monkeypatch, "torch.utils.tensorboard.summary", hparams=lambda given, values: [(given, values)])
    return heard


@pytest.fixture
def mlflow(monkeypatch) -> Heard:
    heard = Heard()

    class Client:
        def __init__(self, tracking_uri):
            heard.opened.append({"uri": tracking_uri})

        def get_experiment_by_name(self, name):
            return None

        def create_experiment(self, name):
            return name

        def create_run(self, home, run_name, tags):
            return types.SimpleNamespace(info=types.SimpleNamespace(run_id=f"{home}-{run_name}"))

        def update_run(self, name, status):
            heard.ended.append(status)

        def log_batch(self, name, metrics=(), params=()):
            assert len(metrics) <= 1000
            assert len(params) <= 100
            heard.settings.update(params)
            for key, value, milliseconds, step in metrics:
                if key.startswith("summary/"):
                    heard.summary[key] = value
                else:
                    heard.points.append((key, value, step, milliseconds / 1000))

        def set_terminated(self, name, status):
            heard.ended.append(status)

    _module(monkeypatch, "mlflow")
    _module(monkeypatch, "mlflow.tracking", MlflowClient=Client)
    _module(monkeypatch, "mlflow.entities", Metric=lambda *given: given, Param=lambda *given: given)
    return heard


@pytest.fixture
def wandb(monkeypatch) -> Heard:
    heard = Heard()

    class Run:
        def __init__(self):
            self.summary = heard.summary

        def define_metric(self, name, step_metric=None):
            pass

        def log(self, values):
            more = {k: v for k, v in values.items() if k not in ("updates", "virtual_seconds")}
            heard.points += [(k, v, values["updates"], values["virtual_seconds"]) for k, v in more.items()]

        def finish(self, exit_code):
            heard.ended.append("KILLED" if exit_code else "FINISHED")

    def init(config, **given):
        heard.opened.append(given)
        heard.settings = config
        return Run()

    _module(monkeypatch, "wandb", init=init, Settings=lambda **given: given)
    return heard


def _module(monkeypatch, name: str, **inside: Any) -> None:
    module = types.ModuleType(name)
    module.__dict__.update(inside)
    monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_every_point_is_told_with_settings_and_what_came_out(request, tmp_path, name):
    heard: Heard = request.getfixturevalue(name)
    run = write_run(tmp_path / "run", "fedbuff")
    run.model_file.write_bytes(b"")  # the run is at its end
    one = TrackedRun(run, "run", None, TrackerChoice(name))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(run), "check_results", lambda self: None)  # the folder has no checksums
        one.send_new_points()
    loss = [(value, now) for key, value, _, now in heard.points if key == "loss"]
    assert len(loss) == 51
    assert loss[0] == (2.0, 0.0)
    assert loss[-1] == (1.0, END)
    # four clients need 4, 5, 6 and 7 seconds a job: at 4 s one update was accepted
    assert ("acc", 0.42, 1, 4.0) in [(k, round(v, 9), s, t) for k, v, s, t in heard.points]
    # from 2 s to 4 s one update arrived, of version 0 at version 0
    assert ("staleness", 0.0, 1, 4.0) in heard.points
    assert heard.settings["strategy.name"] == "fedbuff"
    assert heard.settings["clients"] in (4, "4")
    assert heard.summary[next(key for key in heard.summary if key.endswith("final"))] == 0.9
    before = len(heard.points)
    TrackedRun(run, "run", None, TrackerChoice(name)).send_new_points()
    assert len(heard.points) == before


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_after_a_resume_no_point_is_told_twice_and_none_is_left_out(request, tmp_path, name):
    heard: Heard = request.getfixturevalue(name)
    run, trace = empty_run(tmp_path / "run")
    first = TrackedRun(run, "run", None, TrackerChoice(name))
    first.send_new_points()  # there is no trace yet
    for point in range(3):
        trace.metrics(float(point), 0, point, {"acc": point / 10})
    trace.flush()
    first.send_new_points()
    first.close()
    trace.truncate(1)  # killed: what came after the checkpoint is done again, and told already
    for point in range(1, 5):
        trace.metrics(float(point), 0, point, {"acc": point / 10})
        trace.flush()
        again = TrackedRun(run, "run", None, TrackerChoice(name))
        again.send_new_points()
    trace.close()
    assert heard.points == [("acc", point / 10, point, float(point)) for point in range(5)]
    if name == "wandb":
        assert len({given["id"] for given in heard.opened}) == 1
        assert len(heard.opened) == 3  # a sink is opened when there is something to tell


def test_notes_are_told_as_the_mean_since_the_point_before(tensorboard, tmp_path):
    run, trace = empty_run(tmp_path / "run")
    trace.note(0.5, None, {"kappa": 1.0})
    trace.note(0.7, None, {"kappa": 3.0})
    trace.metrics(1.0, 0, 2, {"acc": 0.1})
    trace.note(1.5, None, {"kappa": 5.0, "odd": float("nan")})
    trace.metrics(2.0, 0, 3, {"acc": float("nan")})
    trace.close()
    TrackedRun(run, "run", None, TrackerChoice("tensorboard")).send_new_points()
    # (1 + 3) / 2; what is no number is not told
    assert tensorboard.points == [("acc", 0.1, 2, 1.0), ("note/kappa", 2.0, 2, 1.0), ("note/kappa", 5.0, 3, 2.0)]


def test_where_it_is_written_can_be_said(tensorboard, mlflow, wandb, tmp_path):
    run = write_run(tmp_path / "run", ended=None)
    for word in (f"tensorboard:{tmp_path / 'logs'}", f"mlflow:{tmp_path / 'store'}", "wandb:team/project"):
        (choice,) = track.parse_trackers([word])
        TrackedRun(run, "c/run", "c", choice).send_new_points()
    assert tensorboard.opened[0]["place"] == str(tmp_path / "logs" / "c" / "run")
    assert mlflow.opened == [{"uri": f"sqlite:///{tmp_path / 'store' / 'mlflow.db'}"}]
    assert (wandb.opened[0]["entity"], wandb.opened[0]["project"], wandb.opened[0]["group"]) == ("team", "project", "c")
    (choice,) = track.parse_trackers(["mlflow:https://example.org:5000"])
    TrackedRun(run, "c/run", "c", choice).send_new_points()
    assert mlflow.opened[-1] == {"uri": "https://example.org:5000"}
    assert len(json.loads((run.folder / "tracked.json").read_text())) == 4


def test_one_that_fails_is_warned_of_once_and_the_rest_goes_on(wandb, tensorboard, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(track, "POLL_SECONDS", 0.01)
    runs = {str(i): write_run(tmp_path / str(i), ended=None) for i in range(3)}

    def init(**given):
        raise ConnectionError("no\nnetwork")

    _module(monkeypatch, "wandb", init=init, Settings=dict)
    with track_runs(runs, "c", ["wandb", "tensorboard"]):
        pass
    assert [record.getMessage() for record in caplog.records] == [messages.TRACKER_FAILED]
    assert tensorboard.ended == ["closed"] * 3


def test_one_that_does_not_answer_is_left_behind(tensorboard, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(track, "CLOSE_SECONDS", 0.05)
    forever = threading.Event()
    monkeypatch.setattr(TrackedRun, "send_new_points", lambda self: forever.wait())
    with track_runs({"run": write_run(tmp_path / "run")}, None, ["tensorboard"]):
        pass
    forever.set()
    assert messages.TRACKER_SILENT in caplog.text


def test_without_the_package_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=messages.TRACKER_MISSING):
        track.parse_trackers(["wandb"])
    with pytest.raises(ConfigError, match=messages.UNKNOWN_TRACKER):
        track.parse_trackers(["tensorbord:x"])


def test_settings_are_flat():
    given = {"a": 1, "b": {"c": 0.5, "d": {"e": "x"}}, "f": None, "g": [1, 2]}
    assert flatten_settings(given) == {"a": 1, "b.c": 0.5, "b.d.e": "x", "g": "[1, 2]"}
