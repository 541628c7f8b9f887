"""Named experiments: functions that return a value; variants change a field or two.

Those of a paper are named after its tables and figures, `orthofl/table2-mnist`, and come in two scales: the paper's,
and a quick one of minutes on two cores, with the same methods on fewer or smaller clients, models and steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from offbeat.core.errors import ConfigError, unknown
from offbeat.experiment import files
from offbeat.experiment.config import Experiment
from offbeat.scenario.data import Source
from offbeat.scenario.models import Model


@dataclass(frozen=True)
class Preset:
    """An experiment, and the settings its methods have there."""

    summary: str
    experiment: Experiment
    # name -> strategy, in the order of a table; a variant's begins alike
    methods: Mapping[str, Any] = field(default_factory=dict)
    compared: tuple[str, ...] = ()  # whom `offbeat compare` compares unless told otherwise; empty: all of `methods`
    seeds: int = 3
    reference: str = "fedavg"  # the method whose time the paper calls 1
    nearest: Source | None = None  # real data that is most like the paper's, for who does not have that

    def with_strategy(self, word: str) -> Experiment:
        """The experiment with another method, `fedbuff` or `fedbuff(k=2)`: in the preset's own settings where it has
        some, but for those in brackets.
        """
        if word in self.methods:
            return replace(self.experiment, strategy=self.methods[word])
        try:
            return files.changed(self.experiment, [f"strategy={word}"], self.methods)
        except ConfigError as error:
            raise ConfigError(f"{word}: {error}" if "(" in word else str(error)) from None

    def varied(self, summary: str, methods: Mapping[str, Any] | None = None, **changes: Any) -> Preset:
        """Another figure or table: the same but for the methods compared, and for these fields of the experiment."""
        rows = self.methods if methods is None else methods
        return replace(self, summary=summary, methods=rows, experiment=replace(self.experiment, **changes))


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a paper's tables: a data set and its model. Papers add what else differs from column to column."""

    title: str
    data: Source
    model: Model
    small: Mapping[str, Any] = field(default_factory=dict)  # what differs at the quick scale

    def quick(self, experiment: Experiment, **changes: Any) -> Experiment:
        return replace(experiment, **{**changes, **self.small})


Scale = Literal["paper", "quick"]
Maker = Callable[[Scale], Preset]


def _own() -> dict[str, Callable[[], Preset]]:
    from offbeat.presets.hospitals import heart_disease, tcga_brca
    from offbeat.presets.methods import digits, mnist
    from offbeat.presets.quickstart import quickstart
    from offbeat.presets.scale import million

    return {
        "quickstart": quickstart,
        "digits": digits,
        "mnist": mnist,
        "heart-disease": heart_disease,
        "tcga-brca": tcga_brca,
        "scale-1m": million,
    }


def _of_papers() -> dict[str, Maker]:
    from offbeat.presets import aso_fed, fed_ogd, fedcompass, fedpsa, orthofl

    papers = {"orthofl": orthofl, "aso_fed": aso_fed, "fedpsa": fedpsa, "fed_ogd": fed_ogd, "fedcompass": fedcompass}
    return {f"{paper}/{name}": maker for paper, module in papers.items() for name, maker in module.makers().items()}


def names() -> list[str]:
    """Ours first, then paper by paper."""
    return [*sorted(_own()), *_of_papers()]


def scales(name: str) -> list[str]:
    """Those a preset comes in; ours have one, without a name."""
    return list(get_args(Scale)) if name in _of_papers() else []


def load(name: str, scale: Scale | None = None) -> Preset:
    """The preset of that name; of a paper's, the paper's own scale unless told otherwise."""
    own, papers = _own(), _of_papers()
    if scale is not None and scale not in get_args(Scale):
        raise unknown("scale", scale, get_args(Scale))
    if name in own:
        if scale is not None:
            raise ConfigError(f"preset {name!r} has one scale only: leave {scale!r} away")
        return own[name]()
    if name not in papers:
        raise unknown("preset", name, [*own, *papers])
    preset = papers[name](scale or "paper")
    if scale == "quick":
        return preset.varied(f"{preset.summary} (quick)", name=f"{name}-quick")
    return preset.varied(preset.summary, name=name)
