"""Define the `Preset` class: a named experiment with the methods that it compares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from offbeat.core.errors import ConfigError
from offbeat.experiment.spec import experiment_files
from offbeat.experiment.spec.config import Experiment
from offbeat.scenario.data import DataSource
from offbeat.scenario.models import Model

Strategies = Mapping[str, Any]  # by label; the type of a strategy is that of its class


@dataclass(frozen=True)
class Preset:
    """An experiment and its methods with their settings."""

    summary: str
    experiment: Experiment
    # name -> strategy, in the order of tables; names of variants begin with the name of the method
    methods: Strategies = field(default_factory=dict)
    compared: tuple[str, ...] = ()  # default methods of `offbeat compare`; empty: all
    seeds: int = 3
    reference: str = "fedavg"  # the method that relative times refer to
    nearest: DataSource | None = None  # most similar real data, in case the paper's is missing

    def with_strategy(self, word: str) -> Experiment:
        """Return the experiment with another method, such as `fedbuff` or `fedbuff(k=2)`.

        Settings in brackets override those of the preset, which override the defaults.
        """
        if word in self.methods:
            return replace(self.experiment, strategy=self.methods[word])
        try:
            return experiment_files.with_changes(self.experiment, [f"strategy={word}"], self.methods)
        except ConfigError as error:
            raise ConfigError(f"{word}: {error}" if "(" in word else str(error)) from None

    def varied(self, summary: str, methods: Strategies | None = None, **changes: Any) -> Preset:
        """Return a variant for another figure or table, with other methods and fields of the experiment."""
        methods = self.methods if methods is None else methods
        return replace(self, summary=summary, methods=methods, experiment=replace(self.experiment, **changes))


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a paper's tables: a data set and its model. Papers add what else differs from column to column."""

    title: str
    data: DataSource
    model: Model
    small: Mapping[str, Any] = field(default_factory=dict)  # fields of the experiment at the quick scale

    def quick(self, experiment: Experiment, **changes: Any) -> Experiment:
        """Return the experiment at the quick scale; `small` takes precedence over `changes`."""
        return replace(experiment, **{**changes, **self.small})


Scale = Literal["paper", "quick"]
PresetFunction = Callable[[Scale], Preset]
