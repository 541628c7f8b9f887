"""Settings that are allowed and do not fit this world."""

from __future__ import annotations

import pytest
import torch

from offbeat import simulate
from offbeat.core.strategies.ca2fl import CA2FL
from offbeat.core.strategies.fedasync import FedAsync
from offbeat.core.strategies.fedbuff import FedBuff
from offbeat.core.strategies.fedpsa import FedPSA
from offbeat.experiment.spec import config
from offbeat.experiment.spec.config import Experiment


@pytest.mark.parametrize(
    ("strategy", "clients", "words"),
    [
        (FedBuff(), 4, "strategy.k = 10, its default, is more than the 4 clients that can be at work at once"),
        (FedBuff(k=5), 4, "strategy.k = 5 is more than the 4 clients"),
        (FedBuff(concurrency=3), 20, "strategy.k = 10, its default, is more than the 3 clients"),
        (CA2FL(concurrency=30), 9, "more than the 9 clients"),
        (FedPSA(), 1, "strategy.buffer = 5, its default, is more than the 1 client that"),
    ],
)
def test_a_buffer_larger_than_all_who_can_be_at_work_does_not_fit(strategy, clients, words):
    [line] = config.setting_warnings(Experiment(strategy=strategy, clients=clients))
    assert words in line


@pytest.mark.parametrize(
    ("strategy", "clients"), [(FedBuff(), 10), (FedBuff(k=4), 4), (FedBuff(k=3, concurrency=3), 20), (FedAsync(), 1)]
)
def test_what_makes_sense_is_not(strategy, clients):
    assert config.setting_warnings(Experiment(strategy=strategy, clients=clients)) == []


def test_a_simulation_says_so_too(caplog):
    pairs = [(torch.randn(8, 3), torch.arange(8) % 2) for _ in range(2)]
    simulate(torch.nn.Linear(3, 2), pairs, "fedbuff", delays=10.0, until="30s")
    assert [record.getMessage() for record in caplog.records] == [
        "FedBuff: " + config.setting_warnings(Experiment(strategy=FedBuff(), clients=2))[0]
    ]
