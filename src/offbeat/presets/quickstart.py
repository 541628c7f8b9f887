"""The newcomer's experiment: non-IID digits, twenty clients, ten-fold spread of speeds; a minute on two cores."""

from __future__ import annotations

from dataclasses import replace

from offbeat.presets import Preset
from offbeat.presets.method_settings import digits
from offbeat.scenario.models import Mlp

# three that everybody knows, and the five papers: what fits into a minute
COMPARED = ("fedavg", "fedasync", "fedbuff", "orthofl", "aso_fed", "fedpsa", "fed_ogd", "fedcompass")


def quickstart() -> Preset:
    """Who wastes less time when the slowest client takes ten times as long as the fastest?"""
    preset = digits()
    summary = "non-IID digits, 20 clients, ten-fold spread of speeds: a small model"
    small = Mlp(hidden=(64,))  # five times as quick to train as the CNN
    return replace(preset.varied(summary, name="quickstart", model=small), compared=COMPARED)
