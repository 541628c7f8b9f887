"""The worker is an option of a run: written beside its results, no part of what it is, free to change on the way."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import offbeat
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
    """Two more workers: `several`, which keeps book of what it was made with, and `elsewhere`, which is not here."""
    asked: list[Any] = []

    def several(trainer: Any, count: int | None) -> Inline:
        asked.append(count)
        return Inline(trainer)

    monkeypatch.setitem(registry.WORKERS, "several", WorkerType(several, count_unit="hands"))
    monkeypatch.setitem(
        registry.WORKERS, "elsewhere", WorkerType(several, missing=lambda: "there is no elsewhere here")
    )
    return asked


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
def test_a_worker_is_written_as_a_name_or_a_name_and_a_number(made, text, chosen):
    assert parse_worker(text) == chosen
    assert parse_worker(str(chosen)) == chosen


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("inlin", "unknown worker 'inlin': did you mean 'inline'?"),
        ("", "unknown worker '': known: "),
        ("Inline", "did you mean 'inline'?"),
        ("inline:3", "worker 'inline:3': inline takes no number; write inline"),
        ("inline:", "inline takes no number"),
        ("several:0", "worker 'several:0': from 1 to 1024 hands, not 0"),
        ("several:9999", "from 1 to 1024 hands, not 9999"),
        ("several:-1", "worker 'several:-1': write several, or several:N with a whole number of hands"),
        ("several:two", "whole number of hands"),
        ("several:", "whole number of hands"),
        ("several:1:2", "whole number of hands"),
        ("several:²", "whole number of hands"),
    ],
)
def test_what_is_no_worker_is_told_with_the_nearest_that_is(made, text, words):
    with pytest.raises(ConfigError) as caught:
        parse_worker(text)
    assert words in str(caught.value)


def test_where_a_worker_cannot_work_inline_does_and_it_is_said(made, caplog):
    assert registry.usable(parse_worker("elsewhere")) == registry.INLINE
    assert caplog.messages == ["worker elsewhere: there is no elsewhere here; inline is used"]


# ---------------------------------------------------------------- of a run


def test_it_is_written_beside_the_results_and_is_no_part_of_the_experiment(made, tmp_path):
    plain = runs.create_run(tmp_path / "plain", SMALL)
    other = runs.create_run(tmp_path / "other", SMALL, worker="several:2")
    runs.execute_run(plain)
    runs.execute_run(other)
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


def test_a_run_goes_on_with_the_worker_it_was_begun_with(made, tmp_path):
    run = stopped(tmp_path / "run", worker="several:2")
    runs.execute_run(run)
    assert made == [2, 2]
    assert run.summary().worker == "several:2"


def test_a_run_goes_on_with_any_other_to_the_same_bits(made, tmp_path):
    whole = runs.create_run(tmp_path / "whole", replace(SMALL, evaluate_every=1.0))
    runs.execute_run(whole)
    run = stopped(tmp_path / "run", worker="several:2")
    runs.execute_run(run, stop, worker="inline")
    runs.execute_run(run, worker="inline")
    assert made == [2]
    assert run.digest() == whole.digest()
    assert run.summary().worker == "several:2, then inline"
    assert str(run.worker()) == "several:2"


@pytest.mark.parametrize("name", ["several:2", "elsewhere"])
def test_a_run_whose_worker_is_not_here_goes_on_inline(made, tmp_path, monkeypatch, caplog, name):
    run = stopped(tmp_path / "run", worker=name)
    if name == "several:2":
        monkeypatch.delitem(registry.WORKERS, "several")
    del made[:]
    runs.execute_run(run)
    assert made == []
    assert run.summary().worker is not None
    assert run.summary().worker.endswith("inline")
    assert "inline is used" in caplog.messages[-1]


@pytest.mark.parametrize("wreck", ["damaged", "gone", "of before there was a choice"])
def test_a_run_that_cannot_tell_its_worker_any_more_goes_on_inline(made, tmp_path, wreck):
    run = stopped(tmp_path / "run", worker="several:2")
    path = run.folder / "environment.json"
    if wreck == "gone":
        path.unlink()
    elif wreck == "damaged":
        path.write_text("{")
    else:
        stored = checksums.read_checksummed(path)
        del stored["worker"]
        path.write_text(json.dumps(stored))
    assert run.worker() == registry.INLINE
    runs.execute_run(run)
    assert made == [2]


def test_a_misspelt_worker_makes_no_folder(tmp_path):
    with pytest.raises(ConfigError, match="unknown worker"):
        runs.create_run(tmp_path / "run", SMALL, worker="inlin")
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------- of a comparison


def test_runs_of_a_comparison_with_a_worker_of_their_own_go_one_after_the_other_in_this_process(made, tmp_path):
    experiments = {name: replace(SMALL, strategy=offbeat.FedBuff(k=k)) for name, k in (("one", 1), ("two", 2))}
    comparison = compare.create_comparison(tmp_path / "c", experiments, [0], worker="several:2")
    seen: list[list[float]] = []
    with pytest.raises(ConfigError, match="--jobs 2: with the worker several:2 runs go one after the other"):
        compare.execute_comparison(comparison, jobs=2)
    assert compare.execute_comparison(comparison, on_progress=lambda shares, work: seen.append(shares))
    assert made == [2, 2]
    assert seen[-1] == [1.0, 1.0]
    assert [run.summary().worker for name in experiments for run in comparison.runs(name)] == ["several:2"] * 2
    assert compare.execute_comparison(comparison)  # there is nothing left to do


def test_a_comparison_that_is_stopped_is_finished_with_the_worker_it_was_begun_with_or_another(
    made, tmp_path, sequential_runs
):
    experiments = {"one": replace(SMALL, strategy=offbeat.FedBuff(k=1)), "two": SMALL}
    comparison = compare.create_comparison(tmp_path / "c", experiments, [0], worker="several:2")
    runs.execute_run(comparison.runs("one")[0], stop)
    del made[:]
    assert compare.execute_comparison(comparison, worker="inline")
    assert made == []
    assert comparison.runs("one")[0].summary().worker == "several:2, then inline"
    assert comparison.runs("two")[0].summary().worker == "inline"


def test_runs_at_the_same_time_share_the_cores(monkeypatch):
    monkeypatch.setattr(registry.os, "cpu_count", lambda: 8)
    for given, at_once, each in (
        ("inline", 4, "inline"),
        ("processes", 8, "inline"),  # one process would only be a longer way
        ("processes", 3, "processes:2"),
        ("processes:4", 1, "processes:4"),
        ("batched", 8, "batched:1"),
        ("batched", 1, "batched"),  # which knows best on how many
        ("batched:6", 2, "batched:3"),
        ("batched:2", 5, "batched:1"),
    ):
        assert str(registry.share_cores(registry.parse_worker(given), at_once)) == each


def test_auto_chooses_once_for_a_comparison_and_stays_with_it(tmp_path, monkeypatch, sequential_runs, caplog):
    chosen = iter([registry.WorkerChoice("batched", 1)])  # a second time would be one too many
    monkeypatch.setattr(
        "offbeat.experiment.run.execution.choose_fastest", lambda trainer, world, cores=None: (next(chosen), "a reason")
    )
    monkeypatch.setattr(registry.os, "cpu_count", lambda: 2)
    experiments = {name: replace(SMALL, strategy=offbeat.FedBuff(k=k)) for name, k in (("one", 1), ("two", 2))}
    comparison = compare.create_comparison(tmp_path / "c", experiments, [0], worker="auto")
    first = comparison.runs("one")[0]
    runs.execute_run(first, stop)
    assert not first.complete
    assert compare.execute_comparison(comparison)
    found = [run.summary().worker for name in experiments for run in comparison.runs(name)]
    assert found == ["batched:1", "batched:1"]
    assert [message for message in caplog.messages if "using batched:1 (a reason)" in message] != []


# ---------------------------------------------------------------- of a simulation


def test_a_simulation_takes_a_worker_by_name_and_tells_it(made):
    clients = [(torch.randn(8, 3, generator=torch.Generator().manual_seed(i)), torch.arange(8) % 2) for i in range(3)]
    found = offbeat.simulate(torch.nn.Linear(3, 2), clients, until="300s", worker="several:4")
    assert made == [4]
    assert found.summary.worker == "several:4"
    with pytest.raises(ConfigError, match="did you mean 'inline'"):
        offbeat.simulate(torch.nn.Linear(3, 2), clients, worker="in-line")


# ---------------------------------------------------------------- those there are


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("proceses", "unknown worker 'proceses': did you mean 'processes'?"),
        ("rya", "unknown worker 'rya': did you mean 'ray'?"),
        ("Ray:10.0.0.1:6399", "unknown worker 'Ray': did you mean 'ray'?"),
        ("processes:0", "worker 'processes:0': from 1 to 1024 processes, not 0"),
        ("processes:x", "write processes, or processes:N with a whole number of processes"),
    ],
)
def test_processes_that_cannot_be_meant_are_refused(text, words):
    with pytest.raises(ConfigError) as caught:
        parse_worker(text)
    assert words in str(caught.value)


# Ray: these hold whether it is installed or not; what it computes is asked in tests/workers/test_ray.py


@pytest.fixture
def with_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as a name is concerned: nothing of it is imported."""
    monkeypatch.setattr(registry, "find_spec", lambda name: object())


