"""A live run at a glance, read off its folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from offbeat.cli.serve import describe_progress
from offbeat.deploy.live_status import AppOptions, AppStatus, RegisteredSites, overview
from offbeat.engine.trace import Trace


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Served by this process: three keys are registered, two sites came, one of them is here."""
    live = tmp_path / "live"
    live.mkdir()
    names = ("budapest", "cleveland", "zurich")
    AppOptions(str(tmp_path), min_sites=3).write(live)
    RegisteredSites({str(node): (name, "SHA256:x") for node, name in enumerate(names)}).write(live)
    AppStatus("running", os.getpid(), reachable=[1]).write(live)
    sites = [{"name": "zurich", "client": 0, "proof": ""}, {"name": "cleveland", "client": 1, "proof": ""}]
    (tmp_path / "sites.json").write_text(json.dumps({"sites": sites}))
    Trace(tmp_path / "run.sqlite").close()
    return tmp_path


def test_a_server_that_waits_says_for_whom(run: Path):
    assert describe_progress(run) == "waiting for sites: 1 of 3 joined; missing: budapest, zurich"


def test_a_site_that_cannot_be_reached_is_away_whatever_it_was_doing(run: Path):
    doing = {site["name"]: site.get("doing") for site in overview(run)["sites"]}
    assert doing == {"zurich": "away", "cleveland": None}


def test_a_server_that_was_killed_is_not_said_to_run(run: Path):
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait()
    AppStatus("running", ended.pid).write(run / "live")
    assert overview(run)["state"] == "no server is running"
