"""The papers' experiments: they can all be built without data, have the papers' numbers, and run.

Runs are of a few updates. Data is made up in the published shape, so that every preset runs anywhere; where OFFBEAT_DATA
has the real files, one preset of each data set runs on some of those as well.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from itertools import product
from math import isfinite, prod
from pathlib import Path

import pytest
import torch

from offbeat import presets
from offbeat.client.survey import Survey
from offbeat.core.errors import ConfigError, DataError
from offbeat.core.strategies import REGISTRY
from offbeat.engines.until import Target, Until
from offbeat.experiment import build, files
from offbeat.experiment.config import Experiment, name_of, strategy_name
from offbeat.scenario.data import Dataset, load
from offbeat.scenario.delays import Constant, Devices, Exponential, Lognormal, Normal
from offbeat.scenario.partition import Classes

PAPERS = [name for name in presets.names() if "/" in name]
SCALES = ("paper", "quick")
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
                assert files.parse(files.dump(experiment)) == experiment, (name, row)
            written.add(experiment.strategy)


def test_a_preset_runs_its_papers_own_method_unless_told_otherwise():
    for name in PAPERS:
        paper = name.split("/")[0]
        own = "fedasync" if "motivation" in name else paper  # that study is of FedAsync
        assert strategy_name(presets.load(name).experiment) == own, name


def test_a_summary_names_the_paper_and_what_of_it():
    known = {"orthofl": "OrthoFL", "aso_fed": "ASO-Fed", "fedpsa": "FedPSA", "fed_ogd": "Fed-OGD", "fedcompass": "FedCompass"}
    told = {name: presets.load(name).summary for name in PAPERS}
    for name, summary in told.items():
        paper, what = name.split("/")
        assert summary.startswith((f"{known[paper]} Table", f"{known[paper]} Figure")), summary
        if what.startswith(("table", "fig")):  # Table 2 in its name, Table 2 in its summary
            number = what.removeprefix("table").removeprefix("fig")[0]
            assert number in summary.split(",")[0].split(";")[0], summary
    assert len(set(told.values())) == len(told)


def test_quick_keeps_the_methods_and_their_order():
    for name in PAPERS:
        paper, quick = presets.load(name), presets.load(name, "quick")
        assert list(paper.methods) == list(quick.methods), name
        assert type(paper.experiment.partition) is type(quick.experiment.partition), name
        assert type(paper.experiment.delays) is type(quick.experiment.delays), name
        assert quick.seeds == 1


def test_scales_belong_to_papers():
    assert presets.load("orthofl/table2-mnist") == presets.load("orthofl/table2-mnist", "paper")
    with pytest.raises(ConfigError, match="'quickstart' has one scale only"):
        presets.load("quickstart", "quick")
    with pytest.raises(ConfigError, match="unknown scale 'quik': did you mean 'quick'"):
        presets.load("orthofl/table2-mnist", "quik")
    with pytest.raises(ConfigError, match="unknown preset 'orthofl/table2-minst': did you mean 'orthofl/table2-mnist'"):
        presets.load("orthofl/table2-minst")


def test_the_docs_list_every_preset():
    text = (Path(__file__).parents[2] / "docs" / "presets.md").read_text()
    rows = "\n".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))  # the first cell of each
    listed = []
    for pattern in re.findall(r"`([^`]+)`", rows):
        parts = [part.split(",") for part in re.split(r"[{}]", pattern)]  # text and {choices} in turn; no comma outside
        listed += ["".join(chosen) for chosen in product(*parts)]
    assert sorted(listed) == sorted(PAPERS)


# ---------------------------------------------------------------- the papers' numbers

# preset -> setting -> what the paper (or spec/algorithms.md, section 7) says
STATED = {
    "orthofl/table2-mnist": {"clients": 10, "training.epochs": 5, "training.lr": 0.01, "partition.alpha": 0.1, "strategy.beta": 0.6},
    "orthofl/table2-cifar10": {"clients": 10, "training.lr": 0.01, "training.optimizer": "sgd"},
    "orthofl/table2-20news": {"clients": 20, "training.lr": 5e-5, "training.batch": 8, "training.optimizer": "adamw"},
    "orthofl/table2-har": {"clients": 21},
    "orthofl/table2-cifar100": {"clients": 100},
    "orthofl/fig7-cifar10-alpha0.01": {"partition.alpha": 0.01},
    "orthofl/fig8-epochs10": {"training.epochs": 10},
    "orthofl/motivation-60": {"clients": 2, "delays.means": (10.0, 60.0)},
    "aso_fed/fitrec-speed": {"clients": 30, "strategy.lam": 1.0, "network.low": 10.0, "network.high": 100.0, "training.epochs": 2},
    "aso_fed/air-quality": {"clients": 9, "strategy.lam": 1.0, "strategy.beta": 0.001, "strategy.lr": 0.001},
    "aso_fed/extrasensory": {"clients": 60, "strategy.lam": 0.8, "streaming.rate": (0.0005, 0.001)},
    "aso_fed/fashion-mnist": {"clients": 20, "strategy.lam": 0.5},
    "aso_fed/dropout-extrasensory-40": {"availability.share": 0.4},
    "fedpsa/table1-mnist": {"clients": 50, "partition.alpha": 0.1, "training.lr_decay": 0.999, "until.seconds": 864e3},
    "fedpsa/table2-cifar100-alpha0.5": {"partition.alpha": 0.5, "delays.low": 10, "delays.high": 500, "strategy.concurrency": 10},
    "fedpsa/table4-longtail-2500": {"delays.low": 50, "delays.high": 2500, "partition.alpha": 1.0},
    "fedpsa/table6-alpha0.1-p0.3": {"strategy.concurrency": 15, "strategy.buffer": 5, "strategy.queue": 50, "partition.alpha": 0.1},
    "fed_ogd/l1-cifar10": {"clients": 50, "delays.shares": (0.6, 0.2, 0.2), "training.batch": 8, "training.momentum": 0.1},
    "fed_ogd/l2-cifar100": {"partition.share": 0.8, "partition.main": 2, "strategy.lr_local": 0.01, "strategy.lr_global": 0.003},
    "fed_ogd/l3-tiny": {"model.depth": 34, "delays.shares": (0.2, 0.4, 0.4), "partition.main": 4, "survey.active": 0.2},
    "fedcompass/table1-mnist-class-m10-exp": {"clients": 10, "training.steps": 200, "strategy.q_min": 40, "delays.mean": 0.15},
    "fedcompass/table1-cifar10-dirichlet-m20-normal": {"training.lr": 0.1, "training.steps": 100, "strategy.q_min": 20, "delays.mean": 0.5},
    "fedcompass/table2-ixi-homo": {"clients": 3, "training.optimizer": "adamw", "training.batch": 2, "training.steps": 50},
    "fedcompass/table2-isic-exp": {"clients": 6, "training.lr": 0.0005, "delays.mean": 1.5, "strategy.mu": 0.5, "strategy.q_max": 100},
}  # fmt: skip


@pytest.mark.parametrize("name", STATED)
def test_settings_are_those_of_the_paper(name):
    experiment = presets.load(name).experiment
    for setting, value in STATED[name].items():
        found = experiment
        for part in setting.split("."):
            found = getattr(found, part)
        assert found == value, setting


def test_orthofl_runs_as_long_as_five_hundred_updates_take():
    """A device answers after m + s phi(m/s) seconds on average. The nine: 96.2 + 135.6 × 0.3101 = 138.3, 904.1 + 222.2 × 0.0001
    = 904.2, 360.2 + 103.5 × 0.0009 = 360.3, 276.6 + 187.2 × 0.1339 = 301.7, 150.2 + 210.3 × 0.3091 = 215.2, 161.4 + 194.4 × 0.2826
    = 216.3, 177.2 + 209.8 × 0.2792 = 235.8, 106.3 + 32.7 × 0.0020 = 106.3, 385.6 + 111.9 × 0.0011 = 385.7. The mean of their
    inverses is 0.004437, so ten clients send 500 updates in 500 / 0.04437 = 11,268 s."""
    assert presets.load("orthofl/table2-mnist").experiment.until.seconds == pytest.approx(11_268, abs=10)


def test_times_are_relative_to_what_the_paper_calls_one():
    for name, scale in product(PAPERS, SCALES):
        preset = presets.load(name, scale)
        if name.startswith("fedcompass/"):  # its Table 3 takes the ratio of its other tables
            assert preset.reference == ("fedcompass-q0.2" if "table3" in name else "fedcompass")
            assert preset.reference in preset.methods
            reference, own = preset.methods[preset.reference], presets.load("fedcompass/table1-mnist-class-m5-homo").methods["fedcompass"]
            assert reference.q_min / reference.q_max == own.q_min / own.q_max, name
        else:
            assert preset.reference == "fedavg"


def test_fedcompass_targets_speeds_and_partitions():
    target = {name: presets.load(f"fedcompass/{name}").experiment.target for name in ("table1-cifar10-class-m5-homo", "table2-ixi-exp")}
    assert list(target.values()) == [Target("acc", 0.6), Target("dice", 0.98)]
    laws = [presets.load(f"fedcompass/table1-mnist-class-m5-{law}").experiment for law in ("homo", "normal", "exp")]
    assert [type(e.delays) for e in laws] == [Constant, Normal, Exponential]
    assert {e.delays.unit for e in laws} == {"step"}
    assert laws[0].partition == Classes(fewest=5, most=6)
    assert presets.load("fedcompass/table1-mnist-class-m20-exp").experiment.partition == Classes(fewest=3, most=5)


def test_methods_are_set_as_the_papers_say():
    ortho = presets.load("orthofl/table2-cifar100").methods
    assert list(ortho) == ["fedavg", "fedprox", "fedadam", "fedasync", "fedbuff", "ca2fl", "orthofl"]
    assert (ortho["fedavg"].sample, ortho["fedasync"].alpha, ortho["fedasync"].rho) == (10, 0.6, 0.0)
    aso = presets.load("aso_fed/fashion-mnist").methods
    assert (aso["fedavg"].sample, aso["fedasync"].work.lr) == (0.2, 0.1)
    assert (aso["aso_fed-D"].dynamic_step, aso["aso_fed-F"].feature) == (False, "off")
    psa = presets.load("fedpsa/table1-mnist").methods
    assert (psa["fedavg"].sample, psa["fedbuff"].concurrency, psa["fedpac"].lr) == (0.2, 10, None)
    assert "fedpac" not in presets.load("fedpsa/table1-fmnist").methods  # one layer has no head and body
    compass = presets.load("fedcompass/table1-mnist-class-m20-homo").methods
    assert (compass["fedbuff"].k, compass["fedat"].ratio, compass["fedavgm"].mu) == (5, 2.0, 0.9)
    assert (compass["fedcompass+M"].momentum, compass["fedcompass+N"].normalized) == (True, True)
    # Table 3 at m = 5, Qmax = 200: 0.05 × 200 = 10, …, 1.0 × 200 = 200
    ratios = presets.load("fedcompass/table3-mnist-m5-homo").methods
    assert [m.q_min for name, m in ratios.items() if name.startswith("fedcompass")] == [10, 20, 40, 80, 120, 160, 200]


def test_laws_of_figure_6_have_the_mean_of_the_devices():
    # the mean of the nine means: 2617.821 / 9 = 290.869
    law = presets.load("orthofl/fig6-lognormal").experiment.delays
    assert isinstance(law, Lognormal)
    assert law.mean == pytest.approx(290.869, abs=1e-3)
    assert presets.load("orthofl/fig6-halfnormal").experiment.delays.mean == pytest.approx(290.869, abs=1e-3)
    assert isinstance(presets.load("orthofl/table2-mnist").experiment.delays, Devices)


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

# data set -> (input shape, classes or number of targets, natural owners), as published or as quick presets make it
MADE = {
    "mnist": ((1, 28, 28), 10, 0),
    "fashion-mnist": ((1, 28, 28), 10, 0),
    "cifar10": ((3, 32, 32), 10, 0),
    "cifar100": ((3, 32, 32), 100, 0),
    "tiny-imagenet": ((3, 64, 64), 20, 0),
    "uci-har": ((9, 128), 6, 21),
    "isic2019": ((3, 32, 32), 8, 6),
    "20news": ((100,), 20, 0),
    "ag_news": ((32,), 4, 0),
    "fitrec": ((30, 3), 1, 30),
    "beijing-air": ((48, 7), 6, 12),
    "extrasensory": ((225,), 51, 60),
    "ixi": ((1, 16, 20, 16), 2, 3),
}
VALUES = 3_000_000  # of all inputs of a made-up data set, at most


def made(name: str) -> Dataset:
    shape, outputs, owners = MADE[name]
    train, test = min(2000, VALUES // prod(shape)), max(12, min(60, VALUES // 50 // prod(shape)))
    draw = torch.Generator().manual_seed(0)
    n = train + test
    x = torch.randint(1, 5000, (n, *shape), generator=draw) if name in ("20news", "ag_news") else torch.randn(n, *shape, generator=draw)
    classes, task, y = outputs, None, torch.arange(n) % outputs
    if name == "ixi":
        task, y = "segmentation", torch.randint(0, 2, (n, *shape[1:]), generator=draw)
    elif name == "extrasensory":
        classes, task, y = None, "multilabel", torch.randint(0, 2, (n, outputs), generator=draw).float()
    elif name in ("fitrec", "beijing-air"):
        classes, task, y = None, "regression", torch.rand(n, outputs, generator=draw).squeeze(1)
    owned = {}
    if owners:
        owner = torch.arange(n) // 2 % owners
        owned = {"groups": owner[:train], "test_groups": owner[train:], "group_names": tuple(map(str, range(owners)))}
    return Dataset(name, x[:train], y[:train], x[train:], y[train:], num_classes=classes, task=task, **owned)


def some(data: Dataset) -> Dataset:
    """Of a real data set every so many examples."""
    few, fewer = len(data.x_train) // 2000 or 1, len(data.x_test) // 200 or 1
    return replace(
        data, x_train=data.x_train[::few], y_train=data.y_train[::few], x_test=data.x_test[::fewer], y_test=data.y_test[::fewer],
        groups=None if data.groups is None else data.groups[::few],
        test_groups=None if data.test_groups is None else data.test_groups[::fewer],
    )  # fmt: skip


def data_name(experiment: Experiment) -> str:
    return name_of("data", experiment.data)


def short(experiment: Experiment, data: Dataset, updates: int) -> None:
    """A few updates of two steps each, from the clients' data to the survey at the end."""
    training = replace(experiment.training, steps=2, epochs=None, batch=min(8, experiment.training.batch))
    experiment = replace(experiment, data=data, training=training, until=Until(updates=updates), survey=Survey(examples=5))
    outcome = build.engine(build.setup(experiment), experiment).run()
    assert (outcome.reason, outcome.updates) == ("updates", updates)
    assert all(isfinite(value) for key, value in outcome.metrics.items() if "/" not in key)