def test_without_ray_one_line_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    for text in ("ray", "ray:10.0.0.1:6399"):
        with pytest.raises(
            ConfigError, match=r"^worker ray: Ray is not installed; install it: pip install 'offbeat\[ray\]'"
        ):
            runs.create_run(tmp_path / "run", SMALL, worker=text)
    assert not (tmp_path / "run").exists()


def test_a_run_begun_with_ray_goes_on_inline_where_there_is_none(with_ray, monkeypatch, tmp_path, caplog):
    run = runs.create_run(tmp_path / "run", SMALL, worker="ray")
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    runs.execute_run(run)
    assert run.summary().worker == "inline"
    assert "Ray is not installed" in caplog.messages[0]
    assert caplog.messages[0].endswith("inline is used")


@pytest.mark.parametrize(
    "text", ["ray:", "ray:2", "ray:host", "ray::6399", "ray:a b:1", "ray:host:0", "ray:host:99999", "ray:ray://h:1"]
)
def test_what_is_no_address_is_refused(with_ray, text):
    with pytest.raises(ConfigError) as caught:
        parse_worker(text)
    assert str(caught.value) == f"worker {text!r}: write ray, or ray:HOST:PORT with the address of a cluster"


def test_an_address_nobody_answers_at_is_refused_in_a_line(with_ray):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(ConfigError) as caught:
            parse_worker(f"ray:{address}")
    assert str(caught.value) == f"worker 'ray:{address}': no server answers at {address} (Connection refused)"


