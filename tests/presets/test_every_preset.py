"""The papers' experiments, all of them: they can be built without data, are listed in the docs, and run.

Runs are of a few updates. Data is made up in the published shape, so that every preset runs anywhere; where
OFFBEAT_DATA has the real files, one preset of each data set runs on some of those as well.
"""

from __future__ import annotations

import os
import re
from itertools import product
from pathlib import Path

import pytest
from made_up import MADE, PAPERS, SCALES, by_data, data_name, made, short, some

from offbeat import presets
from offbeat.core.errors import ConfigError, DataError
from offbeat.core.strategies import REGISTRY
from offbeat.experiment import build
from offbeat.experiment.spec import experiment_files
from offbeat.experiment.spec.config import strategy_name
from offbeat.scenario.data import load

OWN = ("orthofl", "aso_fed", "fedpsa", "fed_ogd", "fedcompass")


# ---------------------------------------------------------------- values


@pytest.mark.parametrize("scale", SCALES)
def test_every_preset_is_built_and_written_without_data(scale, tmp_path, monkeypatch):
    monkeypatch.setenv("OFFBEAT_DATA", str(tmp_path / "nothing"))
    written = set()
    for name in PAPERS:
        preset = presets.load(name, scale)
        assert preset.experiment.name.startswith(name)
        for row in preset.methods:
            experiment = preset.with_strategy(row)
            assert row.startswith(strategy_name(experiment)), (name, row)  # a variant is called after its method
            if experiment.strategy not in written:  # writing each takes a while, and many presets share their methods
                assert experiment_files.parse_experiment(experiment_files.to_yaml(experiment)) == experiment, (
                    name,
                    row,
                )
            written.add(experiment.strategy)


def test_a_preset_runs_its_papers_own_method_unless_told_otherwise():
    for name in PAPERS:
        paper = name.split("/")[0]
        own = "fedasync" if "motivation" in name else paper  # that study is of FedAsync
        assert strategy_name(presets.load(name).experiment) == own, name


def test_a_summary_names_the_paper_and_what_of_it():
    known = {
        "orthofl": "OrthoFL",
        "aso_fed": "ASO-Fed",
        "fedpsa": "FedPSA",
        "fed_ogd": "Fed-OGD",
        "fedcompass": "FedCompass",
    }
    told = {name: presets.load(name).summary for name in PAPERS}
    for name, summary in told.items():
        paper, what = name.split("/")
        assert summary.startswith((f"{known[paper]} Table", f"{known[paper]} Figure")), summary
        if what.startswith(("table", "fig")):  # Table 2 in its name, Table 2 in its summary
            number = what.removeprefix("table").removeprefix("fig")[0]
            assert number in summary.split(",")[0].split(";")[0], summary
    assert len(set(told.values())) == len(told)


def test_a_summary_tells_the_true_number_of_clients():
    for name, scale in product(PAPERS, SCALES):
        preset = presets.load(name, scale)
        told = re.findall(r"(\d+) (?:clients|users|areas|hospitals|centres)\b", preset.summary)
        assert all(int(count) == preset.experiment.clients for count in told), (scale, preset.summary)
        assert told or "two clients" in preset.summary, preset.summary


def test_quick_keeps_the_methods_and_their_order():
    for name in PAPERS:
        paper, quick = presets.load(name), presets.load(name, "quick")
        assert list(paper.methods) == list(quick.methods), name
        assert type(paper.experiment.partition) is type(quick.experiment.partition), name
        assert type(paper.experiment.delays) is type(quick.experiment.delays), name
        assert quick.seeds == 1


def test_scales_belong_to_papers():
    assert presets.load("orthofl/table2-mnist") == presets.load("orthofl/table2-mnist", "paper")
    with pytest.raises(ConfigError, match="'quickstart' has only one scale"):
        presets.load("quickstart", "quick")
    with pytest.raises(ConfigError, match="unknown scale 'quik': did you mean 'quick'"):
        presets.load("orthofl/table2-mnist", "quik")
    with pytest.raises(ConfigError, match="unknown preset 'orthofl/table2-minst': did you mean 'orthofl/table2-mnist'"):
        presets.load("orthofl/table2-minst")


def test_the_docs_list_every_preset():
    text = (Path(__file__).parents[2] / "docs" / "presets.md").read_text()
    # the first cell of each
    rows = "\n".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))
    listed = []
    for pattern in re.findall(r"`([^`]+)`", rows):
        parts = [part.split(",") for part in re.split(r"[{}]", pattern)]  # text and {choices} in turn; no comma outside
        listed += ["".join(chosen) for chosen in product(*parts)]
    assert sorted(listed) == sorted(PAPERS)


