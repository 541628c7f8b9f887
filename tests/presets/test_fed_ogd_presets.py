"""Fed-OGD's presets have the paper's numbers."""

from __future__ import annotations

import pytest
from made_up import check_stated

# preset -> setting -> what the paper (or spec/algorithms.md, section 7) says
STATED = {
    "fed_ogd/l1-cifar10": {"clients": 50, "delays.shares": (0.6, 0.2, 0.2), "training.batch": 8, "training.momentum": 0.1},
    "fed_ogd/l2-cifar100": {"partition.share": 0.8, "partition.main": 2, "strategy.lr_local": 0.01, "strategy.lr_global": 0.003},
    "fed_ogd/l3-tiny": {"model.depth": 34, "delays.shares": (0.2, 0.4, 0.4), "partition.main": 4, "survey.active": 0.2},
}  # fmt: skip


@pytest.mark.parametrize("name", STATED)
def test_settings_are_those_of_the_paper(name):
    check_stated(name, STATED[name])
