"""Named experiments: functions that return a value; variants change a field or two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from offbeat.core.errors import unknown
from offbeat.core.strategies import find
from offbeat.experiment.config import Experiment


@dataclass(frozen=True)
class Preset:
    """An experiment, and the settings its methods have there."""

    summary: str
    experiment: Experiment
    methods: Mapping[str, Any] = field(default_factory=dict)  # strategy name -> strategy, in the order of a table
    seeds: int = 3

    def with_strategy(self, name: str) -> Experiment:
        """The experiment with another method, in the preset's own settings where it has some."""
        return replace(self.experiment, strategy=self.methods[name] if name in self.methods else find(name)())


def _registry() -> dict[str, Callable[[], Preset]]:
    from offbeat.presets.methods import digits, mnist
    from offbeat.presets.quickstart import quickstart

    return {"quickstart": quickstart, "digits": digits, "mnist": mnist}


def names() -> list[str]:
    return sorted(_registry())


def load(name: str) -> Preset:
    presets = _registry()
    if name not in presets:
        raise unknown("preset", name, presets)
    return presets[name]()
