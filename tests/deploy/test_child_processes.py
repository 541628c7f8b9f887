"""Processes that cannot outlive the one that started them."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from deploy import messages
from offbeat.core.errors import ConfigError
from offbeat.deploy import orphan_reaper
from offbeat.deploy.child_processes import ChildProcesses, last_lines
from offbeat.deploy.live_status import AppOptions, AppStatus
from offbeat.deploy.site_processes import SiteOptions, SiteProcesses
from waiting import MAX_WAIT_SECONDS

linux = pytest.mark.skipif(not os.path.isdir("/proc"), reason="needs /proc")
SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
# a child of a child, in a session of its own, that ignores what it can: as Flower's superexec starts apps
STUBBORN = [
    sys.executable,
    "-S",
    "-c",
    "import signal, subprocess, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    f"subprocess.Popen({SLEEP!r}, start_new_session=True)\n"  # who ignores a signal, its children do too
    "print('ready', flush=True)\ntime.sleep(600)",
]


def within(seconds, condition):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


@linux
def test_nobody_is_left_when_it_is_closed_not_even_who_ignores_it(tmp_path, monkeypatch):
    monkeypatch.setattr("offbeat.deploy.child_processes.TERMINATE_SECONDS", 0.3)
    with ChildProcesses(tmp_path) as children:
        children.start("polite", SLEEP)
        children.start("stubborn", STUBBORN)
        assert within(MAX_WAIT_SECONDS, lambda: len(orphan_reaper.marked_processes(children.mark)) == 3)
        assert within(MAX_WAIT_SECONDS, lambda: children.last_log_lines("stubborn") == "ready")
    assert orphan_reaper.marked_processes(children.mark) == []


@linux
def test_nobody_is_left_when_the_parent_is_killed(tmp_path):
    parent = (
        "import sys, time\nfrom pathlib import Path\nfrom offbeat.deploy.child_processes import ChildProcesses\n"
        f"children = ChildProcesses(Path({str(tmp_path)!r}))\nchildren.start('stubborn', {STUBBORN!r})\n"
        "print(children.mark, flush=True)\ntime.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    mark = process.stdout.readline().strip()
    assert within(MAX_WAIT_SECONDS, lambda: len(orphan_reaper.marked_processes(mark)) == 2)
    process.kill()
    process.wait()
    process.stdout.close()
    assert within(MAX_WAIT_SECONDS, lambda: not orphan_reaper.marked_processes(mark))


@linux
def test_a_guardian_that_was_killed_has_a_successor(tmp_path):
    with ChildProcesses(tmp_path) as children:
        before = children._reaper
        before.kill()
        before.wait()
        children.restart_reaper()
        assert children._reaper.poll() is None
        assert children._reaper.pid != before.pid


@linux
def test_marks_of_parents_add_up(tmp_path, monkeypatch):
    """A site that a server starts for trying out has children of its own: the server's guardian knows them too."""
    monkeypatch.setenv(orphan_reaper.MARK_VARIABLE, "above")
    with ChildProcesses(tmp_path) as children:
        assert children.environment()[orphan_reaper.MARK_VARIABLE] == f"above:{children.mark}"


def test_one_is_stopped_and_tells_its_last_words(tmp_path):
    with ChildProcesses(tmp_path) as children:
        children.start("one", [sys.executable, "-S", "-c", "print('first'); print('last')"])
        assert within(MAX_WAIT_SECONDS, lambda: not children.is_alive("one"))
        assert children.last_log_lines("one") == "last"
        assert children.last_log_lines("one", 2) == "first / last"
        children.start("two", SLEEP)
        assert children.is_alive("two")
        children.stop("two")
        assert not children.is_alive("two")
    assert last_lines(tmp_path / "nothing") == ""


