"""offbeat compare, when it or one of its processes is stopped or killed: it ends at once, and nothing is left behind.

Processes of their own, since signals and deaths are about processes: each test takes some seconds.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen

import pytest
from command_line import TINY, start

from cli import messages
from offbeat.experiment.run.execution import Run
from waiting import MAX_WAIT_SECONDS, wait_until

pytestmark = pytest.mark.slow
STOPPED = messages.STOPPED.format("compare", "x")
LONG = [*TINY, "--until", "100000s"]  # nobody is done with this before the test is


@contextmanager
def comparing(*arguments: object) -> Iterator[Popen[str]]:
    """In folder x, as a terminal starts it: a group of processes. At the end none of them is left."""
    process = start("compare", "quickstart", *arguments, "--out", "x", start_new_session=True)
    try:
        yield process
        wait_until(lambda: not members(process.pid))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def members(group: int) -> list[int]:
    """Who of the group lives, but for its leader."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue  # gone meanwhile
        if int(of) == group and state != "Z" and int(path.parent.name) != group:
            found.append(int(path.parent.name))
    return found


def workers(group: int) -> list[int]:
    found = []
    for pid in members(group):
        with suppress(OSError):  # gone meanwhile
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def told(process: Popen[str]) -> tuple[str, str]:
    """What it printed, without the lines of progress that come every minute: a busy machine may take several."""
    out, err = process.communicate(timeout=MAX_WAIT_SECONDS)
    progress = re.compile(r"(\d+%.*: )?\d+ of \d+ runs")
    return out, "".join(line for line in err.splitlines(keepends=True) if not progress.match(line))


def begun() -> set[str]:
    """Runs that wrote something."""
    return {path.parent.name for path in Path("x").glob("*/run.sqlite")}


def done() -> set[str]:
    return {path.parent.name for path in Path("x").glob("*/model.safetensors")}


def test_ctrl_c_stops_all_runs_and_resume_finishes_them(offbeat):
    """As a terminal does it: every process of the group gets the signal, here while all are in the middle of it."""
    longer = [*TINY, "--until", "3000s", "--set", "evaluate_every=100"]
    with comparing("--strategies", "fedavg,fedasync", "--seeds", 2, "--jobs", 2, *longer) as process:
        wait_until(begun)
        os.killpg(process.pid, signal.SIGINT)
        out, err = told(process)
    assert (process.returncode, out, err) == (130, "", STOPPED)
    assert offbeat("compare", "--resume", "x").status == 0
    for strategy, seed in (("fedavg", 0), ("fedavg", 1), ("fedasync", 0), ("fedasync", 1)):
        name = f"{strategy}-seed{seed}"
        offbeat("run", "quickstart", *longer, "--set", f"strategy={strategy}", "--seed", seed, "--out", name)
        assert Run(Path("x") / name).digest() == Run(Path(name)).digest()


def test_ctrl_c_while_the_processes_are_starting_is_quiet_too(offbeat):
    with comparing("--strategies", "fedavg,fedasync", "--seeds", 2, "--jobs", 2, *LONG) as process:
        wait_until(lambda: len(workers(process.pid)) == 2)  # they are importing torch now
        os.killpg(process.pid, signal.SIGINT)
        out, err = told(process)
    assert (process.returncode, out, err) == (130, "", STOPPED)


def test_a_process_that_dies_is_one_line_and_nothing_new_is_begun(offbeat):
    with comparing("--strategies", "fedavg", "--seeds", 4, "--jobs", 2, *LONG) as process:
        wait_until(lambda: len(begun()) == 2)
        os.kill(workers(process.pid)[0], signal.SIGKILL)
        out, err = told(process)
    assert (process.returncode, out, err.count("\n")) == (1, "", 1)
    assert all(words in err for words in messages.DIED)
    assert len(begun()) == 2
    assert list(Path("x").glob("*/checkpoint/*.json"))  # the other one stopped with a checkpoint


@pytest.mark.parametrize(
    ("whom", "number"),
    [
        pytest.param("all", signal.SIGTERM, marks=pytest.mark.long),
        ("parent", signal.SIGTERM),
        ("parent", signal.SIGKILL),
    ],
)
def test_it_ends_when_it_is_told_to_also_with_one_run_done(offbeat, whom, number):
    """FedAvg waits a lot and is done long before FedAsync, so that one process is without work."""
    with comparing("--strategies", "fedavg,fedasync", "--seeds", 1, "--jobs", 2, *LONG, "--until", "30000s") as process:
        wait_until(lambda: done() == {"fedavg-seed0"})
        (os.killpg if whom == "all" else os.kill)(process.pid, number)
        _, err = told(process)
    if number == signal.SIGTERM:
        assert (process.returncode, err) == (130, STOPPED)
        assert list(Path("x/fedasync-seed0/checkpoint").glob("*.json"))
    assert not Run(Path("x/fedasync-seed0")).complete
