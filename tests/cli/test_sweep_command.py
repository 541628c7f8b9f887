"""offbeat sweep: a grid of settings, stopped and finished as a comparison is, one table, one picture."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from command_line import TINY, refused, start, unchanged

from cli import messages
from offbeat.core.strategies.fedasync import FedAsync
from offbeat.core.strategies.fedbuff import FedBuff
from offbeat.experiment import comparison as comparing
from offbeat.experiment.comparison import Comparison
from offbeat.experiment.run import execution as runs
from offbeat.experiment.run.execution import Run
from waiting import MAX_WAIT_SECONDS, wait_until

# a job takes ten seconds wherever it is
EVEN = [*TINY, "--until", "35s", "--set", "delays=constant(mean=10,unit=job)"]
GRID = ["--strategies", "fedasync,fedbuff", "--over", "strategy.k=1,3", "--over", "clients=3,4"]


@pytest.fixture
def swept(offbeat, sequential_runs):
    told = offbeat("sweep", "quickstart", *EVEN, *GRID, "--seeds", 2, "--out", "x")
    assert told.status == 0, told
    return told


def test_a_file_holds_what_is_printed(offbeat, swept):
    for name, form in (("x.json", "json"), ("x.txt", "text")):
        assert offbeat("show", "x", "--out", name).status == 0
        printed = offbeat("show", "x", "--format", form).out
        assert Path(name).read_text() == printed.replace("figure: x/sensitivity.png\n", "")


def test_the_table_tells_what_the_runs_are(offbeat, swept):
    """Numbers by hand: jobs end after 10, 20 and 30 of 35 s, so three updates a client; FedAsync makes a version of
    each, FedBuff of every third, what is left over is not used: 9 // 3 and 12 // 3.
    """
    assert swept.err.startswith("fedasync has no k: ")
    assert swept.err.endswith("\n6 combinations, 12 runs: x\n")
    heading, *lines, note, figure = swept.out.splitlines()
    assert note.startswith("> t (k of n): ")
    assert heading.split() == ["strategy", "strategy.k", "clients", "final", "acc", "time", "to", "acc=0.9"]
    methods = [("fedasync", "–"), ("fedbuff", "1"), ("fedbuff", "3")]
    assert [line.split()[:3] for line in lines] == [[*method, clients] for method in methods for clients in "34"]
    assert figure == "figure: x/sensitivity.png"
    told = json.loads(offbeat("show", "x", "--json").out, parse_constant=pytest.fail)
    counts = [(row["updates"], row["versions"]) for row in told["rows"]]
    assert counts == [(9, 9), (12, 12), (9, 9), (12, 12), (9, 3), (12, 4)]
    assert told["over"] == {"strategy.k": ["1", "3"], "clients": ["3", "4"]}
    assert told["rows"][2]["settings"] == {"strategy.k": "1", "clients": "3"}
    # mean and sample deviation of two seeds: (a + b) / 2 and |a - b| / √2
    a, b = (Run(Path(f"x/fedbuff-k-3-clients-4-seed{seed}")).summary().metrics["acc"] for seed in (0, 1))
    assert told["rows"][5]["final"] == (a + b) / 2
    assert told["rows"][5]["spread"] == pytest.approx(abs(a - b) / 2**0.5)
    assert f"{(a + b) / 2:.3f} ± {abs(a - b) / 2**0.5:.3f}" in lines[5]


def test_a_combination_is_the_run_it_would_be_alone(offbeat, swept):
    given = ["--set", "clients=4", "--set", "strategy=fedbuff(k=3)", "--seed", 1]
    offbeat("run", "quickstart", *EVEN, *given, "--out", "alone")
    assert Run(Path("alone")).digest() == Run(Path("x/fedbuff-k-3-clients-4-seed1")).digest()


def test_one_that_was_stopped_is_shown_and_finished(offbeat, swept, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(comparing, "execute_comparison", lambda *_: False)
        told = offbeat("sweep", "quickstart", *EVEN, *GRID, "--seeds", 2, "--out", "y")
    assert told.status == 130
    assert told.err.endswith(messages.STOPPED.format("sweep", "y"))
    runs.execute_run(Run(Path("y/fedasync-clients-3-seed0")))
    runs.execute_run(Run(Path("y/fedasync-clients-3-seed1")), lambda status: True)
    with unchanged(Path("y")):
        half = offbeat("show", "y")
    assert half.status == 0
    assert half.out.splitlines()[1].endswith("1 of 2")
    assert half.out.splitlines()[2].endswith("0 of 2")
    assert half.err == messages.UNFINISHED_SWEEP
    assert json.loads(offbeat("show", "y", "--json").out)["rows"][0]["done"] == 1

    whole = offbeat("sweep", "--resume", "y")
    assert (whole.status, whole.out) == (0, swept.out.replace("x/", "y/"))
    assert offbeat("sweep", "--resume", "y").out == whole.out  # nothing left to do
    for entry in Comparison(Path("y")).layout():
        assert Run(Path("y") / entry["folder"]).digest() == Run(Path("x") / entry["folder"]).digest()


@pytest.mark.slow
def test_one_that_was_killed_is_finished(offbeat, swept):
    """A process of its own, killed when the first of its runs is done."""
    arguments = ["--seeds", 2, "--jobs", 1, "--out", "z"]
    process = start("sweep", "quickstart", *EVEN, *GRID, *arguments, start_new_session=True)
    try:
        wait_until(lambda: list(Path("z").glob("*/model.safetensors")))
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=MAX_WAIT_SECONDS)
    assert len(list(Path("z").glob("*/model.safetensors"))) < 12
    assert offbeat("sweep", "--resume", "z").out == swept.out.replace("x/", "z/")


def test_a_file_brings_its_methods_and_a_preset_those_with_the_setting(offbeat, monkeypatch):
    monkeypatch.setattr(comparing, "execute_comparison", lambda *_: False)
    Path("study.yaml").write_text("clients: 4\nmodel: linear\nmethods: {small: fedbuff(k=2), slow: fedasync}\n")

    def strategies(folder):
        made = Comparison(Path(folder))
        return {name: made.runs(name)[0].experiment().strategy for name in made.strategies()}

    offbeat("sweep", "study.yaml", "--over", "strategy.lr=0.5,1", "--seeds", 1, "--out", "a")
    assert strategies("a") == {"small(lr=0.5)": FedBuff(k=2, lr=0.5), "small(lr=1)": FedBuff(k=2)}
    offbeat("sweep", "study.yaml", "--over", "training.lr=0.5,1", "--seeds", 1, "--out", "b")
    both = [f"{method} training.lr={lr}" for method in ("small", "slow") for lr in (0.5, 1)]
    assert list(strategies("b")) == both
    offbeat("sweep", "quickstart", *TINY, "--over", "strategy.alpha=0.3,0.6", "--seeds", 1, "--out", "c")
    assert strategies("c")["fedasync(alpha=0.3)"] == FedAsync(alpha=0.3)
    assert {name.split("(")[0] for name in strategies("c")} == {"fedasync", "fedcompass"}


def test_misfits_are_said_once_a_method(offbeat, monkeypatch):
    monkeypatch.setattr(comparing, "execute_comparison", lambda *_: False)
    given = ["--strategies", "fedbuff", "--over", "training.lr=0.1,0.2,0.3", "--seeds", 2]
    told = offbeat("sweep", "quickstart", *TINY, *given, "--out", "x")
    assert told.err.count(f"warning: fedbuff: {messages.BUFFER_TOO_LARGE}") == 1


def test_a_sweep_is_resumed_as_a_sweep_and_not_overwritten(offbeat, monkeypatch):
    monkeypatch.setattr(comparing, "execute_comparison", lambda *_: False)
    offbeat("sweep", "quickstart", *TINY, "--over", "clients=2,4", "--strategies", "fedavg", "--seeds", 1, "--out", "x")
    offbeat("compare", "quickstart", *TINY, "--strategies", "fedavg", "--seeds", 1, "--out", "y")
    refused(offbeat("sweep", "--resume", "y"), *messages.IS_COMPARISON)
    refused(offbeat("show", "x", "--reference", "fedavg clients=2"), messages.IS_SWEEP)
    again = ["--over", "clients=2", "--strategies", "fedavg", "--out", "x"]
    refused(offbeat("sweep", "quickstart", *TINY, *again), *messages.HOLDS_SWEEP)
