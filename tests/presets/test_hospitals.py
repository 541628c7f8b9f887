"""Presets on the patients of real hospitals."""

from __future__ import annotations

import pytest
from preset_runs import load_real, run_briefly

from offbeat import presets
from offbeat.core.strategies import REGISTRY
from offbeat.scenario.partition import Natural


def test_all_methods_are_compared_if_the_data_has_classes():
    assert set(presets.load("heart-disease").methods) == set(REGISTRY)
    assert set(presets.load("tcga-brca").methods) == set(REGISTRY) - {"fedpac"}


@pytest.mark.parametrize(("name", "sites"), [("heart-disease", 4), ("tcga-brca", 6)])
def test_clients_are_the_sites_and_buffers_hold_half_of_them(name, sites):
    preset = presets.load(name)
    assert preset.experiment.clients == sites
    assert preset.experiment.partition == Natural()
    assert {preset.methods[method].k for method in ("fedbuff", "ca2fl", "fedfa")} == {sites // 2}
    assert preset.methods["fedpsa"].buffer == sites // 2


@pytest.mark.presets
@pytest.mark.parametrize("name", ["heart-disease", "tcga-brca"])
def test_every_method_trains_there(name):
    preset = presets.load(name)
    data = load_real(preset.experiment)
    for method in preset.methods:
        run_briefly(preset.with_strategy(method), data, updates=preset.experiment.clients + 2)