def test_times_are_relative_to_what_the_paper_calls_one():
    for name, scale in product(PAPERS, SCALES):
        preset = presets.load(name, scale)
        if name.startswith("fedcompass/"):  # its Table 3 takes the ratio of its other tables
            assert preset.reference == ("fedcompass-q0.2" if "table3" in name else "fedcompass")
            assert preset.reference in preset.methods
            reference, own = (
                preset.methods[preset.reference],
                presets.load("fedcompass/table1-mnist-class-m5-homo").methods["fedcompass"],
            )
            assert reference.q_min / reference.q_max == own.q_min / own.q_max, name
        elif "fig4" in name:  # a grid search has no FedAvg: the paper's own choice
            assert preset.methods[preset.reference] == preset.experiment.strategy
        else:
            assert preset.reference == "fedavg"


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("orthofl/table2-cifar100", "cifar100"),
        ("orthofl/table2-20news", "20news"),
        ("aso_fed/fitrec-heart", "endomondoHR_proper.json"),
        ("aso_fed/extrasensory", "extrasensory"),
        ("aso_fed/air-quality", "beijing_17_18_aq.csv"),
        ("fedcompass/table2-ixi-homo", "ixi"),
        ("fedcompass/table2-isic-homo", "train_test_split"),
    ],
)
def test_a_data_set_that_is_not_there_is_asked_for_when_it_is_needed(name, file, tmp_path, monkeypatch):
    monkeypatch.setenv("OFFBEAT_DATA", str(tmp_path))
    monkeypatch.setenv("OFFBEAT_DOWNLOAD", "0")
    with pytest.raises(DataError, match=file):
        build.setup(presets.load(name).experiment)


# ---------------------------------------------------------------- runs


@pytest.mark.presets
@pytest.mark.parametrize("data", MADE)
def test_every_kind_of_quick_preset_runs(data):
    """Of those that differ in one number only, 10 to 50 % of dropouts say, the first and the last."""
    stand_in, kinds = made(data), dict[str, list[str]]()
    for name in by_data(PAPERS)[data]:
        kinds.setdefault(re.sub(r"\d[\d.]*$", "", name), []).append(name)
    for name in {name: None for kind in kinds.values() for name in (kind[0], kind[-1])}:
        short(presets.load(name, "quick").experiment, stand_in, updates=8)


TABLES = ("orthofl/table2-mnist", "aso_fed/fashion-mnist", "fedpsa/table1-mnist", "fed_ogd/l2-ag_news",
          "fedcompass/table1-mnist-class-m5-exp")  # fmt: skip
OTHERS = ("orthofl/fig5-mnist", "orthofl/fig8-beta", "aso_fed/dropout-air-quality-50", "fedpsa/table5-alpha0.1",
          "fedpsa/table6-alpha1-p0.1", "fed_ogd/fig6-cifar10", "fedcompass/table2-ixi-normal",
          "fedcompass/table3-mnist-m5-exp")  # fmt: skip


@pytest.mark.presets
@pytest.mark.parametrize("name", [*TABLES, *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)])
def test_every_method_of_a_table_runs(name):
    preset = presets.load(name, "quick")
    stand_in = made(data_name(preset.experiment))
    for row in preset.methods:
        # a round of everybody and a little; the comparison of large calibration batches takes time and has no rounds
        short(preset.with_strategy(row), stand_in, updates=6 if "table5" in name else preset.experiment.clients + 2)


@pytest.mark.presets
@pytest.mark.parametrize(
    "data", ["mnist", "fashion-mnist", "cifar10", "tiny-imagenet", "uci-har", "20news", "ag_news", "beijing-air"]
)
def test_a_quick_preset_of_each_data_set_runs_on_the_real_files(data):
    given = os.environ.get("OFFBEAT_DATA")
    if not given or not (Path(given) / data).is_dir():
        pytest.skip(f"OFFBEAT_DATA does not point at {data}: the real files were not read")
    experiment = presets.load(by_data(PAPERS)[data][0], "quick").experiment
    short(experiment, some(load(experiment.data)), updates=8)


def test_all_papers_are_there():
    assert {name.split("/")[0] for name in PAPERS} == set(OWN) <= set(REGISTRY)
    assert set(by_data(PAPERS)) == set(MADE)  # a preset on other data would not be run
