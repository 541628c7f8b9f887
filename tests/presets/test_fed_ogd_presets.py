"""Fed-OGD's presets have the paper's numbers."""

from __future__ import annotations

import pytest
from preset_runs import SCALES, check_settings

from offbeat import presets
from offbeat.core.protocol import LocalWork
from offbeat.core.strategies.gradma import Corrected
from offbeat.scenario.example_counts import ExampleCounts
from offbeat.scenario.simulated_world import SimulatedWorld

# preset -> setting -> value in the paper
PAPER_SETTINGS = {
    "fed_ogd/l1-cifar10": {"clients": 50, "delays.shares": (0.6, 0.2, 0.2), "training.batch": 8,
    "training.momentum": 0.1},
    "fed_ogd/l2-cifar100": {"partition.share": 0.8, "partition.main": 2, "strategy.lr_local": 0.01,
    "strategy.lr_global": 0.003},
    "fed_ogd/l1-ag_news": {"clients": 50, "partition.size": 2300, "partition.share": 0.95, "partition.main": 1},
    "fed_ogd/l3-tiny": {"model.depth": 34, "delays.shares": (0.2, 0.4, 0.4), "partition.main": 4, "survey.active": 0.2},
}  # fmt: skip


@pytest.mark.parametrize("name", PAPER_SETTINGS)
def test_settings_are_those_of_the_paper(name):
    check_settings(name, PAPER_SETTINGS[name])


@pytest.mark.parametrize("scale", SCALES)
def test_response_times_do_not_depend_on_the_gradients_per_step(scale):
    """GradMA computes three gradients per step; the paper counts epochs."""
    preset = presets.load("fed_ogd/l1-cifar10", scale)
    rule = Corrected()
    assert rule.cost == 3
    world = SimulatedWorld(delays=preset.experiment.delays, counts=ExampleCounts.constant(50, 10), seed=0)
    took = {world.time_job(client, 0, LocalWork(rule=rule), 10, 0.0).duration for client in range(50)}
    assert (
        took == {10.0, 30.0, 50.0} == {world.time_job(client, 0, LocalWork(), 10, 0.0).duration for client in range(50)}
    )


def test_figure_6_varies_cache_and_projection():
    preset = presets.load("fed_ogd/fig6-cifar10", "quick")
    assert {name: m.project for name, m in preset.methods.items()} == {
        "fed_ogd": "conflict", "fed_ogd-no-cache": "conflict", "fed_ogd-always": "always",
    }  # fmt: skip
