"""Fed-OGD's presets have the paper's numbers."""

from __future__ import annotations

import pytest
from preset_runs import SCALES

from offbeat import presets
from offbeat.core.protocol import LocalWork
from offbeat.core.strategies.gradma import Corrected
from offbeat.scenario.example_counts import ExampleCounts
from offbeat.scenario.simulated_world import SimulatedWorld


@pytest.mark.parametrize("scale", SCALES)
def test_response_times_do_not_depend_on_the_gradients_per_step(scale):
    """GradMA computes three gradients per step; the paper counts epochs."""
    preset = presets.load("fed_ogd/l1-cifar10", scale)
    rule = Corrected()
    assert rule.cost == 3
    world = SimulatedWorld(delays=preset.experiment.delays, counts=ExampleCounts.constant(50, 10), seed=0)
    for work in (LocalWork(rule=rule), LocalWork()):
        assert {world.time_job(client, 0, work, 10, 0.0).duration for client in range(50)} == {10.0, 30.0, 50.0}


def test_figure_6_varies_cache_and_projection():
    preset = presets.load("fed_ogd/fig6-cifar10", "quick")
    assert {name: m.project for name, m in preset.methods.items()} == {
        "fed_ogd": "conflict", "fed_ogd-no-cache": "conflict", "fed_ogd-always": "always",
    }  # fmt: skip
