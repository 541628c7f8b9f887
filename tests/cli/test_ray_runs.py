"""Runs on a Ray cluster of their own, from the command line and from scripts: stopped and killed, nobody is left
behind. Run by `make test-ray`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import quickstart, start
from process_tree import descendants, gone

from offbeat.experiment.run import execution as runs
from offbeat.experiment.run.execution import Run
from waiting import MAX_WAIT_SECONDS, wait_until

pytestmark = pytest.mark.ray

LONGER = ["--set", "clients=4", "--set", "model=mlp", "--until", "4000s"]


def is_actor(pid: int) -> bool:
    try:
        return b"ray::Actor" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the run that nobody stops."""
    experiment = quickstart("clients=4", "model=mlp", "until=4000s")
    run = runs.create_run(tmp_path_factory.mktemp("whole") / "run", experiment)
    runs.execute_run(run)
    return run.digest()


@pytest.mark.parametrize("how", ["Ctrl-C in a terminal", "a termination", "killed"])
def test_a_run_that_is_stopped_leaves_nobody_and_goes_on_with_any_worker(offbeat, whole, how):
    process = start(
        "run", "quickstart", *LONGER, "--worker", "ray", "--checkpoint-every", 0, "--out", "x", start_new_session=True
    )
    wait_until(lambda: any(map(is_actor, descendants(process.pid))) or process.poll() is not None)
    others = descendants(process.pid)
    assert any(map(is_actor, others))
    assert len(others) > 3  # and Ray's own
    if how == "Ctrl-C in a terminal":
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.SIGTERM if how == "a termination" else signal.SIGKILL)
    out, err = process.communicate(timeout=MAX_WAIT_SECONDS)
    assert out == ""
    assert process.returncode == (-signal.SIGKILL if how == "killed" else 130)
    if how != "killed":
        assert err.splitlines()[-1].startswith("stopped at ")
    wait_until(lambda: gone(others))
    assert offbeat("run", "--resume", "x", "--worker", "inline").status == 0
    assert Run(Path("x")).digest() == whole
    assert Run(Path("x")).summary().worker == "ray, then inline"


def test_what_a_script_defines_travels(tmp_path):
    sys.path.append(str(Path(__file__).parents[1] / "experiment"))
    from test_forked_training import SCRIPT

    path = tmp_path / "script.py"
    path.write_text(SCRIPT.replace("processes:2", "ray"))
    done = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, timeout=MAX_WAIT_SECONDS, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    first, second = done.stdout.splitlines()
    assert first == "this line is printed once"
    assert second.startswith("half a line, the same ")
    assert second.endswith(" ray")
