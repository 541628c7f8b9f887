"""offbeat compare and run with settings in a word: fedbuff(k=2), and files with `methods:`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import TINY, quickstart, refused

from cli import messages
from offbeat.core.parts.staleness import Polynomial
from offbeat.core.strategies.fedasync import FedAsync
from offbeat.core.strategies.fedbuff import FedBuff
from offbeat.experiment import comparison as comparing
from offbeat.experiment.comparison import Comparison
from offbeat.experiment.spec import experiment_files
from offbeat.presets import load

MINUTE = [*TINY, "--until", "60s", "--seeds", 1]
STUDY = """
model: linear
clients: 4
until: 60s
methods:
  two: fedbuff(k=2)
  four: {name: fedbuff, k: 4}
  fedasync: fedasync(alpha=0.4)
"""


@pytest.fixture
def only_made(monkeypatch):
    monkeypatch.setattr(comparing, "execute_comparison", lambda *_: False)


def strategies(folder: str) -> dict[str, object]:
    made = Comparison(Path(folder))
    return {name: made.runs(name)[0].experiment().strategy for name in made.strategies()}


def test_labels_stand_in_the_table_and_json_and_folders_are_plain(offbeat):
    words = "fedbuff(k=2),fedbuff(k=4, lr=0.5)"
    told = offbeat("compare", "quickstart", *MINUTE, "--strategies", words, "--jobs", 1, "--out", "x")
    assert [line.split("  ")[0] for line in told.out.splitlines()[1:3]] == ["fedbuff(k=2)", "fedbuff(k=4,lr=0.5)"]
    rows = json.loads(offbeat("show", "x", "--reference", "fedbuff(k=4,lr=0.5)", "--json").out)["rows"]
    assert [row["strategy"] for row in rows] == ["fedbuff(k=2)", "fedbuff(k=4,lr=0.5)"]
    assert rows[1]["relative_time"] in (1.0, None)
    assert {p.name for p in Path("x").iterdir() if p.is_dir()} == {"fedbuff-k-2-seed0", "fedbuff-k-4-lr-0.5-seed0"}
    assert json.loads(Path("x/compare.json").read_text())["reference"] == "fedbuff(k=2)"


def test_a_preset_s_settings_stay_but_for_those_that_are_given(offbeat, only_made):
    own = load("quickstart").methods
    words = "aso_fed,aso_fed(beta=0.5),fedasync(staleness=polynomial(a=1)),fedasync(staleness.a=2)"
    offbeat("compare", "quickstart", *MINUTE, "--strategies", words, "--out", "x")
    made = strategies("x")
    assert own["aso_fed"].lr == 0.02
    assert made["aso_fed"] == own["aso_fed"]
    assert (made["aso_fed(beta=0.5)"].lr, made["aso_fed(beta=0.5)"].beta) == (0.02, 0.5)
    assert made["fedasync(staleness=polynomial(a=1))"] == FedAsync(staleness=Polynomial(a=1))
    assert made["fedasync(staleness.a=2)"] == FedAsync(staleness=Polynomial(a=2))


def test_set_reads_the_same_words(offbeat):
    made = quickstart("strategy=fedbuff(k=3,staleness=polynomial(a=1))", "partition=dirichlet(alpha=0.7)")
    assert made.strategy == FedBuff(k=3, staleness=Polynomial(a=1))
    assert made.partition.alpha == 0.7


def test_the_same_method_twice_is_run_once_and_said(offbeat, only_made):
    told = offbeat("compare", "quickstart", *MINUTE, "--strategies", "fedbuff(k=5),fedbuff,fedavg,fedavg", "--out", "x")
    assert list(strategies("x")) == ["fedbuff(k=5)", "fedavg"]
    assert all(line in told.err for line in messages.RUN_ONCE)


def test_the_methods_of_a_file_are_compared_by_their_labels(offbeat, only_made):
    Path("study.yaml").write_text(STUDY)
    offbeat("compare", "study.yaml", "--seeds", 1, "--out", "x")
    assert strategies("x") == {"two": FedBuff(k=2), "four": FedBuff(k=4), "fedasync": FedAsync(alpha=0.4)}
    # by label, changed, and others with their defaults
    words = "two,two(lr=0.5),fedasync(rho=0.1),fedbuff"
    offbeat("compare", "study.yaml", "--seeds", 1, "--strategies", words, "--reference", "two(lr=0.5)", "--out", "y")
    assert strategies("y") == {
        "two": FedBuff(k=2),
        "two(lr=0.5)": FedBuff(k=2, lr=0.5),
        "fedasync(rho=0.1)": FedAsync(alpha=0.4, rho=0.1),
        "fedbuff": FedBuff(),
    }
    assert Comparison(Path("y")).checked(None) == "two(lr=0.5)"


def test_run_wants_one_of_them(offbeat):
    Path("study.yaml").write_text(STUDY)
    refused(offbeat("run", "study.yaml", "--out", "x"), *messages.SEVERAL_METHODS)
    assert not Path("x").exists()
    assert offbeat("run", "study.yaml", "--set", "strategy=four", "--out", "x").status == 0
    assert experiment_files.read_experiment(Path("x/experiment.yaml")).strategy == FedBuff(k=4)


def test_a_buffer_nobody_can_fill_is_warned_of_once_before_the_run(offbeat, only_made):
    line = messages.BUFFER_TOO_LARGE
    told = offbeat("run", "quickstart", *TINY, "--set", "strategy=fedbuff", "--out", "x")
    assert told.err.count(line) == 1
    assert told.err.startswith("warning: strategy.k")
    assert offbeat("run", "--resume", "x").err == messages.COMPLETE
    told = offbeat("compare", "quickstart", *MINUTE, "--seeds", 2, "--strategies", "fedavg,fedbuff", "--out", "y")
    assert told.err.count(f"warning: fedbuff: {line}") == 1
