"""--dry-run: what would be run, printed as a file that can be run, and nothing made."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from command_line import TINY

from offbeat.experiment import build
from offbeat.experiment.spec import experiment_files
from offbeat.presets import load


def test_what_is_printed_can_be_run(offbeat, monkeypatch):
    told = offbeat("run", "quickstart", *TINY, "--set", "strategy=fedbuff", "--set", "strategy.k=2", "--dry-run")
    assert (told.status, told.err) == (0, "")
    assert list(Path().iterdir()) == []
    Path("again.yaml").write_text(told.out)
    assert offbeat("run", "again.yaml", "--out", "r").status == 0
    experiment = experiment_files.read_experiment(Path("r/experiment.yaml"))
    assert (experiment.clients, experiment.strategy.k, experiment.name) == (4, 2, "quickstart")


def test_nothing_heavy_is_built(offbeat, monkeypatch):
    def never(*_):
        raise AssertionError("built")

    monkeypatch.setattr(build, "setup", never)
    assert offbeat("run", "mnist", "--dry-run").status == 0  # whose files are not here
    assert offbeat("compare", "mnist", "--dry-run").status == 0


def test_a_comparison_tells_its_methods_and_seeds(offbeat):
    told = offbeat("compare", "quickstart", "--strategies", "fedavg,fedbuff", "--seeds", "2", "--dry-run")
    assert told.status == 0
    assert list(Path().iterdir()) == []
    head, fedavg, fedbuff, *rest = told.out.splitlines()
    assert head == "# 2 methods × 2 seeds (0, 1): 4 runs"
    assert fedavg == "#   fedavg: {name: fedavg}"
    assert fedbuff == "#   fedbuff: {name: fedbuff, k: 5}"
    assert experiment_files.parse_experiment("\n".join(rest)) == load("quickstart").experiment


def test_both_print_json(offbeat):
    told = json.loads(offbeat("run", "quickstart", "--dry-run", "--json").out)
    assert experiment_files.parse_experiment(yaml.safe_dump(told["experiment"])) == load("quickstart").experiment
    told = json.loads(offbeat("compare", "quickstart", "--seeds", "1", "--dry-run", "--json").out)
    assert told["seeds"] == [0]
    assert told["methods"]["fedavg"]["name"] == "fedavg"
