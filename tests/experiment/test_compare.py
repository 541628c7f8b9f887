"""Tests of offbeat.compare."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import offbeat
from experiment import messages
from experiment.user_objects import METHODS, Halves, net, pair, same
from offbeat.cli import app
from offbeat.core.errors import ConfigError, RunError
from offbeat.core.strategies.fedasync import FedAsync
from offbeat.experiment.run import pooled_runs
from waiting import MAX_WAIT_SECONDS

FORK_CHECK = "offbeat.workers.process_pool.explain_fork_failure"
WORLD: dict[str, Any] = {"clients": {"bern": pair(0), "basel": pair(1), "biel": pair(2)}, "delays": [5, 10, 20],
                         "until": "200s", "target": "acc=0.7", "test": pair(9)}  # fmt: skip


def compare(**given: Any) -> offbeat.Compared:
    return offbeat.compare(**{"model": net, "strategies": METHODS, "seeds": 2, **WORLD, **given})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> offbeat.Compared:
    return compare(out=tmp_path_factory.mktemp("compare") / "study")


# ---------------------------------------------------------------- what comes out


def test_each_run_equals_the_single_simulation(made):
    assert list(made) == ["fedavg", "small", "mine"]
    for label, strategy in METHODS.items():
        for seed in (0, 1):
            assert same(made[label][seed], offbeat.simulate(net, strategy=strategy, seed=seed, **WORLD))


def test_a_seed_gives_all_methods_the_same_initial_weights(made):
    starts = {(name, seed): run.given.module[0].weight for name in made for seed, run in made[name].items()}
    assert starts["fedavg", 0].equal(starts["mine", 0])
    assert not starts["fedavg", 0].equal(starts["fedavg", 1])


def test_a_module_gives_all_seeds_the_same_initial_weights():
    module = net()
    done = compare(model=module, strategies=["fedavg"], until="20s")
    assert all(run.given.module is module for run in done["fedavg"].values())


def test_it_prints_the_table_of_offbeat_compare(made):
    shown = CliRunner().invoke(app, ["show", str(made.folder)]).output.splitlines()
    assert str(made).splitlines() == [line.rstrip() for line in shown[:4]]
    assert shown[0].split()[:3] == ["strategy", "final", "acc"]
    assert [line.split()[0] for line in shown[1:4]] == ["fedavg", "small", "mine"]
    assert repr(made) == str(made)


def test_the_table_is_plain_values_for_methods_and_for_seeds(made):
    over = made.table()
    assert [row["strategy"] for row in over] == ["fedavg", "small", "mine"]
    each = made.table(by_seed=True)
    assert [(row["strategy"], row["seed"]) for row in each] == [(m, s) for m in METHODS for s in (0, 1)]
    finals = [row["final"] for row in each if row["strategy"] == "small"]
    assert over[1]["final"] == pytest.approx(sum(finals) / 2)
    json.dumps([over, each], allow_nan=False)


def test_figures_and_pages_are_written_to_the_given_path(made, tmp_path):
    assert made.plot(tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")
    assert made.plot(tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    page = made.page(tmp_path / "page.html").read_text()
    assert "mine" in page
    assert (made.folder / "figure.png").is_file()
    assert (made.folder / "report.html").is_file()


def test_a_temporary_folder_gives_the_same_results_and_is_removed(made):
    loose = compare(strategies=["fedavg"], jobs=1)
    folder = loose.folder
    assert same(loose["fedavg"][1], made["fedavg"][1])
    del loose
    assert not folder.exists()


def test_a_comparison_in_a_temporary_folder_can_be_saved_and_resumed(tmp_path):
    few: dict[str, Any] = {"strategies": ["fedavg"], "seeds": 1, "until": "20s"}
    loose = compare(**few)
    loose.save(tmp_path / "kept")
    assert same(compare(**few, out=tmp_path / "kept")["fedavg"][0], loose["fedavg"][0])
    with messages.expect("is not empty: choose another folder", error=ConfigError):
        loose.save(tmp_path / "kept")


@pytest.mark.parametrize("worker", ["processes:2", "batched:1"])
def test_the_worker_does_not_change_results(made, worker):
    other = compare(strategies=["fedavg"], worker=worker, jobs=1)
    for seed in (0, 1):
        a, b = made["fedavg"][seed], other["fedavg"][seed]
        torch.testing.assert_close(a.outcome.model, b.outcome.model, rtol=1e-4, atol=1e-6)
        assert b.summary.worker.startswith(worker.split(":")[0])


def test_runs_side_by_side_on_one_device_agree(made, monkeypatch):
    """As with the worker cuda; here the device is the CPU."""

    def together(one: Any, jobs: Any, watch: Any, worker: Any, memory: Any) -> bool:
        return pooled_runs.execute_side_by_side([one.run(entry) for entry in one.layout()], watch, worker, memory)

    monkeypatch.setattr("offbeat.experiment.comparison.execute_comparison", together)
    other = compare()
    for name in METHODS:
        for seed in (0, 1):
            a, b = made[name][seed].outcome, other[name][seed].outcome
            torch.testing.assert_close(a.model, b.model, rtol=1e-3, atol=1e-5)


def test_if_forks_cannot_train_runs_are_sequential_with_a_warning(made, monkeypatch, caplog):
    monkeypatch.setattr(FORK_CHECK, lambda: "autograd has threads")
    done = compare(strategies=["fedavg"], jobs=2)
    assert all(same(done["fedavg"][seed], made["fedavg"][seed]) for seed in (0, 1))
    assert caplog.messages == [messages.SEQUENTIAL]


def test_runs_are_sequential_on_other_systems_than_linux(made, monkeypatch):
    monkeypatch.setattr("sys.platform", "darwin")
    in_parallel = "offbeat.experiment.run.parallel_runs.execute_in_parallel"
    monkeypatch.setattr(in_parallel, lambda *_: pytest.fail("there was a fork"))
    assert same(compare(strategies=["fedavg"], jobs=2)["fedavg"][1], made["fedavg"][1])


def test_methods_in_a_list_are_labelled_by_name_and_settings():
    several = ["fedavg", offbeat.FedBuff(k=2), offbeat.FedBuff(k=3), Halves()]
    done = compare(strategies=several, seeds=[4], until="10s")
    assert list(done) == ["fedavg", "fedbuff(k=2)", "fedbuff(k=3)", "Halves"]
    assert done.seeds == [4]


def test_progress_reports_the_share_of_each_run():
    seen: list[Any] = []
    compare(strategies=["fedavg"], progress=seen.append, jobs=1)
    assert set(seen[-1]) == {("fedavg", 0), ("fedavg", 1)}
    assert all(0 <= share <= 1 for shares in seen for share in shares.values())


# ---------------------------------------------------------------- again


def test_the_same_call_again_repeats_no_run(made):
    before = {path: path.stat().st_mtime_ns for path in made.folder.rglob("*") if path.suffix in (".sqlite", ".html")}
    again = compare(out=made.folder)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert str(again) == str(made)


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_same_call_completes_an_interrupted_comparison(made, tmp_path, jobs):
    stopped: list[bool] = []

    def stop(shares: Any) -> None:
        if sum(shares.values()) > 1.5 and not stopped:
            stopped.append(True)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match="the same call resumes it"):
        compare(out=tmp_path / "study", progress=stop, jobs=jobs, worker="inline")
    done = compare(out=tmp_path / "study", jobs=jobs)
    for name in METHODS:
        for seed in (0, 1):
            assert same(done[name][seed], made[name][seed])


def test_the_same_call_completes_an_interrupted_creation(made, tmp_path):
    compare(out=tmp_path / "study", until="10s")
    (tmp_path / "study" / "compare.json").unlink()
    with pytest.raises(RunError, match="another call: until was 10s, is 20s now"):
        compare(out=tmp_path / "study", until="20s")
    assert not (tmp_path / "study" / "compare.json").exists()  # half of it would be of another call
    assert len(compare(out=tmp_path / "study", until="10s")["fedavg"]) == 2


def test_the_same_call_writes_a_missing_page(tmp_path):
    compare(out=tmp_path / "study", until="10s", seeds=1)
    (tmp_path / "study" / "report.html").unlink()
    compare(out=tmp_path / "study", until="10s", seeds=1)
    assert (tmp_path / "study" / "report.html").is_file()


@pytest.mark.parametrize(("given", "difference"), messages.DIFFERENT_COMPARISONS)
def test_a_different_call_is_rejected_with_the_difference(made, given, difference):
    with messages.expect("was made by another call: ", difference, error=RunError):
        compare(out=made.folder, **given)


def test_the_command_line_shows_but_cannot_resume_it(made, tmp_path):
    made.save(tmp_path / "study")
    (tmp_path / "study" / "mine-seed1" / "model.safetensors").unlink()
    done = CliRunner().invoke(app, ["compare", "--resume", str(tmp_path / "study")])
    assert messages.CREATED_BY_A_SCRIPT in str(done.exception or done.output)


# ---------------------------------------------------------------- one line each


@pytest.mark.parametrize(("given", "words"), messages.COMPARE)
def test_an_invalid_argument_is_one_line(given, words, tmp_path):
    with messages.expect(words):
        compare(out=tmp_path / "study", **given)
    assert not (tmp_path / "study").exists()


def test_an_unknown_method_is_rejected(made):
    with messages.expect("unknown method of this comparison 'smal': did you mean 'small'", error=ConfigError):
        made["smal"]


class Broken(FedAsync):
    """A strategy that fails after 50 seconds."""

    def on_event(self, state: Any, event: Any) -> Any:
        if event.now > 50:
            raise RuntimeError("it broke")
        return super().on_event(state, event)


@pytest.mark.parametrize("reason", [None, "autograd has threads"], ids=["in forks", "one after the other"])
def test_a_failing_run_is_named_and_does_not_stop_the_others(tmp_path, monkeypatch, caplog, reason):
    monkeypatch.setattr(FORK_CHECK, lambda: reason)
    with pytest.raises(RuntimeError, match="it broke"):
        compare(strategies={"broken": Broken(), "fedavg": "fedavg"}, seeds=1, out=tmp_path / "study", jobs=2)
    assert (tmp_path / "study" / "fedavg-seed0" / "model.safetensors").is_file()
    assert "broken-seed0" in caplog.messages[-1]


def test_a_failed_run_is_freed_before_the_next_starts(monkeypatch):
    """The frames of its error would keep a model, data and memory alive until the last run has ended."""
    models: list[weakref.ref[Any]] = []
    alive: list[int] = []

    class Recording(Broken):
        def on_event(self, state: Any, event: Any) -> Any:
            if event.now > 50:
                gc.collect()
                alive.append(sum(model() is not None for model in models))
                models.append(weakref.ref(state.model))
                raise RuntimeError("it broke") from KeyError("of something else")
            return super().on_event(state, event)

    monkeypatch.setattr(FORK_CHECK, lambda: "autograd has threads")
    with pytest.raises(RuntimeError, match="it broke"):
        compare(strategies={"broken": Recording()}, seeds=3, jobs=2)
    assert alive == [0, 0, 0]


def test_an_error_of_the_progress_function_stops_the_comparison(monkeypatch):
    calls: list[Any] = []

    def fail(*seen: Any) -> None:
        calls.append(seen)
        raise LookupError("nobody reads")

    monkeypatch.setattr(FORK_CHECK, lambda: "autograd has threads")
    with pytest.raises(LookupError, match="nobody reads"):
        compare(strategies=["fedavg"], seeds=2, jobs=2, progress=fail)
    assert len(calls) == 1


# ---------------------------------------------------------------- from a plain script

SCRIPT = """
import os, signal, sys
import torch
import offbeat