def test_an_address_is_part_of_the_name(with_ray):
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        chosen = parse_worker(f"ray:127.0.0.1:{somebody.getsockname()[1]}")
        assert parse_worker(str(chosen)) == chosen == WorkerChoice("ray", f"127.0.0.1:{somebody.getsockname()[1]}")


def test_what_a_worker_finds_out_is_stored_with_who_computed(monkeypatch, tmp_path):
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
    clients = [(torch.ones(4, 3), torch.arange(4) % 2)] * 2
    found = offbeat.simulate(torch.nn.Linear(3, 2), clients, until="100s", worker="noting")
    assert found.summary.worker == "noting (a node has another torch)"


def test_on_another_system_processes_are_inline_which_is_said_in_a_line(monkeypatch, caplog, tmp_path):
    monkeypatch.setattr("sys.platform", "darwin")
    run = runs.create_run(tmp_path / "run", SMALL, worker="processes:2")
    runs.execute_run(run)
    assert caplog.messages == ["worker processes:2: it needs Linux, and this is darwin; inline is used"]
    assert run.summary().worker == "inline"


def test_auto_tries_which_is_the_quickest_says_so_and_keeps_to_it(tmp_path, caplog):
    run = stopped(tmp_path / "auto", worker="auto")
    [line] = [record.getMessage() for record in caplog.records if "worker auto" in record.getMessage()]
    chosen = line.split("using ")[1].split(" (")[0]
    assert chosen in line.split("(")[1]  # with what it would take
    caplog.clear()
    runs.execute_run(run)
    assert "worker auto" not in caplog.text
    assert run.summary().worker == chosen
