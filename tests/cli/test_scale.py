"""offbeat run and compare --scale: the papers' presets in their own size, or quick."""

from __future__ import annotations

import json

from command_line import refused

from cli import messages
from offbeat.experiment.spec import experiment_files
from offbeat.experiment.spec.config import Experiment

# a quick preset on data that comes along, a few updates: what is left is that the scale arrives
SMALL = ["--set", "data=digits", "--set", "model=linear", "--until", "3updates", "--json"]


def test_a_papers_preset_runs_at_the_quick_scale(offbeat, tmp_path):
    given = offbeat("run", "orthofl/table2-mnist", "--scale", "quick", *SMALL, "--out", tmp_path / "run")
    assert given.status == 0, given
    experiment = experiment_files.read_experiment(tmp_path / "run" / "experiment.yaml")
    assert (experiment.name, experiment.training.steps) == ("orthofl/table2-mnist-quick", 20)


def test_a_comparison_takes_the_rows_of_the_table(offbeat, tmp_path, sequential_runs):
    rows = ["--strategies", "fedavg,fedcompass+M", "--seeds", 1, "--jobs", 1]
    preset = ["fedcompass/table1-mnist-class-m5-homo", "--scale", "quick"]
    given = offbeat("compare", *preset, *SMALL, *rows, "--out", tmp_path / "all")
    assert given.status == 0, given
    assert "fedcompass+M" in json.dumps(json.loads(given.out))
    file = tmp_path / "all" / "fedcompass+M-seed0" / "experiment.yaml"
    assert experiment_files.read_experiment(file).strategy.momentum


def test_without_its_data_a_preset_says_which_file_it_needs(offbeat, tmp_path, monkeypatch):
    monkeypatch.setenv("OFFBEAT_DATA", str(tmp_path))
    monkeypatch.setenv("OFFBEAT_DOWNLOAD", "0")
    refused(offbeat("run", "aso_fed/fitrec-speed"), messages.NO_FITREC)
    assert not (tmp_path / "runs").exists()


def test_a_file_has_no_scales(offbeat, tmp_path):
    experiment_files.write_experiment(tmp_path / "mine.yaml", Experiment())
    refused(offbeat("compare", tmp_path / "mine.yaml", "--scale", "paper"), messages.ONLY_PRESETS)