class Mine(offbeat.FedAsync):
    pass

rule = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
clients = []
for site in range(4):
    x = torch.randn(30, 5, generator=torch.Generator().manual_seed(site))
    clients.append((x, (x @ rule).argmax(1)))
print("the script runs")

def follow(shares):
    if "killed" in sys.argv and sum(shares.values()) > 1.2:
        os.kill(os.getpid(), signal.SIGKILL)

table = offbeat.compare(lambda seed: torch.nn.Linear(5, 3), clients, {"fedavg": "fedavg", "mine": Mine()}, seeds=2,
                        delays=[10, 20, 30, 40], until="400s", jobs=2, progress=follow, out="study")
print(table)
print(table["mine"][1].trace.digest())
"""


def test_a_killed_script_resumes_its_comparison(tmp_path):
    """The script has no `if __name__ == "__main__"` and runs once, because no process imports it again."""
    (tmp_path / "study.py").write_text(SCRIPT)
    (tmp_path / "other").mkdir()

    def call(*arguments: str, folder: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(tmp_path / "study.py"), *arguments]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=MAX_WAIT_SECONDS)

    assert call("killed").returncode == -signal.SIGKILL
    done, again, whole = call(), call(), call(folder=tmp_path / "other")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "the script runs"
    assert lines.count("the script runs") == 1
    assert [line.split()[0] for line in lines[1:4]] == ["strategy", "fedavg", "mine"]
    assert again.stdout == whole.stdout == done.stdout
    assert Path(tmp_path, "study", "mine-seed1", "command.txt").read_text().endswith("study.py killed\n")
