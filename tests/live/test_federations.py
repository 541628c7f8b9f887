"""A server and its sites as real processes on loopback."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess

from federation import OFFBEAT, PATIENCE, command_of, consumed_once, rows, server_process, updates, within


def test_a_whole_federation_with_one_command(offbeat, tmp_path):
    serve = offbeat("serve", "quickstart", "--local", "3", "--until", "6updates", "--out", "run", "--json")
    assert serve.wait() == 0, serve.said
    found = json.loads(serve.said[serve.said.index("{\n") :])
    assert found["state"] == "ended"
    assert found["complete"]
    assert found["updates"] == 6
    assert sorted(site["name"] for site in found["sites"]) == ["site-1", "site-2", "site-3"]
    assert sum(site["updates"] for site in found["sites"]) == 6
    assert all(site["training"] < site["round_trip"] for site in found["sites"] if site["updates"])
    assert serve.leaves_nobody()
    assert consumed_once(tmp_path / "run")
    shown = subprocess.run([*OFFBEAT, "status", "run"], cwd=tmp_path, capture_output=True, text=True)
    assert re.search(r"^site-2 +\d", shown.stdout, re.MULTILINE), shown.stdout + shown.stderr
    assert "ended (updates)" in shown.stdout


def test_whoever_is_killed_the_run_goes_on_and_nobody_is_left(offbeat, tmp_path):
    run = tmp_path / "run"
    serve = offbeat("serve", "quickstart", "--local", "2", "--until", "30updates", "--out", "run")
    assert within(PATIENCE, lambda: updates(run) >= 2), serve.said
    # the server app: another one goes on with the run
    before = server_process(run)
    assert before is not None
    os.kill(before, signal.SIGKILL)
    assert within(PATIENCE, lambda: server_process(run) not in (None, before)), serve.said
    at = updates(run)
    assert within(PATIENCE, lambda: updates(run) > at), serve.said
    # a site's trainer: another one answers
    trainer = next(number for number in serve.family() if "offbeat.deploy.site_trainer" in command_of(number))
    os.kill(trainer, signal.SIGKILL)
    at = updates(run)
    assert within(PATIENCE, lambda: updates(run) >= at + 3), serve.said
    # the command itself, with nothing to clean up after it: all others are gone
    assert len(serve.family()) > 8
    serve.kill()
    serve.wait()
    assert serve.leaves_nobody(), [command_of(number) for number in serve.family()]
    # it goes on where it was
    at = updates(run)
    again = offbeat("serve", "--resume", "run", "--local", "2")
    assert within(PATIENCE, lambda: updates(run) > at), again.said
    again.kill(signal.SIGTERM)
    assert again.wait() == 130, again.said
    assert "continue with: offbeat serve --resume run" in again.said
    assert again.leaves_nobody()
    assert consumed_once(run)
    assert rows(run, "SELECT COUNT(DISTINCT client) FROM trace WHERE kind = 'arrive'") == [(2,)]
