"""`offbeat which` on worlds whose answer is known."""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path

import pytest
import yaml
from command_line import refused

from cli import messages
from offbeat.deploy.replay_scenario import SITE_FILE_MODEL
from offbeat.experiment.spec import experiment_files
from offbeat.metrics.trace_summary import SERVED
from offbeat.results import method_choice

pytestmark = pytest.mark.usefixtures("sequential_runs", "without_pictures")

# the slowest of four takes a hundred times as long, and there is time for one round with it
STRAGGLER = """
name: straggler
data: digits
model: linear
clients: 4
partition: iid
delays: {name: per_client, means: [1, 1, 1, 100], jitter: 0}
training: {lr: 0.05, batch: 32, steps: 5}
until: 120s
evaluate_every: 30
"""


@pytest.fixture
def without_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take longer than these worlds; what is about them says so."""
    if "pictures" not in request.fixturenames:
        monkeypatch.setattr("offbeat.results.report.write_figure_and_page", lambda *_: None)


@pytest.fixture
def pictures() -> None:
    """Draw them."""


@pytest.fixture
def straggler() -> str:
    Path("straggler.yaml").write_text(STRAGGLER)
    return "straggler.yaml"


def told(offbeat, *arguments):
    made = offbeat("which", *arguments, "--json")
    assert made.status == 0, made.err
    return json.loads(made.out)


def test_fedavg_loses_where_one_client_is_a_hundred_times_slower(offbeat, straggler):
    """In 120 s FedAvg has one version, of one round; FedAsync has about 360 of the three that are quick."""
    found = told(offbeat, straggler, "--methods", "fedavg,fedasync", "--seeds", "3", "--until", "120s", "--out", "w")
    assert found["recommended"] == "fedasync"
    assert found["tied"] == ["fedasync"]
    loser = next(row for row in found["methods"] if row["method"] == "fedavg")
    assert loser["verdict"] == "worse"
    assert loser["difference"]["high"] < 0
    assert found["stand_in"] is None
    shown = offbeat("show", "w")  # it is a comparison like any other
    assert shown.status == 0
    assert "fedasync" in shown.out


def test_local_loses_on_data_that_is_alike(offbeat):
    """Six clients with fourteen digits each, drawn alike: alone each knows a sixth of what they know together."""
    Path("alike.yaml").write_text(
        "data: digits\nmodel: linear\nclients: 6\npartition: {name: draws, size: 14}\n"
        "delays: {name: constant, mean: 1, jitter: 0}\ntraining: {lr: 0.05, batch: 14, steps: 5}\nuntil: 30s\n"
        "evaluate_every: 10\n"
    )
    found = told(offbeat, "alike.yaml", "--methods", "local,fedavg", "--seeds", "3", "--until", "30s")
    assert (found["recommended"], found["tied"]) == ("fedavg", ["fedavg"])


def test_the_same_method_twice_is_a_tie(offbeat, straggler):
    """No update is ever older than a thousand versions here, so the two do the same."""
    methods = "fedbuff(k=1),fedbuff(k=1,max_staleness=1000)"
    made = offbeat("which", straggler, "--methods", methods, "--seeds", "2", "--until", "30s", "--out", "w")
    assert made.status == 0, made.err
    assert all(words in made.out for words in messages.TIE)


def test_a_method_and_what_it_reduces_to_are_a_tie(offbeat, straggler):
    """FedProx without its pull is FedAvg."""
    found = told(offbeat, straggler, "--methods", "fedprox(mu=0),fedavg", "--seeds", "2", "--until", "210s")
    assert sorted(found["tied"]) == ["fedavg", "fedprox(mu=0)"]
    assert found["recommended"] == "fedavg"


def test_a_method_whose_updates_are_refused_is_not_recommended(offbeat, straggler):
    options = ["--methods", "fedasync", "--seeds", "1", "--until", "20s", "--set", "max_norm=1e-9"]
    made = offbeat("which", straggler, *options)
    assert made.status == 0
    assert all(words in made.out for words in messages.NO_METHOD)


def test_an_earlier_tournament_is_read_again(offbeat, straggler):
    asked = ("--methods", "fedavg,fedasync", "--seeds", "2", "--until", "30s")
    first = told(offbeat, straggler, *asked, "--out", "w")
    assert told(offbeat, "w") == first
    refused(offbeat("which", "w", "--seeds", "5"), messages.EXISTING_COMPARISON)


def test_sites_can_be_described_in_four_numbers(offbeat, pictures):
    asked = ("--sites", "3", "--sizes", "2", "--speeds", "5", "--away", "0.2")
    made = offbeat("which", *asked, "--methods", "fedasync,fedavg", "--seeds", "1", "--until", "100s", "--out", "w")
    assert made.status == 0, made.err
    assert made.out.startswith(messages.STAND_IN)
    assert Path("w/report.html").is_file()
    written = Path("w/fedavg-seed0/experiment.yaml").read_text()
    assert "churn" in written
    assert "clients: 3" in written


def test_four_questions_are_asked_on_a_terminal(offbeat, monkeypatch):
    answers = iter([3, 2.0, 5.0, 0.0])
    asked = []
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("typer.prompt", lambda text, *_, **__: asked.append(text) or next(answers))
    made = offbeat("which", "--methods", "fedasync", "--seeds", "1", "--until", "50s")
    assert made.status == 0, made.err
    assert len(asked) == 4
    assert messages.SAME_WITHOUT_QUESTIONS in made.err


def test_a_world_that_takes_long_is_tried_and_cut_to_the_time_there_is(offbeat, straggler, monkeypatch):
    monkeypatch.setattr("offbeat.results.method_choice.estimate_run_seconds", lambda experiment: 1000.0)
    made = offbeat("which", straggler, "--methods", "fedavg,fedasync", "--seeds", "1", "--budget", "100", "--out", "w")
    assert all(words in made.err for words in messages.SHORTENED)


def test_a_trial_tells_how_long_a_run_takes(straggler):
    assert 0 < method_choice.estimate_run_seconds(experiment_files.read_experiment(Path(straggler)), patience=0.2) < 60


def test_sites_like_those_of_a_simulation_are_its_own(offbeat, straggler):
    offbeat("run", straggler, "--until", "20s", "--out", "r")
    found = told(offbeat, "--from", "r", "--methods", "fedasync", "--seeds", "1", "--until", "10s", "--out", "w")
    assert found["recommended"] == "fedasync"
    assert yaml.safe_load(Path("w/fedasync-seed0/experiment.yaml").read_text())["delays"]["means"] == [1, 1, 1, 100]


def test_sites_like_those_of_a_live_run_are_as_slow_and_as_often_away(offbeat, straggler):
    """A simulation passes for a live run whose data lies with its sites; client 0 was gone from 5 s to 9 s."""
    offbeat("run", straggler, "--set", "strategy=fedasync", "--until", "20s", "--out", "r")
    with sqlite3.connect("r/run.sqlite") as db:
        db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (SERVED, SITE_FILE_MODEL))
        db.execute("DELETE FROM trace WHERE client = 0 AND now > 5 AND now < 9")
        last = db.execute("SELECT MAX(seq) FROM trace").fetchone()[0]
        for number, (now, kind) in enumerate([(5.0, "left"), (9.0, "back")]):
            row = (last + 1 + number, now, kind)
            db.execute("INSERT INTO trace (seq, now, kind, client, version) VALUES (?, ?, ?, 0, 0)", row)
    made = offbeat("which", "--from", "r", "--methods", "fedasync", "--seeds", "1", "--until", "15s", "--out", "w")
    assert made.status == 0, made.err
    assert made.out.startswith("stand-in data")
    written = Path("w/fedasync-seed0/experiment.yaml").read_text()
    assert "replayed" in written
    assert "clients: 3" in written  # the fourth never answered
    rows = Path("w/availability.csv").read_text().splitlines()
    assert rows[0] == "client,t,available"
    assert {"0,0.0,1", "0,5.0,0", "0,9.0,1"} <= set(rows)
