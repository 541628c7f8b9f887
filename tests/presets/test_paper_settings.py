"""The settings of presets are those of the papers."""

from __future__ import annotations

from operator import attrgetter

import pytest

from offbeat import presets

# preset -> setting -> value in the paper
PAPER_SETTINGS = {
    "orthofl/table2-mnist": {"clients": 10, "training.epochs": 5, "training.lr": 0.01, "partition.alpha": 0.1,
    "strategy.beta": 0.6},
    "orthofl/table2-cifar10": {"clients": 10, "training.lr": 0.01, "training.optimizer": "sgd"},
    "orthofl/table2-20news": {"clients": 20, "training.lr": 5e-5, "training.batch": 8, "training.optimizer": "adamw"},
    "orthofl/table2-har": {"clients": 21},
    "orthofl/table2-cifar100": {"clients": 100},
    "orthofl/fig7-cifar10-alpha0.01": {"partition.alpha": 0.01},
    "orthofl/fig8-epochs10": {"training.epochs": 10},
    "orthofl/motivation-60": {"clients": 2, "delays.means": (10.0, 60.0)},
    "aso_fed/fitrec-speed": {"clients": 30, "strategy.lam": 1.0, "network.low": 10.0, "network.high": 100.0,
    "training.epochs": 2},
    "aso_fed/air-quality": {"clients": 9, "strategy.lam": 1.0, "strategy.beta": 0.001, "strategy.lr": 0.001},
    "aso_fed/extrasensory": {"clients": 60, "strategy.lam": 0.8, "streaming.start": (0.1, 0.9)},
    "aso_fed/fashion-mnist": {"clients": 20, "strategy.lam": 0.5},
    "aso_fed/dropout-extrasensory-40": {"availability.share": 0.4},
    "fedpsa/table1-mnist": {"clients": 50, "partition.alpha": 0.1, "training.lr_decay": 0.999, "until.seconds": 864e3},
    "fedpsa/table2-cifar100-alpha0.5": {"partition.alpha": 0.5, "delays.low": 10, "delays.high": 500,
    "strategy.concurrency": 10},
    "fedpsa/table4-longtail-2500": {"delays.low": 50, "delays.high": 2500, "partition.alpha": 1.0},
    "fedpsa/table6-alpha0.1-p0.3": {"strategy.concurrency": 15, "strategy.buffer": 5, "strategy.queue": 50,
    "partition.alpha": 0.1},
    "fed_ogd/l1-cifar10": {"clients": 50, "delays.shares": (0.6, 0.2, 0.2), "training.batch": 8,
    "training.momentum": 0.1},
    "fed_ogd/l2-cifar100": {"partition.share": 0.8, "partition.main": 2, "strategy.lr_local": 0.01,
    "strategy.lr_global": 0.003},
    "fed_ogd/l1-ag_news": {"clients": 50, "partition.size": 2300, "partition.share": 0.95, "partition.main": 1},
    "fed_ogd/l3-tiny": {"model.depth": 34, "delays.shares": (0.2, 0.4, 0.4), "partition.main": 4, "survey.active": 0.2},
    "fedcompass/table1-mnist-class-m10-exp": {"clients": 10, "training.steps": 200, "strategy.q_min": 40,
    "delays.mean": 0.15},
    "fedcompass/table1-cifar10-dirichlet-m20-normal": {"training.lr": 0.1, "training.steps": 100, "strategy.q_min": 20,
    "delays.mean": 0.5},
    "fedcompass/table2-ixi-homo": {"clients": 3, "training.optimizer": "adamw", "training.batch": 2,
    "training.weight_decay": 0.01},
    "fedcompass/table2-isic-exp": {"clients": 6, "training.lr": 0.0005, "delays.mean": 1.5, "strategy.mu": 0.5,
    "strategy.q_max": 100},
}  # fmt: skip


@pytest.mark.parametrize("name", PAPER_SETTINGS)
def test_settings_are_those_of_the_paper(name):
    experiment = presets.load(name).experiment
    assert {setting: attrgetter(setting)(experiment) for setting in PAPER_SETTINGS[name]} == PAPER_SETTINGS[name]