def by_data(names: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(data_name(presets.load(name, "quick").experiment), []).append(name)
    return found


@pytest.mark.presets
@pytest.mark.parametrize("data", MADE)
def test_every_quick_preset_runs(data):
    stand_in = made(data)
    for name in by_data(PAPERS)[data]:
        short(presets.load(name, "quick").experiment, stand_in, updates=8)


@pytest.mark.presets
@pytest.mark.parametrize(
    "name",
    [
        "orthofl/table2-mnist", "orthofl/fig5-mnist", "orthofl/fig8-beta", "aso_fed/fashion-mnist", "aso_fed/dropout-air-quality-50",
        "fedpsa/table1-mnist", "fedpsa/table5-alpha0.1", "fedpsa/table6-alpha1-p0.1", "fed_ogd/l2-ag_news", "fed_ogd/fig6-cifar10",
        "fedcompass/table1-mnist-class-m5-exp", "fedcompass/table2-ixi-normal", "fedcompass/table3-mnist-m5-exp",
    ],
)  # fmt: skip
def test_every_method_of_a_table_runs(name):
    preset = presets.load(name, "quick")
    stand_in = made(data_name(preset.experiment))
    for row in preset.methods:
        # a round of everybody and a little; the comparison of large calibration batches takes time and has no rounds
        short(preset.with_strategy(row), stand_in, updates=6 if "table5" in name else preset.experiment.clients + 2)


@pytest.mark.presets
@pytest.mark.parametrize("data", ["mnist", "fashion-mnist", "cifar10", "tiny-imagenet", "uci-har", "20news", "ag_news", "beijing-air"])
def test_a_quick_preset_of_each_data_set_runs_on_the_real_files(data):
    given = os.environ.get("OFFBEAT_DATA")
    if not given or not (Path(given) / data).is_dir():
        pytest.skip(f"OFFBEAT_DATA does not point at {data}: the real files were not read")
    experiment = presets.load(by_data(PAPERS)[data][0], "quick").experiment
    short(experiment, some(load(experiment.data)), updates=8)


def test_all_papers_are_there():
    assert {name.split("/")[0] for name in PAPERS} == set(OWN) <= set(REGISTRY)
    assert set(by_data(PAPERS)) == set(MADE)  # a preset on other data would not be run
