"""Tests of runs side by side on one device, here a CPU; bench/gpu.py uses a GPU."""

from __future__ import annotations

import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from offbeat.experiment import comparison as comparing
from offbeat.experiment.comparison import Comparison
from offbeat.experiment.run import execution as runs
from offbeat.experiment.run import pooled_runs
from offbeat.experiment.spec import experiment_files
from offbeat.presets import load

METHODS = ("fedavg", "fedasync", "fedbuff", "aso_fed", "fedpsa")


@pytest.fixture
def experiments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Define small experiments of several methods, and work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    changes = ["clients=4", "model={name: cnn, channels: [3]}", "until=40updates", "training.steps=5"]
    base = experiment_files.with_changes(load("quickstart").experiment, changes)
    methods = {name: experiment_files.with_changes(base, [f"strategy={name}"]) for name in METHODS}
    attacked = experiment_files.with_changes(methods["fedbuff"], ["faults=[{name: sign_flipped}]"])
    return {**methods, "attacked": attacked}


def rows(run: runs.Run) -> list[Any]:
    with sqlite3.connect(run.trace_file) as db:
        return list(db.execute("SELECT now, kind, client, ticket, version FROM trace ORDER BY seq"))


def created(folder: str, experiments: dict[str, Any], seeds: list[int]) -> tuple[Comparison, list[runs.Run]]:
    """Create a comparison and return it with its runs."""
    comparison = comparing.create_comparison(Path(folder), experiments, seeds)
    return comparison, [comparison.run(entry) for entry in comparison.layout()]


def agree(one: Comparison, other: Comparison) -> None:
    for name in one.strategies():
        for a, b in zip(one.runs(name), other.runs(name), strict=True):
            assert rows(a) == rows(b)
            first, second = load_file(a.model_file), load_file(b.model_file)
            for key in first:
                torch.testing.assert_close(first[key], second[key], rtol=1e-3, atol=1e-5)


def test_pooled_runs_agree_with_single_runs_and_are_reproducible(experiments: dict[str, Any]) -> None:
    alone, single_runs = created("alone", experiments, [0, 1])
    for run in single_runs:
        runs.execute_run(run)
    seen: list[list[float]] = []
    together = [created(f"together{i}", experiments, [0, 1]) for i in range(2)]
    for _, several in together:
        assert pooled_runs.execute_side_by_side(several, lambda shares, work: seen.append(shares))
    agree(alone, together[0][0])
    digests = [[run.digest() for run in several] for _, several in together]
    assert digests[0] == digests[1]
    assert seen[-1] == [1.0] * 12
    assert any(0 < share < 1 for shares in seen for share in shares)


def test_a_run_that_reached_its_target_is_reported_as_finished(experiments: dict[str, Any]) -> None:
    early = experiment_files.with_changes(experiments["fedbuff"], ["until=40updates,acc=0.01", "evaluate_every=1"])
    _, several = created("x", {"early": early, "late": experiments["fedbuff"]}, [0])
    seen: list[list[float]] = []
    assert pooled_runs.execute_side_by_side(several, lambda shares, work: seen.append(shares))
    assert any(early == 1.0 and late < 1.0 for early, late in seen)


def test_interrupted_pooled_runs_are_completed_by_starting_again(experiments: dict[str, Any]) -> None:
    few = {name: experiments[name] for name in ("fedavg", "fedbuff")}
    (whole, uninterrupted), (stopped, several) = (created(name, few, [0]) for name in ("whole", "stopped"))
    assert pooled_runs.execute_side_by_side(uninterrupted)
    interrupts: list[int] = []  # a second Ctrl-C would stop at once

    def stop(shares: list[float], work: Any) -> None:
        if max(shares) > 0.3 and not interrupts:
            interrupts.append(1)
            os.kill(os.getpid(), signal.SIGINT)

    assert not pooled_runs.execute_side_by_side(several, stop)
    assert not all(run.complete for run in several)
    assert pooled_runs.execute_side_by_side(several)
    agree(whole, stopped)


def test_a_failing_run_does_not_stop_the_others(experiments: dict[str, Any], monkeypatch: Any) -> None:
    _, several = created("x", {name: experiments[name] for name in ("fedavg", "fedbuff")}, [0])
    finish = runs.OpenRun.finish

    def fail_for_fedavg(self: runs.OpenRun, outcome: Any) -> None:
        if "fedavg" in str(self.run.folder):
            raise OSError(28, "No space left on device")
        finish(self, outcome)

    monkeypatch.setattr(runs.OpenRun, "finish", fail_for_fedavg)
    with pytest.raises(runs.Unfinished, match=r"x/fedavg-seed0: .*No space left"):
        pooled_runs.execute_side_by_side(several)
    assert [run.complete for run in several] == [False, True]
