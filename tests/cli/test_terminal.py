"""What a terminal shows, and how soon."""

from __future__ import annotations

import os
import pty
import re
import resource
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import TINY

from offbeat.cli.progress_bar import fit_parts, run_progress, runs_progress
from offbeat.cli.terminal import print_table
from offbeat.engine.progress import Status
from offbeat.workers.wrappers import Work
from waiting import MAX_WAIT_SECONDS

CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@contextmanager
def terminal(monkeypatch, *streams: str, columns: int = 80) -> Iterator[list[str]]:
    """These streams are a terminal; what was written to it stands in the list afterwards."""
    master, slave = pty.openpty()
    chunks: list[bytes] = []

    def read() -> None:
        while True:
            try:
                data = os.read(master, 65536)
            except OSError:
                return
            if not data:
                return
            chunks.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    shown: list[str] = []
    with monkeypatch.context() as patch, open(slave, "w") as screen:
        patch.setenv("TERM", "xterm-256color")
        patch.setenv("COLUMNS", str(columns))  # the size is asked of the real standard streams, which are not ours
        for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
            patch.delenv(name, raising=False)
        for stream in streams:
            patch.setattr(sys, stream, screen)
        yield shown
    reader.join()
    os.close(master)
    shown.append(CODES.sub("", b"".join(chunks).decode()))


@pytest.mark.parametrize("worker", ["inline", "processes:2"])  # forks train while a thread draws the bar
def test_a_terminal_gets_a_bar_with_time_updates_metrics_and_staleness(offbeat, monkeypatch, worker):
    with terminal(monkeypatch, "stderr", columns=140) as shown:
        options = ["--until", "3000s", "--worker", worker, "--out", "x"]
        assert offbeat("run", "quickstart", *TINY, *options).status == 0
    text = shown[0]
    assert re.search(r"\d+ s of 3000s, \d+ updates \(\d+/s\), acc 0\.\d+, loss \d\.\d+, staleness \d+\.\d", text)


STATUS = Status(1200.0, 0.4, 99, 1351, 8, 3.25, {"loss": 0.123, "acc": 0.934})


@pytest.mark.parametrize("columns", [80, 60])
def test_a_narrow_bar_keeps_its_time_left_and_cuts_no_number(monkeypatch, columns):
    with terminal(monkeypatch, "stderr", columns=columns) as shown, run_progress("3000s,5000updates,acc=0.99") as watch:
        watch(STATUS)
    last = shown[0].split("\r")[-1] if "40%" in shown[0].split("\r")[-1] else shown[0]
    line = next(line for line in last.splitlines() if "40%" in line)
    assert len(line) <= columns
    assert re.search(r"40% +(-:--:--|\d+:\d\d:\d\d)\s*$", line)
    assert "…" not in line
    assert "1200 s of 3000s,5000updates,acc=0.99" in line


@pytest.mark.parametrize("columns", [80, 60])
def test_a_narrow_bar_over_many_runs_keeps_its_time_left(monkeypatch, columns):
    names = [f"a_method_with_a_long_name(k={i})-seed{i}" for i in range(8)]
    with terminal(monkeypatch, "stderr", columns=columns) as shown, runs_progress(names) as watch:
        watch([0.5] * 8, Work(steps=90_000, jobs=90, batches=90))
    line = next(line for line in shown[0].splitlines() if "50%" in line)
    assert len(line) <= columns
    assert re.search(r"50% +(-:--:--|\d+:\d\d:\d\d)\s*$", line)
    assert "0 of 8 runs" in line


def test_what_does_not_fit_is_left_out_as_a_whole():
    parts = ["1200 s of 3000s", "351 updates", "acc 0.934"]
    assert fit_parts(parts, 99) == "1200 s of 3000s, 351 updates, acc 0.934"
    assert fit_parts(parts, 38) == "1200 s of 3000s, 351 updates"  # the whole is 39 letters
    assert fit_parts(parts, 10) == "1200 s of…"


def test_without_a_terminal_a_short_run_says_nothing(offbeat):
    assert offbeat("run", "quickstart", *TINY, "--out", "x").err == ""


