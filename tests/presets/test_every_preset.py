"""All presets of the papers can be built without data, are listed in the docs, and run.

Runs have a few updates. Synthetic data in the published shapes lets every preset run anywhere; if OFFBEAT_DATA has the
real files, one preset of each data set also runs on a part of them.
"""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest
from preset_runs import (
    PAPERS,
    SCALES,
    SHAPES,
    data_name,
    load_real,
    presets_by_data,
    run_briefly,
    subsample,
    synthetic_data,
)

from offbeat import presets
from offbeat.core.errors import ConfigError, DataError
from offbeat.core.strategies import REGISTRY
from offbeat.experiment import build
from offbeat.experiment.spec import experiment_files
from offbeat.experiment.spec.config import strategy_name
from presets import messages

TITLES = {
    "orthofl": "OrthoFL", "aso_fed": "ASO-Fed", "fedpsa": "FedPSA", "fed_ogd": "Fed-OGD", "fedcompass": "FedCompass",
}  # fmt: skip


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
            assert row.startswith(strategy_name(experiment)), (name, row)  # a variant is named after its method
            if experiment.strategy not in written:  # many presets share their methods
                text = experiment_files.to_yaml(experiment)
                assert experiment_files.parse_experiment(text) == experiment, (name, row)
            written.add(experiment.strategy)


def test_the_default_strategy_of_a_preset_is_the_papers_method():
    for name in PAPERS:
        paper = name.split("/")[0]
        own = "fedasync" if "motivation" in name else paper  # the study is about FedAsync
        assert strategy_name(presets.load(name).experiment) == own, name


def test_a_summary_names_the_paper_and_the_table_or_figure():
    summaries = {name: presets.load(name).summary for name in PAPERS}
    for name, summary in summaries.items():
        paper, what = name.split("/")
        assert summary.startswith((f"{TITLES[paper]} Table", f"{TITLES[paper]} Figure")), summary
        if what.startswith(("table", "fig")):  # Table 2 in its name, Table 2 in its summary
            number = what.removeprefix("table").removeprefix("fig")[0]
            assert number in summary.split(",")[0].split(";")[0], summary
    assert len(set(summaries.values())) == len(summaries)


def test_a_summary_has_the_number_of_clients():
    for name, scale in product(PAPERS, SCALES):
        preset = presets.load(name, scale)
        counts = re.findall(r"(\d+) (?:clients|users|areas|hospitals|centres)\b", preset.summary)
        assert all(int(count) == preset.experiment.clients for count in counts), (scale, preset.summary)
        assert counts or "two clients" in preset.summary, preset.summary


def test_the_quick_scale_keeps_the_methods_and_their_order():
    for name in PAPERS:
        paper, quick = presets.load(name), presets.load(name, "quick")
        assert list(paper.methods) == list(quick.methods), name
        assert type(paper.experiment.partition) is type(quick.experiment.partition), name
        assert type(paper.experiment.delays) is type(quick.experiment.delays), name
        assert quick.seeds == 1


def test_scales_belong_to_papers():
    assert presets.load("orthofl/table2-mnist") == presets.load("orthofl/table2-mnist", "paper")
    with pytest.raises(ConfigError, match=messages.ONE_SCALE):
        presets.load("quickstart", "quick")
    with pytest.raises(ConfigError, match=messages.UNKNOWN_SCALE):
        presets.load("orthofl/table2-mnist", "quik")
    with pytest.raises(ConfigError, match=messages.UNKNOWN_PRESET):
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


def test_the_reference_of_times_is_the_papers():
    for name, scale in product(PAPERS, SCALES):
        preset = presets.load(name, scale)
        if name.startswith("fedcompass/"):  # Table 3 uses the ratio of the other tables as its reference
            assert preset.reference == ("fedcompass-q0.2" if "table3" in name else "fedcompass")
            assert preset.reference in preset.methods
            fedcompass = presets.load("fedcompass/table1-mnist-class-m5-homo").methods["fedcompass"]
            reference = preset.methods[preset.reference]
            assert reference.q_min / reference.q_max == fedcompass.q_min / fedcompass.q_max, name
        elif "fig4" in name:  # a grid search has no FedAvg, so the paper's choice is the reference
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
def test_missing_data_is_reported_when_it_is_needed(name, file, tmp_path, monkeypatch):
    monkeypatch.setenv("OFFBEAT_DATA", str(tmp_path))
    monkeypatch.setenv("OFFBEAT_DOWNLOAD", "0")
    with pytest.raises(DataError, match=file):
        build.setup(presets.load(name).experiment)


# ---------------------------------------------------------------- runs


@pytest.mark.presets
@pytest.mark.parametrize("data", SHAPES)
def test_every_kind_of_quick_preset_runs(data):
    """Of presets that differ in one number only, the first and the last are run."""
    stand_in, kinds = synthetic_data(data), dict[str, list[str]]()
    for name in presets_by_data(PAPERS)[data]:
        kinds.setdefault(re.sub(r"\d[\d.]*$", "", name), []).append(name)
    for name in {name: None for kind in kinds.values() for name in (kind[0], kind[-1])}:
        run_briefly(presets.load(name, "quick").experiment, stand_in, updates=8)


TABLES = ("orthofl/table2-mnist", "aso_fed/fashion-mnist", "fedpsa/table1-mnist", "fed_ogd/l2-ag_news",
          "fedcompass/table1-mnist-class-m5-exp")  # fmt: skip
OTHERS = ("orthofl/fig5-mnist", "orthofl/fig8-beta", "aso_fed/dropout-air-quality-50", "fedpsa/table5-alpha0.1",
          "fedpsa/table6-alpha1-p0.1", "fed_ogd/fig6-cifar10", "fedcompass/table2-ixi-normal",
          "fedcompass/table3-mnist-m5-exp")  # fmt: skip


@pytest.mark.presets
@pytest.mark.parametrize("name", [*TABLES, *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)])
def test_every_method_of_a_table_runs(name):
    preset = presets.load(name, "quick")
    stand_in = synthetic_data(data_name(preset.experiment))
    for row in preset.methods:
        # a little more than a round of all clients; Table 5 is slow (large calibration batches) and has no rounds
        run_briefly(
            preset.with_strategy(row), stand_in, updates=6 if "table5" in name else preset.experiment.clients + 2
        )


@pytest.mark.presets
@pytest.mark.parametrize(
    "data", ["mnist", "fashion-mnist", "cifar10", "tiny-imagenet", "uci-har", "20news", "ag_news", "beijing-air"]
)
def test_a_quick_preset_of_each_data_set_runs_on_the_real_files(data):
    experiment = presets.load(presets_by_data(PAPERS)[data][0], "quick").experiment
    run_briefly(experiment, subsample(load_real(experiment)), updates=8)


def test_all_papers_have_presets_and_all_data_sets_have_shapes():
    assert {name.split("/")[0] for name in PAPERS} == set(TITLES) <= set(REGISTRY)
    assert set(presets_by_data(PAPERS)) == set(SHAPES)  # presets on other data would not be run
