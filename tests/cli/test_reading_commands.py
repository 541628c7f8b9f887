"""offbeat list, show and export: what there is to choose from, what a run amounts to, its model for everybody."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_line import TINY, quickstart, refused, unchanged
from safetensors.torch import load_file

from cli import messages
from offbeat.api.run_simulation import simulate
from offbeat.core.strategies import REGISTRY
from offbeat.experiment.run import execution as runs
from offbeat.experiment.run.execution import Run
from waiting import MAX_WAIT_SECONDS


@pytest.fixture
def finished(offbeat) -> Path:
    assert offbeat("run", "quickstart", *TINY, "--out", "finished").status == 0
    return Path("finished")


@pytest.fixture
def unfinished() -> Path:
    """Stopped after ten updates, with a checkpoint there."""
    run = runs.create_run(Path("unfinished"), quickstart("clients=4", "model=linear", "until=600s"))
    runs.execute_run(run, lambda status: status.updates >= 10)
    return run.folder


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("strategies", {"fedavg", "fedasync", "fedbuff"}),
        ("presets", {"quickstart"}),
        ("datasets", {"digits"}),
        ("models", {"linear", "mlp", "cnn"}),
        ("delays", {"constant", "uniform", "lognormal", "exponential"}),
        ("partitions", {"iid", "dirichlet"}),
    ],
)
def test_everything_is_listed_with_a_sentence_about_it(offbeat, what, expected):
    listed = json.loads(offbeat("list", what, "--json").out)
    assert expected <= {entry["name"] for entry in listed}
    assert all(len(entry["summary"]) > 10 for entry in listed)
    table = offbeat("list", what)
    assert (table.status, table.err) == (0, "")
    rows = [line for line in table.out.splitlines()[1:] if not line.startswith(" ")]  # a long paper goes on below
    assert [line.split()[0] for line in rows] == [entry["name"] for entry in listed]


def test_strategies_are_listed_with_their_papers(offbeat):
    listed = {entry["name"]: entry for entry in json.loads(offbeat("list", "strategies", "--json").out)}
    assert listed.keys() == REGISTRY.keys()
    assert "McMahan" in listed["fedavg"]["summary"]
    assert (listed["fedavg"]["year"], listed["fedavg"]["mode"]) == (2017, "synchronous")
    assert all(entry["year"] and entry["mode"] and entry["keeps"] and entry["uploads"] for entry in listed.values())


def test_a_finished_run_is_shown(offbeat, finished):
    shown = offbeat("show", finished)
    assert (shown.status, shown.err) == (0, "")
    first, data, *lines = shown.out.splitlines()
    assert first == "finished"
    assert data == "data: digits: 1442 training and 355 test examples, inputs 1×8×8, 10 classes"
    told = dict(re.split(r"\s{2,}", line.strip()) for line in lines)
    summary = Run(finished).summary()
    assert told["strategy"] == "fedasync"
    assert told["ended"] == "seconds"
    assert told["acc"] == f"{summary.metrics['acc']:.4f}"
    assert (told["updates"], told["versions"]) == (str(summary.updates), str(summary.versions))


def test_an_unfinished_run_is_shown_as_far_as_it_got(offbeat, unfinished):
    told = json.loads(offbeat("show", unfinished, "--json").out)
    assert told["complete"] is False
    assert told["ended"] == "not finished"
    assert told["data"].startswith("digits: 1442 training")  # known from the first moment on
    assert told["updates"] >= 10
    assert offbeat("show", unfinished).status == 0


def test_a_killed_run_has_no_host_seconds_to_tell(offbeat, unfinished):
    with sqlite3.connect(unfinished / "run.sqlite") as db:
        db.execute("DELETE FROM facts")
    db.close()
    assert json.loads(offbeat("show", unfinished, "--json").out)["wall_seconds"] is None
    assert "nan" not in offbeat("show", unfinished).out


def test_showing_changes_nothing(offbeat, finished):
    with unchanged(finished):
        offbeat("show", finished)
        offbeat("show", finished, "--json")


def test_a_run_that_has_not_begun_says_how_to_begin(offbeat):
    runs.create_run(Path("new"), quickstart())
    refused(offbeat("show", "new"), *messages.NOT_STARTED, status=1)
    refused(offbeat("export", "new"), messages.NO_MODEL, status=1)


def test_a_file_is_no_folder_of_a_run(offbeat):
    Path("file").write_text("x")
    refused(offbeat("show", "file"), messages.NO_FOLDER.format("file"))


def test_names_in_brackets_are_printed_as_they_are(offbeat):
    """Some libraries would take them for colours."""
    offbeat("run", "quickstart", *TINY, "--out", "[red]x[/blue]:smile:")
    assert offbeat("show", "[red]x[/blue]:smile:").out.splitlines()[0] == "[red]x[/blue]:smile:"


WITHOUT_OFFBEAT = """
import sys
sys.modules["offbeat"] = None  # importing it now fails
import torch
from safetensors.torch import load_file
module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
for path in sys.argv[1:]:
    print(module.load_state_dict(load_file(path)), float(module[1].weight.abs().sum()) > 0)
"""


def test_the_model_loads_without_offbeat_whether_the_run_is_finished_or_not(offbeat, finished, unfinished):
    assert offbeat("export", finished).out.startswith("finished.safetensors (")
    assert offbeat("export", unfinished, "--out", "mine.safetensors").status == 0
    exported, stored = load_file("finished.safetensors"), load_file(finished / "model.safetensors")
    assert exported.keys() == stored.keys()
    assert all(exported[name].equal(stored[name]) for name in stored)
    command = [sys.executable, "-c", WITHOUT_OFFBEAT, "finished.safetensors", "mine.safetensors"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=MAX_WAIT_SECONDS)
    assert done.stdout.splitlines() == ["<All keys matched successfully> True"] * 2


def test_an_unfinished_run_exports_the_model_of_its_last_checkpoint(offbeat, unfinished):
    offbeat("export", unfinished, "--out", "before.safetensors")
    runs.execute_run(Run(unfinished))
    offbeat("export", unfinished, "--out", "after.safetensors")
    before, after = load_file("before.safetensors"), load_file("after.safetensors")
    assert before.keys() == after.keys() == {"1.weight", "1.bias"}
    assert not before["1.weight"].equal(after["1.weight"])


def test_an_export_into_a_missing_folder_is_one_line(offbeat, finished):
    words = messages.CANNOT_WRITE.format("no/such/folder")
    refused(offbeat("export", finished, "--out", "no/such/folder"), words, status=1)


def test_a_saved_simulation_is_shown_like_a_run(offbeat):
    clients = [(torch.randn(20, 3), torch.randint(0, 2, (20,))) for _ in range(2)]
    result = simulate(torch.nn.Linear(3, 2), clients, "fedbuff", until="600s")
    result.save("saved")
    told = offbeat("show", "saved")
    assert told.status == 0
    assert told.out.splitlines()[0] == "saved"
    assert "fedbuff" in told.out
    numbers = json.loads(offbeat("show", "saved", "--json").out)
    assert (numbers["updates"], numbers["experiment"]["strategy"]["name"]) == (result.summary.updates, "fedbuff")
    Path("saved/simulation.json").write_text("[]")
    damaged = offbeat("show", "saved")
    assert damaged.status == 1
    assert messages.DAMAGED_SIMULATION in damaged.err
