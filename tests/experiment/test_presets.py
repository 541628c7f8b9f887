"""Tests of presets."""

from __future__ import annotations

import pytest

from experiment import messages
from offbeat import presets
from offbeat.core.errors import ConfigError
from offbeat.core.strategies import REGISTRY
from offbeat.experiment.spec.config import Experiment
from offbeat.presets import Preset


@pytest.mark.parametrize("name", presets.names())
def test_a_preset_has_a_summary_and_known_methods(name):
    preset = presets.load(name)
    assert preset.summary
    assert preset.seeds >= 1
    for method, strategy in preset.methods.items():
        assert type(strategy) in REGISTRY.values()
        assert method.startswith(next(name for name, cls in REGISTRY.items() if cls is type(strategy)))


def test_quickstart_compares_fedavg_first_with_tenfold_delays():
    preset = presets.load("quickstart")
    assert preset.experiment.delays.high == 10 * preset.experiment.delays.low
    assert next(iter(preset.methods)) == "fedavg"
    assert preset.experiment.target is not None


def test_methods_have_the_settings_of_the_preset_or_defaults():
    own = REGISTRY["fedbuff"](k=7)
    preset = Preset("a test", Experiment(clients=3), {"fedbuff": own})
    assert preset.with_strategy("fedbuff") == Experiment(clients=3, strategy=own)
    assert preset.with_strategy("fedavg") == Experiment(clients=3, strategy=REGISTRY["fedavg"]())
    with messages.expect(messages.UNKNOWN_STRATEGY, error=ConfigError):
        preset.with_strategy("fedbuf")
    with messages.expect(messages.UNKNOWN_PRESET, error=ConfigError):
        presets.load("quikstart")
