"""Tests of workers as an option of runs: it is stored with the results and may change when a run is resumed."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import offbeat
from experiment import messages
from offbeat.core.errors import ConfigError
from offbeat.engine.until import Until
from offbeat.experiment import comparison as compare
from offbeat.experiment.run import checksums
from offbeat.experiment.run import execution as runs
from offbeat.experiment.spec.config import Experiment
from offbeat.scenario.data.built_in import Synthetic
from offbeat.scenario.models import Linear
from offbeat.scenario.partition import Iid
from offbeat.workers import registry
from offbeat.workers.inline import Inline
from offbeat.workers.registry import WorkerChoice, WorkerType, parse_worker

SMALL = Experiment(data=Synthetic(users=4, seed=2), model=Linear(), partition=Iid(), clients=4, until=Until(updates=12))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Register the workers `several`, which records its counts here, and `elsewhere`, which is not available."""
    counts: list[Any] = []

    def several(trainer: Any, count: int | None) -> Inline:
        counts.append(count)
        return Inline(trainer)

    elsewhere = WorkerType(several, missing=lambda: "there is no elsewhere here")
    monkeypatch.setitem(registry.WORKERS, "several", WorkerType(several, count_unit="hands"))
    monkeypatch.setitem(registry.WORKERS, "elsewhere", elsewhere)
    return counts


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("inline", WorkerChoice()),
        (" inline ", WorkerChoice()),
        ("several", WorkerChoice("several")),
        ("several:3", WorkerChoice("several", 3)),
        ("several:03", WorkerChoice("several", 3)),
    ],
)
def test_a_worker_is_a_name_or_a_name_and_a_number(made, text, chosen):
    assert parse_worker(text) == chosen
    assert parse_worker(str(chosen)) == chosen


@pytest.mark.parametrize(("text", "words"), messages.WORKERS)
def test_an_invalid_worker_is_rejected_with_the_nearest_valid_one(made, text, words):
    with messages.expect(words, error=ConfigError):
        parse_worker(text)


def test_an_unavailable_worker_is_replaced_by_inline_with_a_warning(made, caplog):
    assert registry.usable(parse_worker("elsewhere")) == registry.INLINE
    assert caplog.messages == [messages.UNAVAILABLE]


# ---------------------------------------------------------------- runs


def test_the_worker_is_stored_with_the_results_and_not_in_the_experiment(made, tmp_path):
    plain = runs.create_run(tmp_path / "plain", SMALL)
    other = runs.create_run(tmp_path / "other", SMALL, worker="several:2")
    for run in (plain, other):
        runs.execute_run(run)
    assert made == [2]
    for name in ("world.json", "experiment.yaml"):
        assert (plain.folder / name).read_bytes() == (other.folder / name).read_bytes()
    assert other.digest() == plain.digest()
    assert (plain.summary().worker, other.summary().worker) == ("inline", "several:2")
    assert checksums.read_checksummed(other.folder / "environment.json")["worker"] == "several:2"
    other.check_results()


def stop(status: Any) -> bool:
    return status.updates >= 4 or status.now > 0


def stopped(folder: Path, **options: Any) -> runs.Run:
    run = runs.create_run(folder, replace(SMALL, evaluate_every=1.0), **options)
    outcome = runs.execute_run(run, stop)
    assert outcome is not None
    assert outcome.reason == "interrupted"
    return run


def test_a_run_is_resumed_with_its_worker_or_another_to_the_same_bits(made, tmp_path):
    whole = runs.create_run(tmp_path / "whole", replace(SMALL, evaluate_every=1.0))
    runs.execute_run(whole)
    resumed, changed = (stopped(tmp_path / name, worker="several:2") for name in ("resumed", "changed"))
    runs.execute_run(resumed)
    assert made == [2, 2, 2]
    runs.execute_run(changed, stop, worker="inline")
    runs.execute_run(changed, worker="inline")
    assert made == [2, 2, 2]
    assert resumed.digest() == changed.digest() == whole.digest()
    assert [run.summary().worker for run in (resumed, changed)] == ["several:2", "several:2, then inline"]
    assert str(changed.worker()) == "several:2"


