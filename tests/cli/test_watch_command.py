"""offbeat watch: how a run goes that another process computes."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
from command_line import quickstart, start, unchanged
from damaged_runs import CHANGES

from cli import messages
from offbeat.experiment import comparison
from offbeat.experiment.run import run_lock
from offbeat.experiment.run.execution import Run, execute_run
from offbeat.results.run_follower import RunFollower
from waiting import MAX_WAIT_SECONDS, wait_until


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr("offbeat.cli.watch.IDLE_SECONDS", 0.0)


def test_a_finished_run_is_told_in_a_line_and_that_is_all(offbeat, whole):
    with unchanged(whole):
        given = offbeat("watch", whole)
    assert (given.status, given.err) == (0, "")
    assert re.fullmatch(messages.FINISHED, given.out)


def test_of_a_run_that_nobody_computes_it_says_so_and_how_to_go_on(offbeat, stopped):
    given = offbeat("watch", stopped)
    assert given.status == 1
    assert given.err == f"offbeat: {messages.NO_PROCESS.format('stopped', 'run', 'stopped')}\n"
    assert re.match(r"\d+%: not running, \d+ s of 400s, \d+ updates, acc", given.out)


def test_of_a_comparison_that_was_never_begun_too(offbeat):
    comparison.create_comparison(Path("c"), {"fedavg": quickstart(*CHANGES)}, [0])
    given = offbeat("watch", "c")
    assert given.status == 1
    assert messages.NO_PROCESS.format("c", "compare", "c") in given.err
    assert given.out == "0%: not running, 0 of 1 runs, 0 updates\n"


def test_once_is_one_line_whatever_the_state(offbeat, stopped):
    given = offbeat("watch", stopped, "--once")
    assert given.status == 0
    assert given.out.count("\n") == 1
    assert "not running" in given.out


def test_as_json_each_line_is_an_object(offbeat, stopped, whole):
    told = json.loads(offbeat("watch", stopped, "--once", "--json").out)
    assert told["state"] == "stopped"
    assert 0 < told["share"] < 1
    assert {"now", "updates", "metrics", "staleness", "refused", "rejected", "lost", "rate", "left"} <= set(told)
    assert json.loads(offbeat("watch", whole, "--json").out)["reason"] == "seconds"


@pytest.mark.slow
def test_it_follows_a_comparison_to_its_end_without_touching_it(offbeat, monkeypatch):
    monkeypatch.setattr("offbeat.cli.watch.IDLE_SECONDS", MAX_WAIT_SECONDS)  # processes take seconds to begin
    options = ["--set", "clients=4", "--set", "model=linear", "--until", "4000s", "--seeds", "1", "--jobs", "1"]
    computing = start("compare", "quickstart", *options, "--strategies", "fedasync,fedavg", "--out", "c")
    try:
        wait_until(lambda: Path("c/compare.json").exists() or computing.poll() is not None)
        assert computing.poll() is None
        given = offbeat("watch", "c", "--every", "0.1")
        _, said = computing.communicate(timeout=MAX_WAIT_SECONDS)
    finally:
        computing.kill()
        computing.wait()
    assert (computing.returncode, said) == (0, "")
    assert (given.status, given.err) == (0, "")
    lines = given.out.splitlines()
    assert re.fullmatch(r"c finished: 2 of 2 runs", lines[-1])
    assert any(re.match(r"\d+%(, \d+ \w+ left)?: \d of 2 runs, .*fedasync-seed0 \d+%", line) for line in lines)


@pytest.mark.slow
def test_a_run_that_is_killed_while_it_is_watched_is_said_to_be_left(offbeat):
    computing = start("run", "quickstart", "--until", "100000s", "--out", "x")
    try:
        wait_until(lambda: Path("x/run.sqlite").exists() or computing.poll() is not None)
        follower = RunFollower(Run(Path("x")))
        wait_until(lambda: follower.read_progress().state == "going on" or computing.poll() is not None)
        assert computing.poll() is None
        computing.send_signal(signal.SIGKILL)
        computing.communicate(timeout=MAX_WAIT_SECONDS)
    finally:
        computing.kill()
    assert offbeat("watch", "x").status == 1


def test_looks_add_up_also_when_a_resume_has_cut_the_trace_back(killed, whole):
    run = Run(killed)
    follower = RunFollower(run)
    assert follower.read_progress().state == "stopped"
    execute_run(run)
    assert follower.read_progress() == RunFollower(run).read_progress() == RunFollower(Run(whole)).read_progress()


def test_who_looks_at_a_lock_keeps_nobody_out(stopped):
    assert not run_lock.is_locked(stopped)
    with run_lock.exclusive_lock(stopped):
        assert run_lock.is_locked(stopped)
    assert not run_lock.is_locked(stopped)
    assert not run_lock.is_locked(Path("nowhere"))
