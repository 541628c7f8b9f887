"""What a terminal shows, and how soon."""

from __future__ import annotations

import os
import pty
import re
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from command_line import TINY

from offbeat.cli.output import print_table, runs_progress
from offbeat.engines.workers.counted import Work
from patience import PATIENCE

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


def test_a_bar_is_drawn_by_a_thread_of_its_own_while_forks_train(offbeat, monkeypatch):
    with terminal(monkeypatch, "stderr", columns=140) as shown:
        given = offbeat("run", "quickstart", *TINY, "--until", "1500s", "--worker", "processes:2", "--out", "x")
        assert given.status == 0
    assert re.search(r"\d+ s of 1500s, \d+ updates \(\d+/s\) loss \d\.\d+ acc 0\.\d+", shown[0])


def test_a_terminal_gets_a_bar_with_time_updates_metrics_and_staleness(offbeat, monkeypatch):
    with terminal(monkeypatch, "stderr", columns=140) as shown:
        assert offbeat("run", "quickstart", *TINY, "--until", "3000s", "--out", "x").status == 0
    text = shown[0]
    assert re.search(r"\d+ s of 3000s, \d+ updates \(\d+/s\) loss \d\.\d+ acc 0\.\d+ staleness \d+\.\d", text)


def test_without_a_terminal_nothing_is_drawn(offbeat):
    assert offbeat("run", "quickstart", *TINY, "--out", "x").err == ""


def test_several_runs_share_one_bar(monkeypatch):
    with (
        terminal(monkeypatch, "stderr", columns=120) as shown,
        runs_progress(["fedavg-seed0", "fedasync-seed0"]) as watch,
    ):
        watch([1.0, 0.5], Work(steps=900, jobs=90, batches=12))
    assert re.search(r"1 of 2 runs, [\d,]+ steps/s, 7\.5 jobs a batch, now fedasync-seed0", shown[0])
    assert "75%" in shown[0]


def test_without_a_terminal_several_runs_are_told_of_in_a_line_now_and_then(monkeypatch, capsys):
    monkeypatch.setattr("offbeat.cli.output.EVERY", 0.0)
    with runs_progress(["fedavg-seed0", "fedasync-seed0"]) as watch:
        watch([1.0, 0.5], Work(steps=900, jobs=90, batches=90))
    assert re.fullmatch(r"1 of 2 runs, [\d,]+ steps/s, 75%\n", capsys.readouterr().err)


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
            [sys.executable, "-c", HELP, *arguments], capture_output=True, text=True, timeout=PATIENCE
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert (done.returncode, done.stderr) == (0, "")
        assert word in done.stdout
        # computing time, not wall time: a test machine may be busy
        assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0  # torch alone takes more


def test_a_reader_that_goes_away_is_no_error():
    command = f"{sys.executable} -m offbeat list delays | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=PATIENCE, cwd=Path())
    assert "Traceback" not in done.stderr
    assert done.stdout == "n"
