"""Ctrl-C, damage and full disks: nothing stored is lost, and what goes on ends as if nothing had happened."""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
from pathlib import Path

import pytest
from command_line import quickstart, refused, start, unchanged

from cli import messages
from offbeat.engine import trace
from offbeat.engine.trace import Trace
from offbeat.experiment.run import execution as runs
from offbeat.experiment.run.execution import Run
from offbeat.training.evaluation import Evaluator
from waiting import MAX_WAIT_SECONDS, wait_until

# ten evaluations, some forty updates, two tenths of a second
WORLD = ["--set", "clients=4", "--set", "model=linear", "--until", "600s"]
RESUME = "offbeat run --resume x"


@pytest.fixture(scope="module")
def digest(tmp_path_factory) -> str:
    """Of the run that nobody stopped."""
    experiment = quickstart("clients=4", "model=linear", "until=600s")
    whole = runs.create_run(tmp_path_factory.mktemp("whole") / "run", experiment)
    runs.execute_run(whole)
    return whole.digest()


def press_ctrl_c(monkeypatch, at: int) -> None:
    """At the n-th evaluation, once."""
    evaluate, calls = Evaluator.__call__, []

    def pressed(self, vector):
        calls.append(1)
        if len(calls) == at:
            signal.raise_signal(signal.SIGINT)
        return evaluate(self, vector)

    monkeypatch.setattr(Evaluator, "__call__", pressed)


@pytest.fixture
def stopped(offbeat, monkeypatch) -> Path:
    """A run stopped with Ctrl-C in the middle, with the last two of many checkpoints."""
    press_ctrl_c(monkeypatch, at=5)
    given = offbeat("run", "quickstart", *WORLD, "--checkpoint-every", 0, "--out", "stopped")
    assert given.status == 130
    assert given.out == ""
    assert given.err == "stopped at 240 s; continue with: offbeat run --resume stopped\n"
    return Path("stopped")


def resume(offbeat, folder: Path) -> str:
    given = offbeat("run", "--resume", folder)
    assert given.status == 0, given
    return Run(folder).digest()


def test_ctrl_c_leaves_a_run_that_goes_on_to_the_same_digest(offbeat, stopped, digest):
    assert not Run(stopped).complete
    assert resume(offbeat, stopped) == digest


def test_ctrl_c_before_the_first_event_or_a_second_one_still_says_how_to_go_on(offbeat, monkeypatch, digest):
    def pressed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("offbeat.experiment.run.execution.Trace", pressed)
        given = offbeat("run", "quickstart", *WORLD, "--out", "with blank")
    assert given.status == 130
    assert given.err == messages.STOPPED.format("run", "'with blank'")
    assert resume(offbeat, Path("with blank")) == digest


def test_a_run_that_ignores_ctrl_c_goes_on_ignoring_it(offbeat, monkeypatch, digest):
    press_ctrl_c(monkeypatch, at=5)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for what it starts in the background
    try:
        assert offbeat("run", "quickstart", *WORLD, "--out", "x").status == 0
    finally:
        signal.signal(signal.SIGINT, before)
    assert Run(Path("x")).digest() == digest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_real_process_stops_when_asked_and_keeps_others_out_while_it_runs(offbeat, number):
    longer = [*WORLD, "--until", "1500s"]
    offbeat("run", "quickstart", *longer, "--out", "whole")
    process = start("run", "quickstart", *longer, "--checkpoint-every", 0, "--out", "x")
    try:
        wait_until(lambda: list(Path("x/checkpoint").glob("*.json")))
        process.send_signal(signal.SIGSTOP)  # so that it is still at it when we look
        refused(offbeat("run", "--resume", "x"), messages.IN_USE, status=1)
        assert offbeat("show", "x").status == 0  # but reading is free
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        out, err = process.communicate(timeout=MAX_WAIT_SECONDS)
    finally:
        process.kill()
    assert process.returncode == 130
    assert out == ""
    assert err.startswith("stopped at ")
    assert err.endswith("offbeat run --resume x\n")
    assert resume(offbeat, Path("x")) == Run(Path("whole")).digest()


