"""docs/how-to/following.md: every command on it, in its order and in one empty folder."""

from __future__ import annotations

import json
import re
import shlex
import signal
import urllib.request
from pathlib import Path

import pytest
from command_line import start

from offbeat.results.tracking.trackers import TRACKERS
from test_readme import blocks, commands
from waiting import MAX_WAIT_SECONDS

pytestmark = pytest.mark.docs

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "following.md"
BLOCKS = blocks(PAGE.read_text(encoding="utf-8"))


def test_its_commands_print_what_it_shows(offbeat):
    ran = 0
    for block in BLOCKS:
        if block.info != "console":
            continue
        for command in commands(block):
            told = offbeat(*shlex.split(command)[1:])
            assert (told.status, told.err) == (0, ""), f"line {block.line}: {command}"
            ran += 1
        shown = block.body.splitlines()[-1]
        if shown.startswith("{"):
            assert list(json.loads(told.out))[:4] == ["state", "now", "share", "updates"]
        else:
            assert re.sub(r"[\d.]+", "#", told.out.strip()) == re.sub(r"[\d.]+", "#", shown)
    assert ran == 3


@pytest.mark.track
def test_its_trackers_are_told(offbeat):
    (block,) = [block for block in BLOCKS if block.info == "console track"]
    for command in commands(block):
        assert offbeat(*shlex.split(command)[1:]).status == 0, command
    assert list(Path("runs/told/tensorboard").glob("events*"))
    assert list(Path("logs/both/fedavg-seed0").glob("events*"))
    assert Path("tracked/mlflow.db").is_file()


def test_it_names_every_tracker():
    assert set(re.findall(r"^\| `(\w+):", PAGE.read_text(), re.MULTILINE)) == set(TRACKERS)


def test_its_dashboard_answers_until_ctrl_c():
    (command,) = [command for block in BLOCKS if "no-run" in block.info for command in commands(block)]
    Path("runs").mkdir()
    serving = start(*shlex.split(command)[1:], "--port", "0")
    try:
        line = serving.stdout.readline()
        address = line.split()[0]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/ shows runs; Ctrl-C ends it\n", line)
        with urllib.request.urlopen(address, timeout=MAX_WAIT_SECONDS) as answer:
            assert b"offbeat run quickstart" in answer.read()
        serving.send_signal(signal.SIGINT)
        out, err = serving.communicate(timeout=MAX_WAIT_SECONDS)
    finally:
        serving.kill()
        serving.wait()
    assert (serving.returncode, out, err) == (0, "", "ended\n")


def test_what_a_strategy_notes_is_shown(offbeat):
    few = ["--set", "clients=4", "--set", "model=linear", "--until", "60s"]
    given = offbeat("run", "quickstart", *few, "--set", "strategy=fedpsa", "--out", "x")
    assert re.search(r"kappa, mean of notes\s+-?\d", given.out)
    assert offbeat("show", "x", "--figure", "x.html").status == 0
    assert '"name":"note/kappa"' in Path("x.html").read_text()
    assert "kappa" in json.loads(offbeat("show", "x", "--json").out)["notes"]