@pytest.mark.parametrize("name", ["several:2", "elsewhere"])
def test_a_run_whose_worker_is_unavailable_is_resumed_inline(made, tmp_path, monkeypatch, caplog, name):
    run = stopped(tmp_path / "run", worker=name)
    if name == "several:2":
        monkeypatch.delitem(registry.WORKERS, "several")
    made.clear()
    runs.execute_run(run)
    assert made == []
    assert str(run.summary().worker).endswith("inline")
    assert "inline is used" in caplog.messages[-1]


@pytest.mark.parametrize("damage", ["damaged", "missing", "without a worker"])
def test_a_run_with_an_unreadable_worker_is_resumed_inline(made, tmp_path, damage):
    run = stopped(tmp_path / "run", worker="several:2")
    path = run.folder / "environment.json"
    stored = checksums.read_checksummed(path)
    del stored["worker"]
    path.write_text("{" if damage == "damaged" else json.dumps(stored))
    if damage == "missing":
        path.unlink()
    assert run.worker() == registry.INLINE
    runs.execute_run(run)
    assert made == [2]


def test_a_misspelt_worker_creates_no_folder(tmp_path):
    with messages.expect("unknown worker", error=ConfigError):
        runs.create_run(tmp_path / "run", SMALL, worker="inlin")
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------- comparisons


@pytest.fixture
def comparison(made, tmp_path) -> compare.Comparison:
    """Create a comparison of two methods with the worker `several:2`."""
    experiments = {name: replace(SMALL, strategy=offbeat.FedBuff(k=k)) for name, k in (("one", 1), ("two", 2))}
    return compare.create_comparison(tmp_path / "c", experiments, [0], worker="several:2")


def summarized_workers(comparison: compare.Comparison) -> list[str | None]:
    return [run.summary().worker for name in ("one", "two") for run in comparison.runs(name)]


def test_runs_with_a_worker_that_is_not_for_several_runs_are_executed_one_after_the_other(made, comparison):
    seen: list[list[float]] = []
    with messages.expect(messages.NO_JOBS, error=ConfigError):
        compare.execute_comparison(comparison, jobs=2)
    assert compare.execute_comparison(comparison, on_progress=lambda shares, work: seen.append(shares))
    assert made == [2, 2]
    assert seen[-1] == [1.0, 1.0]
    assert summarized_workers(comparison) == ["several:2"] * 2
    assert compare.execute_comparison(comparison)  # all runs are complete


def test_an_interrupted_comparison_can_be_completed_with_another_worker(made, comparison, sequential_runs):
    runs.execute_run(comparison.runs("one")[0], stop)
    made.clear()
    assert compare.execute_comparison(comparison, worker="inline")
    assert made == []
    assert summarized_workers(comparison) == ["several:2, then inline", "inline"]


@pytest.mark.parametrize(
    ("worker", "runs_at_once", "each"),
    [
        ("inline", 4, "inline"),
        ("processes", 8, "inline"),  # one process would only add messages
        ("processes", 3, "processes:2"),
        ("processes:4", 1, "processes:4"),
        ("batched", 8, "batched:1"),
        ("batched", 1, "batched"),  # it chooses the number of cores
        ("batched:6", 2, "batched:3"),
        ("batched:2", 5, "batched:1"),
    ],
)
def test_runs_at_the_same_time_share_the_cores(monkeypatch, worker, runs_at_once, each):
    monkeypatch.setattr(registry.os, "cpu_count", lambda: 8)
    assert str(registry.share_cores(registry.parse_worker(worker), runs_at_once)) == each


def test_auto_chooses_once_for_a_comparison(comparison, monkeypatch, sequential_runs, caplog):
    choices = iter([(registry.WorkerChoice("batched", 1), "a reason")])  # a second choice would fail
    chooser = "offbeat.workers.registry.choose_fastest"
    monkeypatch.setattr(chooser, lambda trainer, world, cores=None: next(choices))
    monkeypatch.setattr(registry.os, "cpu_count", lambda: 2)
    first = comparison.runs("one")[0]
    runs.execute_run(first, stop, worker="auto")
    assert not first.complete
    assert compare.execute_comparison(comparison, worker="auto")
    assert summarized_workers(comparison) == ["batched:1", "batched:1"]
    assert any("using batched:1 (a reason)" in message for message in caplog.messages)


