"""Who holds what, drawn for the page of a comparison and for a paper."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from drawn import told

from offbeat.core.errors import DataError
from offbeat.experiment import build, data_assignment, partition_heatmap
from offbeat.experiment.partition_heatmap import Held
from offbeat.experiment.spec.config import Experiment
from offbeat.results import pictures
from offbeat.scenario.partition import Disjoint, Natural

HALVES = Experiment(data="digits", clients=2, partition=Disjoint())


def test_the_counts_are_those_of_the_clients_the_experiment_makes() -> None:
    held = data_assignment.held(HALVES)
    counts = held.counts
    assert held.clients == [0, 1]
    assert counts.shape == (2, 10)
    assert (counts[0, :5] > 0).all()
    assert (counts[1, 5:] > 0).all()
    assert counts[0, 5:].sum() == counts[1, :5].sum() == 0
    clients = build.setup(HALVES).surroundings.counts
    assert counts.sum(1).tolist() == [clients[0], clients[1]]


def test_clients_without_classes_are_drawn_by_their_sizes() -> None:
    assert partition_heatmap.columns(torch.tensor([[3], [4]])) == ["all"]
    assert partition_heatmap.columns(torch.tensor([[3, 0], [4, 1]])) == ["0", "1"]


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
@pytest.mark.parametrize("classes", [3, 100])
def test_a_picture_for_a_paper_in_the_format_of_its_name(
    tmp_path: Path, ending: str, start: bytes, classes: int
) -> None:
    path = tmp_path / f"partition.{ending}"
    partition_heatmap.save(Held([0, 5, 10, 15], torch.arange(4 * classes).reshape(4, classes)), path, "4 clients, 5 $")
    assert path.read_bytes().startswith(start)


def test_results_have_their_page_when_the_data_is_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = told(tmp_path / "run")
    assert pictures.who_holds_what(run) is not None

    def gone(experiment: Experiment) -> Held:
        raise DataError("mnist is missing")

    monkeypatch.setattr(data_assignment, "held", gone)
    assert pictures.who_holds_what(run) is None
    pictures.draw(run, tmp_path / "page.html")
    assert "Curves" in (tmp_path / "page.html").read_text()


def test_data_without_owners_has_no_natural_clients() -> None:
    with pytest.raises(DataError, match="natural needs data whose examples have owners"):
        build.setup(replace(HALVES, partition=Natural()))


@pytest.mark.filterwarnings("error")
def test_a_name_of_any_length_leaves_room_for_the_picture(tmp_path):
    partition_heatmap.save(
        partition_heatmap.Held([0, 1], torch.tensor([[3, 4], [5, 6]]), {0: "x" * 300, 1: "bern"}), tmp_path / "it.png"
    )
