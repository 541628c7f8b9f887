"""The dashboard in a real browser: empty, running and full stores; no script errors, and what is new is drawn."""

from __future__ import annotations

import re
import sqlite3
import urllib.request
from html import escape

import pytest
from handwritten_runs import empty_run, write_run
from test_dashboard import ended, served
from test_page_in_browser import HOSTILE, WIDTH, browsed, pytestmark  # noqa: F401

from offbeat.engine.until import Until
from offbeat.experiment import comparison
from offbeat.experiment.run import run_lock
from offbeat.results.dashboard import DashboardHandler


def test_an_empty_store_says_how_to_begin(tmp_path):
    (tmp_path / "runs").mkdir()
    with served(tmp_path / "runs") as server:
        document, console = browsed(server.address, tmp_path)
    assert console == []
    assert "offbeat run quickstart" in document
    assert 'data-drawn="yes"' in document


def test_a_list_refreshes_itself(tmp_path, monkeypatch):
    home = tmp_path / "runs"
    write_run(home / "first", "fedavg")
    with served(home) as server:
        calls, entries = [], server.run_index.entries

        def grown():
            if calls:
                ended(home / f"more-{len(calls)}", "fedbuff")
            calls.append(1)
            return entries()

        monkeypatch.setattr(server.run_index, "entries", grown)
        document, console = browsed(server.address, tmp_path)
    assert console == []
    assert 'data-refreshed="yes"' in document
    assert "more-1" in document


@pytest.mark.parametrize("width", [800, 500])
def test_runs_beside_each_other_are_drawn(tmp_path, width):
    home = tmp_path / "runs"
    ended(home / "a", "fedavg")
    ended(home / "b", "fedbuff")
    with served(home) as server:
        document, console = browsed(f"{server.address}view?of=a&of=b", tmp_path, width)
    assert console == []
    assert 'data-drawn="yes"' in document
    assert document.count('class="curve"') >= 4  # two, and two samples in the legend
    assert 'id="f-timeline"' in document


def test_curves_of_a_running_run_grow_without_a_reload(tmp_path, monkeypatch):
    home = tmp_path / "runs"
    run, trace = empty_run(home / "run", "fedbuff", until=Until(seconds=100.0))
    for point in range(3):
        trace.add(float(point), "dispatch", 0, 0, point)
        trace.metrics(float(point), 0, point, {"acc": point / 10, "loss": 1.0})
    trace.flush()
    found, asked = DashboardHandler._find_entries, []

    def more(self, names):
        asked.append(self.path)
        if self.path.startswith("/numbers"):
            with sqlite3.connect(run.trace_file) as db:  # the trace is of another thread
                at = (100 + len(asked), 2.0 + len(asked), 0, 2)
                db.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", [(*at, "acc", 0.5), (*at, "loss", 1.0)])
            db.close()
        return found(self, names)

    monkeypatch.setattr(DashboardHandler, "_find_entries", more)
    with run_lock.exclusive_lock(run.folder), served(home) as server:
        document, console = browsed(f"{server.address}view?of=run", tmp_path)
    trace.close()
    assert console == []
    assert [path.partition("?")[0] for path in asked][:2] == ["/view", "/numbers"]
    assert [path for path in asked if path.startswith("/view")] == ["/view?of=run"]
    assert "data-refreshed" in document
    assert re.search(r"<b>0\.500</b>", document)  # the newest value, in the legend
    assert "running" in document


def test_a_run_that_has_not_begun_is_waited_for(tmp_path):
    home = tmp_path / "runs"
    experiment = write_run(tmp_path / "made", "fedavg").experiment()
    comparison.create_comparison(home / "pair", {"fedavg": experiment}, [0])
    with served(home) as server:
        document, console = browsed(f"{server.address}view?of=pair", tmp_path)
    assert console == []
    assert "no run has started" in document


def test_names_that_mean_harm_stay_names(tmp_path):
    home = tmp_path / "runs"
    experiment = write_run(tmp_path / "made", "fedavg").experiment()
    comparison.create_comparison(home / "<img src=x onerror=alert(1)>", {HOSTILE: experiment}, [0])
    with served(home) as server:
        document, console = browsed(server.address, tmp_path)
    assert console == []
    assert "<img" not in document
    assert "&lt;img src=x" in document


@pytest.mark.parametrize("page", ["", "view?of=b"])
def test_on_a_phone_no_page_is_wider_than_the_screen(tmp_path, page):
    home = tmp_path / "runs"
    ended(home / "a_run_with_quite_a_long_name_in_it", "fedavg")
    ended(home / "b", "fedbuff")
    with served(home) as server, urllib.request.urlopen(f"{server.address}{page}") as answer:
        text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", answer.read().decode())
    frame = tmp_path / "phone.html"
    frame.write_text(f'<iframe id="f" style="width:375px" srcdoc="{escape(text)}"></iframe>{WIDTH}')
    assert '<body data-wider="0">' in browsed(frame.as_uri(), tmp_path)[0]
