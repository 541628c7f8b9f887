"""Tests of warnings about valid settings that do not fit a world."""

from __future__ import annotations

import pytest
import torch

from experiment import messages
from offbeat import simulate
from offbeat.core.strategies.fedasync import FedAsync
from offbeat.core.strategies.fedbuff import FedBuff
from offbeat.experiment.spec import config
from offbeat.experiment.spec.config import Experiment


@pytest.mark.parametrize(("strategy", "clients", "words"), messages.SETTING_WARNINGS)
def test_a_buffer_larger_than_the_active_clients_gives_a_warning(strategy, clients, words):
    [line] = config.setting_warnings(Experiment(strategy=strategy, clients=clients))
    assert words in line


@pytest.mark.parametrize(
    ("strategy", "clients"), [(FedBuff(), 10), (FedBuff(k=4), 4), (FedBuff(k=3, concurrency=3), 20), (FedAsync(), 1)]
)
def test_suitable_settings_give_no_warning(strategy, clients):
    assert config.setting_warnings(Experiment(strategy=strategy, clients=clients)) == []


def test_simulate_logs_the_warning(caplog):
    pairs = [(torch.randn(8, 3), torch.arange(8) % 2) for _ in range(2)]
    simulate(torch.nn.Linear(3, 2), pairs, "fedbuff", delays=10.0, until="30s")
    [line] = config.setting_warnings(Experiment(strategy=FedBuff(), clients=2))
    assert caplog.messages == [f"FedBuff: {line}"]
