"""Runs with the worker processes: stopped, killed and gone on with, by whoever; nobody is left behind."""

from __future__ import annotations

import os
import re
import signal
import sys
from multiprocessing import resource_tracker
from pathlib import Path

import pytest
from command_line import TINY, quickstart, refused, start
from process_tree import gone, running_processes

from cli import messages
from offbeat.experiment.run import execution as runs
from offbeat.experiment.run import run_lock
from offbeat.experiment.run.execution import Run
from offbeat.workers import registry
from waiting import MAX_WAIT_SECONDS, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes need Linux")

LONGER = ["--set", "clients=4", "--set", "model=mlp", "--until", "2000s"]
PROCESSES = ["--worker", "processes:2"]


def children(pid: int) -> set[int]:
    """But for Python's own that watches over what is shared: it stays as long as this process."""
    tracker = getattr(resource_tracker._resource_tracker, "_pid", None)
    return {child for child, parent in running_processes().items() if parent == pid and child != tracker}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the run that nobody stops."""
    experiment = quickstart("clients=4", "model=mlp", "until=2000s")
    run = runs.create_run(tmp_path_factory.mktemp("whole") / "run", experiment)
    runs.execute_run(run)
    return run.digest()


def begun(*options: object) -> tuple[object, set[int]]:
    """A run in the middle of it, and its processes. A group of its own, as a terminal's."""
    every = ["--checkpoint-every", 0, "--out", "x"]
    process = start("run", "quickstart", *LONGER, *PROCESSES, *every, *options, start_new_session=True)
    wait_until(lambda: list(Path("x/checkpoint").glob("*.json")) and len(children(process.pid)) == 2)
    return process, children(process.pid)


def test_a_run_and_a_comparison_are_the_same_with_processes(offbeat):
    before = children(os.getpid())  # of other tests
    for name, options in (("a", []), ("b", PROCESSES)):
        assert offbeat("run", "quickstart", *TINY, *options, "--out", name).status == 0
    assert Run(Path("b")).digest() == Run(Path("a")).digest()
    shown = offbeat("show", "b").out
    assert re.search(r"^worker +processes:2$", shown, re.MULTILINE)
    some = ["--strategies", "fedavg,fedbuff", "--seeds", 1]
    given = offbeat("compare", "quickstart", *TINY, *some, *PROCESSES, "--out", "c")
    assert given.status == 0, given
    for run in Path("c").glob("fed*"):  # two runs on two cores: each is trained in its own process
        assert Run(run).summary().worker == "inline"
        assert Run(run).worker() == registry.WorkerChoice("processes", 2)
    assert children(os.getpid()) <= before


@pytest.mark.parametrize("worker", [[], ["--worker", "inline"]])
def test_ctrl_c_in_a_terminal_leaves_a_checkpoint_and_nobody(offbeat, whole, worker):
    process, forks = begun()
    os.killpg(process.pid, signal.SIGINT)  # the terminal tells everybody
    out, err = process.communicate(timeout=MAX_WAIT_SECONDS)
    assert (process.returncode, out) == (130, "")
    assert err.startswith("stopped at ")
    assert err.count("\n") == 1
    wait_until(lambda: gone(forks))
    assert offbeat("run", "--resume", "x", *worker).status == 0
    assert Run(Path("x")).digest() == whole
    assert Run(Path("x")).summary().worker == ("processes:2, then inline" if worker else "processes:2")


def test_killed_it_leaves_nobody_and_can_be_gone_on_with_at_once(offbeat, whole):
    process, forks = begun()
    process.kill()
    process.wait()
    assert offbeat("run", "--resume", "x", "--worker", "inline").status == 0  # whatever its forks are still doing
    wait_until(lambda: gone(forks))
    process.communicate()
    assert Run(Path("x")).digest() == whole


def test_its_processes_may_be_killed(offbeat, whole):
    process, forks = begun()
    for pid in forks:
        os.kill(pid, signal.SIGKILL)
    _, err = process.communicate(timeout=MAX_WAIT_SECONDS)
    assert process.returncode == 0
    assert messages.REPLACED in err
    assert Run(Path("x")).digest() == whole


def test_a_run_begun_inline_goes_on_with_processes(offbeat, stopped, digest):
    """Three clients, softmax regression, stopped in the middle: see conftest."""
    assert offbeat("run", "--resume", stopped, *PROCESSES).status == 0
    assert Run(stopped).digest() == digest
    assert Run(stopped).summary().worker == "inline, then processes:2"


def test_a_job_that_ends_every_process_ends_the_run_with_a_line(offbeat, monkeypatch):
    parent, before = os.getpid(), children(os.getpid())

    def deadly(*_: object) -> None:
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr("offbeat.training.trainer.Trainer.make_plan", deadly)
        given = offbeat("run", "quickstart", *TINY, *PROCESSES, "--out", "x")
    refused(given, *messages.ENDED_PROCESSES, status=1)
    assert children(parent) <= before
    assert offbeat("run", "--resume", "x").status == 0


def test_forks_hold_no_lock(tmp_path):
    (hear, tell), (wait, end) = os.pipe(), os.pipe()
    with run_lock.exclusive_lock(tmp_path):
        pid = os.fork()
        if pid == 0:
            os.close(end)
            os.write(tell, b"here")
            os.read(wait, 1)  # until the parent is done
            os._exit(0)
        assert os.read(hear, 4) == b"here"
    with run_lock.exclusive_lock(tmp_path):
        pass
    os.close(end)
    os.waitpid(pid, 0)
    for number in (hear, tell, wait):
        os.close(number)