def checkpoints(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoint").glob("*.json"))


def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(offbeat, stopped, digest, caplog):
    older, newest = checkpoints(stopped)
    newest.write_bytes(newest.read_bytes()[:-100])
    assert resume(offbeat, stopped) == digest
    assert f"{newest} is damaged" in caplog.text
    assert str(older) not in caplog.text


def test_damaged_tensors_give_way_too(offbeat, stopped, digest):
    newest = sorted((stopped / "checkpoint").glob("*.safetensors"))[-1]
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes(data)
    assert resume(offbeat, stopped) == digest


def test_when_all_checkpoints_are_damaged_it_says_so_and_removes_nothing(offbeat, stopped):
    for path in checkpoints(stopped):
        path.write_text("scratched")
    with unchanged(stopped):
        words = (messages.NO_CHECKPOINT, "damaged", messages.START_OVER.format("stopped"))
        refused(offbeat("run", "--resume", stopped), *words, status=1)


def test_without_its_checkpoints_a_run_starts_over(offbeat, stopped, digest):
    for path in (stopped / "checkpoint").iterdir():
        path.unlink()
    assert resume(offbeat, stopped) == digest


def test_a_trace_that_is_gone_or_damaged_is_noticed(offbeat, stopped):
    trace = stopped / "run.sqlite"
    for rest in stopped.glob("run.sqlite?*"):
        rest.unlink()
    trace.write_bytes(b"this is not a database, and it is longer than a page header" * 100)
    for command in ("run", "--resume"), ("show",):
        refused(offbeat(*command, stopped), *messages.NO_DATABASE, status=1)
    trace.unlink()
    refused(offbeat("run", "--resume", stopped), messages.MISSING.format("stopped/run.sqlite"), status=1)


def test_a_damaged_experiment_file_is_noticed(offbeat, stopped):
    (stopped / "experiment.yaml").write_bytes(b"\xff\xfe")
    refused(offbeat("run", "--resume", stopped), messages.NO_TEXT)


def test_a_disk_that_fills_up_while_checkpointing_loses_nothing(offbeat, monkeypatch, digest):
    calls = []

    def sync(handle):
        calls.append(1)
        if len(calls) > 40:  # the folder takes six, a checkpoint two to four
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", sync)
        given = offbeat("run", "quickstart", *WORLD, "--checkpoint-every", 0, "--out", "x")
    refused(given, messages.CANNOT_WRITE.format("x/checkpoint/"), messages.NO_SPACE, RESUME, status=1)
    assert len(checkpoints(Path("x"))) in (2, 3)  # the one that was being written may be there already
    assert not list(Path("x/checkpoint").glob("*.tmp"))
    assert resume(offbeat, Path("x")) == digest


def test_a_disk_that_fills_up_under_the_trace_loses_nothing(offbeat, monkeypatch, digest):
    insert, calls = trace.insert_rows, []

    def cramped(db, table, rows):
        calls.append(1)
        # four tables a flush, a flush a checkpoint: in the middle of the run, and of a transaction
        if len(calls) > 100:
            raise sqlite3.OperationalError("database or disk is full")
        insert(db, table, rows)

    with monkeypatch.context() as patch:
        patch.setattr(trace, "insert_rows", cramped)
        given = offbeat("run", "quickstart", *WORLD, "--checkpoint-every", 0, "--out", "x")
    refused(given, "x/run.sqlite", messages.DISK_FULL, RESUME, status=1)
    assert len(checkpoints(Path("x"))) == 2
    assert resume(offbeat, Path("x")) == digest


def test_a_disk_that_fills_up_at_the_very_end_loses_nothing(offbeat, monkeypatch, digest):
    def full(*_):
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(Trace, "set_facts", full)
        refused(offbeat("run", "quickstart", *WORLD, "--out", "x"), messages.DISK_FULL, RESUME, status=1)
    assert not Run(Path("x")).complete
    assert resume(offbeat, Path("x")) == digest


def test_a_disk_that_is_full_from_the_start_leaves_no_folder(offbeat, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    result = offbeat("run", "quickstart", *WORLD, "--out", "x")
    refused(result, messages.CANNOT_CREATE.format("x"), messages.NO_SPACE, status=1)
    assert not Path("x").exists()
