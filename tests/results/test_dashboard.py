"""The dashboard over HTTP: what it shows, to whom, and what it does not do."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from handwritten_runs import empty_run, write_run

from offbeat.core.errors import ConfigError, RunError
from offbeat.engine.trace import Trace
from offbeat.engine.trace_file import TraceDigest
from offbeat.engine.until import Until
from offbeat.experiment import comparison
from offbeat.experiment.run import checksums, run_lock
from offbeat.results.dashboard import Dashboard
from results import messages

Answer = tuple[int, str]


@contextmanager
def served(home: Path) -> Iterator[Dashboard]:
    with Dashboard(home, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(server: Dashboard, path: str, method: str = "GET", **headers: str) -> Answer:
    line = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    try:
        line.request(method, path, headers=headers)
        answer = line.getresponse()
        return answer.status, answer.read().decode()
    finally:
        line.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A run that ended, one that was stopped, one that has not begun, a comparison, and one that is damaged."""
    home = tmp_path_factory.mktemp("runs")
    ended(home / "done", "fedbuff")
    write_run(home / "deeper" / "half", "fedavg", ended=None, until=Until(seconds=200.0))
    empty_run(home / "fresh", "fedasync")[1].close()
    (home / "fresh" / "run.sqlite").unlink(missing_ok=True)
    experiments = {"a<b>": write_run(home / "x", "fedavg").experiment()}
    comparison.create_comparison(home / "pair", experiments, [0])
    (home / "broken").mkdir()
    (home / "broken" / "experiment.yaml").write_text("name: [")
    (home / "notes").mkdir()
    (home / "notes" / "secret.txt").write_text("nobody's business")
    (home / "linked").symlink_to(home.parent, target_is_directory=True)
    return home


def ended(path: Path, strategy: str) -> None:
    """With the checksums of a run that came to its end."""
    run = write_run(path, strategy)
    trace = Trace(run.trace_file)
    trace.digest_so_far = TraceDigest.from_database(trace.db)
    checksums.write_final_checksums(run.folder, trace, b"")
    trace.close()
    run.model_file.write_bytes(b"")


@pytest.fixture(scope="module")
def server(home) -> Iterator[Dashboard]:
    with served(home) as server:
        yield server


def test_the_list_has_all_runs_with_their_state(server):
    status, text = ask(server, "/")
    assert status == 200
    states = ("finished (seconds)", "50%, not running", "0%, not started", "0 of 1 runs")  # 100 of 200 seconds
    for word in ('value="done"', *states, "acc 0.900", "a&lt;b&gt;, seed 0", "broken/experiment.yaml"):
        assert word in text
    assert "linked" not in text
    assert "secret" not in text


def test_a_run_that_is_being_computed_is_running(server, home):
    with run_lock.exclusive_lock(home / "deeper" / "half"):
        assert "50%, running" in ask(server, "/")[1]
        assert "50%, running" in ask(server, "/view?of=deeper/half")[1]


@pytest.mark.parametrize("of", ["done", "deeper%2Fhalf", "x", "pair"])
def test_runs_and_comparisons_have_pages(server, of):
    status, text = ask(server, f"/view?of={of}")
    assert status == 200
    assert "all runs</a>" in text
    assert ("nothing to draw" in text) == (of == "pair")


def test_runs_are_shown_side_by_side(server):
    status, text = ask(server, "/view?of=done&of=deeper/half&of=x")
    assert status == 200
    assert "acc: 3 runs side by side" in text
    assert "fedavg (x)" in text  # there are two of this method
    assert "fedavg (deeper/half)" in text
    assert '"name":"fedbuff"' in text


def test_numbers_are_sent_only_if_they_are_new(server):
    status, text = ask(server, "/numbers?of=deeper/half")
    assert status == 200
    fresh = json.loads(text)
    assert fresh["standing"] == {"share": 0.5, "state": "not running"}
    assert fresh["numbers"]["methods"][0]["values"]["acc"][0][-1] == 0.9
    assert ask(server, f"/numbers?of=deeper/half&after={fresh['stamp']}") == (204, "")
    assert ask(server, "/numbers?of=fresh")[0] == 409


def test_only_who_calls_it_by_its_name_is_answered(server):
    for host in ("evil.example", f"evil.example:{server.server_port}", "127.0.0.1", ""):
        assert ask(server, "/", Host=host)[0] == 403
    assert ask(server, "/", Host=f"localhost:{server.server_port}")[0] == 200
    assert server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize(
    "path",
    ["/notes/secret.txt", "/../notes/secret.txt", "/%2e%2e/notes/secret.txt", "/view?of=notes", "/view?of=../x",
     "/view?of=%2Fetc", "/view?of=done/../x", "/view?of=linked/x", "/view", "/numbers", "/view?of=done&of=nothing",
     "/done/experiment.yaml", "//etc/passwd"],
)  # fmt: skip
def test_only_runs_in_the_index_are_served(server, path):
    status, text = ask(server, path)
    assert status == 404
    assert "business" not in text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_only_get_and_head_are_allowed(server, method):
    assert ask(server, "/", method)[0] == 405


def test_a_head_has_no_body(server):
    assert ask(server, "/", "HEAD") == (200, "")


def test_requests_change_no_file(tmp_path):
    write_run(tmp_path / "run", "fedavg")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with served(tmp_path) as server:
        for path in ("/", "/view?of=run", "/numbers?of=run"):
            assert ask(server, path)[0] == 200
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {path: after[path] for path in before} == before
    beside = {path.name for path in after.keys() - before.keys()}
    assert beside <= {"run.sqlite-wal", "run.sqlite-shm"}  # SQLite's own, of whoever reads


def test_an_empty_folder_says_how_to_begin(tmp_path):
    with served(tmp_path) as server:
        assert "offbeat run quickstart" in ask(server, "/")[1]


def test_the_folder_may_be_a_run_itself(tmp_path):
    write_run(tmp_path / "run", "fedavg")
    with served(tmp_path / "run") as server:
        assert ask(server, "/view?of=.")[0] == 200


def test_what_cannot_be_served_is_one_line(tmp_path, server):
    with pytest.raises(ConfigError, match=messages.NO_FOLDER):
        Dashboard(tmp_path / "nowhere", 0)
    with pytest.raises(RunError, match=messages.PORT_IN_USE):
        Dashboard(tmp_path, server.server_port)
