"""Data made up in the shape of a set that is not to be had."""

from __future__ import annotations

import pytest
import torch

from offbeat import presets
from offbeat.experiment.spec.config import name_of
from offbeat.scenario.data import DATASETS
from offbeat.scenario.data.built_in import STAND_IN_SHAPES, StandIn


@pytest.mark.parametrize("name", sorted(STAND_IN_SHAPES))
def test_a_stand_in_says_so_and_has_the_owners_of_its_set(name):
    data = StandIn(of=name).load()
    assert data.summary.startswith(f"stand-in for {name}: ")
    assert "says nothing about it" in data.summary
    assert (data.input_shape, data.num_groups) == (STAND_IN_SHAPES[name].inputs, STAND_IN_SHAPES[name].owners)
    assert data.outputs == STAND_IN_SHAPES[name].outputs


def test_it_is_a_function_of_its_settings():
    one, same, other = (StandIn(of="uci-har", seed=seed).load() for seed in (0, 0, 1))
    assert torch.equal(one.x_train, same.x_train)
    assert not torch.equal(one.x_train, other.x_train)


def test_every_set_of_a_quick_preset_has_one():
    used = {name_of("data", presets.load(name, "quick").experiment.data) for name in presets.names() if "/" in name}
    assert used <= STAND_IN_SHAPES.keys() <= DATASETS.keys()
