"""Counts of examples by client and class, and their heat map."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from handwritten_runs import write_run

from offbeat.core.errors import DataError
from offbeat.experiment import build, data_assignment
from offbeat.experiment.data_assignment import ClassCounts
from offbeat.experiment.spec.config import Experiment
from offbeat.results import figures, report
from offbeat.scenario.partition import Disjoint, Natural
from results import messages

HALVES = Experiment(data="digits", clients=2, partition=Disjoint())


def test_the_counts_are_those_of_the_clients_the_experiment_makes() -> None:
    held = data_assignment.count_classes(HALVES)
    counts = held.counts
    assert held.clients == [0, 1]
    assert counts.shape == (2, 10)
    assert (counts[0, :5] > 0).all()
    assert (counts[1, 5:] > 0).all()
    assert counts[0, 5:].sum() == counts[1, :5].sum() == 0
    clients = build.setup(HALVES).simulated_world.counts
    assert counts.sum(1).tolist() == [clients[0], clients[1]]


def test_data_without_classes_has_one_column() -> None:
    assert ClassCounts([0, 1], torch.tensor([[3], [4]])).class_labels() == ["all"]
    assert ClassCounts([0, 1], torch.tensor([[3, 0], [4, 1]])).class_labels() == ["0", "1"]


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
@pytest.mark.parametrize("classes", [3, 100])
def test_the_suffix_selects_the_format(tmp_path: Path, ending: str, start: bytes, classes: int) -> None:
    path = tmp_path / f"partition.{ending}"
    counts = ClassCounts([0, 5, 10, 15], torch.arange(4 * classes).reshape(4, classes))
    figures.save_heatmap(counts, path, "4 clients, 5 $")
    assert path.read_bytes().startswith(start)


def test_results_have_a_page_if_the_data_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    assert report.try_class_counts(run) is not None

    def gone(experiment: Experiment) -> ClassCounts:
        raise DataError("mnist is missing")

    monkeypatch.setattr(data_assignment, "count_classes", gone)
    assert report.try_class_counts(run) is None
    report.draw_figure_or_page(run, tmp_path / "page.html")
    assert "Curves" in (tmp_path / "page.html").read_text()


def test_data_without_owners_has_no_natural_clients() -> None:
    with pytest.raises(DataError, match=messages.NO_OWNERS):
        build.setup(replace(HALVES, partition=Natural()))


@pytest.mark.filterwarnings("error")
def test_a_long_name_leaves_room_for_the_heat_map(tmp_path):
    counts = ClassCounts([0, 1], torch.tensor([[3, 4], [5, 6]]), {0: "x" * 300, 1: "bern"})
    figures.save_heatmap(counts, tmp_path / "it.png")