def test_without_a_terminal_a_run_is_told_of_in_a_line_now_and_then(monkeypatch, capsys):
    clock = iter([0.0, 0.0, 1.0, 59.0, 61.0, 62.0, 122.0])
    monkeypatch.setattr("offbeat.cli.progress_bar.monotonic", lambda: next(clock))
    with run_progress("3000s") as watch:  # the bar begins at 0
        for share in (0.2, 0.21, 0.4, 0.41, 0.8):
            watch(replace(STATUS, share=share))
    first, second = capsys.readouterr().err.splitlines()
    # of a resumed run 20 % were there at second 1: 20 points in 60 s, 60 are left; then 60 in 121 s, 20 are left
    assert first == "40%, 3 min left: 1200 s of 3000s, 1351 updates (0/s), acc 0.934, loss 0.123, staleness 3.2"
    assert second.startswith("80%, 40 s left: ")


def test_several_runs_share_one_bar(monkeypatch):
    with (
        terminal(monkeypatch, "stderr", columns=120) as shown,
        runs_progress(["fedavg-seed0", "fedasync-seed0"]) as watch,
    ):
        watch([1.0, 0.5], Work(steps=900, jobs=90, batches=12))
    assert re.search(r"1 of 2 runs, [\d,]+ steps/s, 7\.5 jobs per batch, now fedasync-seed0", shown[0])
    assert "75%" in shown[0]


def test_without_a_terminal_several_runs_are_told_of_in_a_line_now_and_then(monkeypatch, capsys):
    monkeypatch.setattr("offbeat.cli.progress_bar.LINE_SECONDS", 0.0)
    with runs_progress(["fedavg-seed0", "fedasync-seed0"]) as watch:
        watch([1.0, 0.5], Work(steps=900, jobs=90, batches=90))
    assert re.fullmatch(r"75%: 1 of 2 runs, [\d,]+ steps/s, now fedasync-seed0\n", capsys.readouterr().err)


def test_a_table_fits_eighty_columns_and_never_loses_a_digit(monkeypatch):
    rows = [
        ["strategy", "final acc", "time to acc=0.9", "speed-up", "staleness", "moved", "idle", "updates"],
        ["fedasync", "0.937 ± 0.018", "1140 s (1 of 2)", "12.34×", "19.2", "626.6 kB", "100%", "123456"],
    ]
    for columns in (84, 80, 40):
        with terminal(monkeypatch, "stdout", columns=columns) as shown:
            print_table(rows)
        assert all(f" {cell} " in " ".join(f" {shown[0]} ".splitlines()) for cell in rows[1])
        assert max(map(len, shown[0].splitlines())) <= columns


def test_prose_is_wrapped(monkeypatch):
    words = "a sentence that is much longer than the screen is wide and therefore goes on below"
    with terminal(monkeypatch, "stdout", columns=40) as shown:
        print_table([["name", "what it is"], ["thing", words]], left=True)
    assert max(map(len, shown[0].splitlines())) <= 40
    assert " ".join(shown[0].split()).endswith("goes on below")


HELP = """
import sys
sys.argv = ["offbeat", *sys.argv[1:]]
from offbeat.cli import main
try:
    main()
finally:
    heavy = {"torch", "numpy", "pydantic", "yaml", "sklearn", "matplotlib", "plotly", "scipy", "safetensors"}
    assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""


def test_help_and_version_import_nothing_heavy_and_answer_at_once():
    for arguments, word in ((["--help"], "compare"), (["run", "--help"], "--until"), (["--version"], "offbeat 0.")):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-c", HELP, *arguments], capture_output=True, text=True, timeout=MAX_WAIT_SECONDS
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert (done.returncode, done.stderr) == (0, "")
        assert word in done.stdout
        # computing time, not wall time: a test machine may be busy
        assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0  # torch alone takes more


def test_a_reader_that_goes_away_is_no_error():
    command = f"{shlex.quote(sys.executable)} -m offbeat list delays | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=MAX_WAIT_SECONDS, cwd=Path())
    assert "Traceback" not in done.stderr
    assert done.stdout == "n"
