"""The newcomer's experiment: non-IID digits, twenty clients, a ten-fold spread of speeds, about a minute on two
cores.
"""

from __future__ import annotations

from dataclasses import replace

from offbeat.presets import Preset
from offbeat.presets.methods import digits
from offbeat.scenario.models import Mlp

# three that everybody knows, and the five papers: what fits into a minute
COMPARED = ("fedavg", "fedasync", "fedbuff", "orthofl", "aso_fed", "fedpsa", "fed_ogd", "fedcompass")


def quickstart() -> Preset:
    """Who wastes less time when the slowest client takes ten times as long as the fastest?"""
    preset = digits()
    # five times as quick to train as the CNN
    experiment = replace(preset.experiment, name="quickstart", model=Mlp(hidden=(64,)))
    summary = "non-IID digits, 20 clients, ten-fold spread of speeds: a small model"
    return replace(preset, summary=summary, experiment=experiment, compared=COMPARED)