def test_children_find_flowers_commands_and_are_quiet(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with ChildProcesses(tmp_path) as children:
        environment = children.environment()
        found = subprocess.run(["/bin/sh", "-c", "command -v flwr-clientapp"], env=environment, capture_output=True)
    assert found.stdout.decode().strip() == str(tmp_path / "bin" / "flwr-clientapp")
    assert environment["FLWR_HOME"] == str(tmp_path / "flwr")
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
    assert environment["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert oct((tmp_path / "bin" / "flwr-clientapp").stat().st_mode)[-3:] == "700"


def test_a_secret_is_new_every_time_and_its_owners_alone(tmp_path):
    with ChildProcesses(tmp_path) as children:
        first = children.new_secret().read_bytes()
        path = children.new_secret()
    assert path.read_bytes() != first
    assert oct(path.stat().st_mode)[-3:] == "600"


def test_a_site_runs_no_file_that_the_server_sent(tmp_path):
    app = tmp_path / "flwr" / "apps" / "theirs"
    app.mkdir(parents=True)
    (app / "evil.py").write_text("print('it ran')")
    own = tmp_path / "own.py"
    own.write_text("print('mine ran')")
    script = (
        "import sys\nfrom offbeat.deploy.flower_command import refuse_shipped_code\n"
        f"sys.addaudithook(refuse_shipped_code)\nsys.path[:0] = [{str(app)!r}, {str(tmp_path)!r}]\n"
        "import own\ntry:\n    import evil\nexcept RuntimeError as error:\n    print(error)"
    )
    environment = {**os.environ, "FLWR_HOME": str(tmp_path / "flwr")}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["mine ran", "the server sent code (evil.py): a site runs only its own code"], (
        done.stderr
    )


def test_what_a_server_and_its_app_tell_each_other_reads_back(tmp_path):
    assert AppStatus.read(tmp_path) is None
    for one in (AppStatus("failed", 7, "no room", expected=False), AppOptions("run", min_sites=3)):
        one.write(tmp_path)
        assert type(one).read(tmp_path) == one
    (tmp_path / "app_status.json").write_text("{half")
    assert AppStatus.read(tmp_path) is None


def test_a_refused_site_is_told_apart_by_its_status():
    from offbeat.deploy import site_processes, site_trainer
    from offbeat.deploy.live_status import TRAINING_SECONDS
    from offbeat.engine.virtual.virtual_engine import INTERRUPTED

    pytest.importorskip("flwr")
    from offbeat.core import jobs
    from offbeat.deploy import server_processes

    assert site_processes.REFUSED == site_trainer.REFUSED
    assert server_processes.INTERRUPTED == INTERRUPTED
    assert jobs.TRAINING_SECONDS == TRAINING_SECONDS


def test_two_sites_do_not_share_a_home(tmp_path):
    """They would be two nodes with one trainer, and take each other's messages."""
    member = SiteOptions("basel", "127.0.0.1:1", partition=0)
    first = SiteProcesses(member, tmp_path)
    try:
        with pytest.raises(ConfigError, match=messages.HOME_IN_USE):
            SiteProcesses(member, tmp_path)
    finally:
        first.close()
    SiteProcesses(member, tmp_path).close()


def test_keys_that_are_in_use_on_another_machine_are_named_as_such_after_a_while(tmp_path, monkeypatch):
    """A server holds a connection that was lost for a minute or two; one that it holds for longer is somebody's."""
    monkeypatch.setattr(SiteProcesses, "check", lambda self: None)
    joining = SiteProcesses(SiteOptions("basel", "127.0.0.1:1", partition=0), tmp_path)
    try:
        joining.node.deaths = 1
        assert "for a minute or two" in joining._explain_node_exit()
        joining.node.deaths = (
            8  # 1 + 2 + 4 + 8 + 16 + 30 + 30 = 91 seconds of waiting, and eight starts of five or more
        )
        assert (
            "the server has another connection from basel: is a second site using its keys?"
            in joining._explain_node_exit()
        )
    finally:
        joining.close()