# ---------------------------------------------------------------- simulations


CLIENTS = [(torch.randn(8, 3, generator=torch.Generator().manual_seed(i)), torch.arange(8) % 2) for i in range(3)]


def test_a_simulation_accepts_a_worker_by_name_and_stores_it(made):
    result = offbeat.simulate(torch.nn.Linear(3, 2), CLIENTS, until="300s", worker="several:4")
    assert made == [4]
    assert result.summary.worker == "several:4"
    with messages.expect("did you mean 'inline'", error=ConfigError):
        offbeat.simulate(torch.nn.Linear(3, 2), CLIENTS, worker="in-line")


# ---------------------------------------------------------------- the workers of offbeat


# These tests need no Ray; tests/workers/test_ray.py tests its results.


@pytest.fixture
def with_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Ray seem to be installed; nothing of it is imported."""
    monkeypatch.setattr(registry, "find_spec", lambda name: object())


@pytest.mark.parametrize("text", ["ray", "ray:10.0.0.1:6399"])
def test_without_ray_one_line_names_the_extra(monkeypatch, tmp_path, text):
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    with messages.expect(messages.NO_RAY, error=ConfigError):
        runs.create_run(tmp_path / "run", SMALL, worker=text)
    assert not (tmp_path / "run").exists()


def test_a_run_created_with_ray_is_executed_inline_without_ray(with_ray, monkeypatch, tmp_path, caplog):
    run = runs.create_run(tmp_path / "run", SMALL, worker="ray")
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    runs.execute_run(run)
    assert run.summary().worker == "inline"
    assert "Ray is not installed" in caplog.messages[0]
    assert caplog.messages[0].endswith("inline is used")


@pytest.mark.parametrize(
    "text", ["ray:", "ray:2", "ray:host", "ray::6399", "ray:a b:1", "ray:host:0", "ray:host:99999", "ray:ray://h:1"]
)
def test_an_invalid_address_is_rejected(with_ray, text):
    with messages.expect(messages.INVALID_ADDRESS.format(text), error=ConfigError):
        parse_worker(text)


def test_an_address_must_answer_and_is_part_of_the_choice(with_ray):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with messages.expect(messages.NO_SERVER.format(address), error=ConfigError):
            parse_worker(f"ray:{address}")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        chosen = parse_worker(f"ray:{address}")
        assert parse_worker(str(chosen)) == chosen == WorkerChoice("ray", address)


def test_a_note_of_a_worker_is_stored_with_its_name(monkeypatch, tmp_path):
    class Noting(Inline):
        note: Any = None

        def collect(self, tickets: Any) -> Any:
            if self.note is not None:
                self.note("a node has another torch")
                self.note = None
            return super().collect(tickets)

    monkeypatch.setitem(registry.WORKERS, "noting", WorkerType(lambda trainer, _: Noting(trainer)))
    run = runs.create_run(tmp_path / "run", replace(SMALL, evaluate_every=1.0), worker="noting")
    runs.execute_run(run, lambda status: status.updates >= 4)
    runs.execute_run(run, worker="inline")
    assert run.summary().worker == "noting (a node has another torch), then inline"
    result = offbeat.simulate(torch.nn.Linear(3, 2), CLIENTS, until="100s", worker="noting")
    assert result.summary.worker == "noting (a node has another torch)"


def test_on_another_system_processes_are_replaced_by_inline_with_a_warning(monkeypatch, caplog, tmp_path):
    monkeypatch.setattr("sys.platform", "darwin")
    run = runs.create_run(tmp_path / "run", SMALL, worker="processes:2")
    runs.execute_run(run)
    assert caplog.messages == [messages.NO_PROCESSES]
    assert run.summary().worker == "inline"


def test_auto_chooses_the_fastest_worker_reports_it_and_keeps_it(tmp_path, caplog):
    run = stopped(tmp_path / "auto", worker="auto")
    [line] = [message for message in caplog.messages if "worker auto" in message]
    chosen = line.split("using ")[1].split(" (")[0]
    assert chosen in line.split("(")[1]  # with its time
    caplog.clear()
    runs.execute_run(run)
    assert "worker auto" not in caplog.text
    assert run.summary().worker == chosen
