"""Store of the runs behind the reproduction pages: a folder with one comparison per preset and size.

Tables are built in pieces: missing runs are added, unfinished ones are continued, finished ones stay as they are. The
manifest of a comparison says what it reproduces, so a store can be moved and merged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import get_args

from offbeat.core.errors import MissingData, RunError
from offbeat.engine import parse_until
from offbeat.experiment import MANIFEST, Comparison, Preset, Scale
from offbeat.experiment import comparison as comparing
from offbeat.experiment.spec import Experiment, name_of
from offbeat.papers.entries import RELATIVE_TIME
from offbeat.papers.preset_registry import load_paper_preset
from offbeat.scenario import data
from offbeat.scenario.data import StandIn

REPRODUCES = "reproduces"  # key of the manifest that holds the paper setting
PAPER_SIZE = "the paper's size"
IN_PLACE_OF = "IN PLACE OF"
STAND_IN = "STAND-IN"


@dataclass(frozen=True)
class PaperSetting:
    """A paper's preset at a scale, with its own data, similar real data or a synthetic stand-in."""

    preset: str
    scale: Scale = "paper"
    until: str | None = None  # end of runs, if it differs from the preset's
    stand_in: bool = False  # synthetic data
    nearest: bool = False  # real data that is similar to the paper's

    def __post_init__(self) -> None:
        """Write `until` in its canonical form, so that equal settings compare equal; None is the preset's own end."""
        if self.until is not None:
            original = self._original().experiment.until
            end = parse_until(self.until, original)
            adds_target = end.target is not None and replace(end, target=original.target) == original
            text = None if end == original else str(end.target if adds_target else end)
            object.__setattr__(self, "until", text)
        if self.nearest and (self.stand_in or self._original().nearest is None):
            raise ValueError(
                f"{self.preset} ({self.scale}) names no similar real data, or a stand-in was requested as well"
            )

    def _original(self) -> Preset:
        """Return the preset with its own end and data."""
        return load_paper_preset(self.preset, self.scale)

    def has_paper_size(self, key: str = "") -> bool:
        """Tell if runs are as large and long as the paper's, to measure the quantity with this key.

        Times to a target may also come from runs that end when they reach it.
        """
        if self.scale != "paper" or self.until is None:
            return self.scale == "paper"
        original, end = self._original().experiment, self.load().experiment.until
        return key == RELATIVE_TIME and end.target == original.target and replace(end, target=None) == original.until

    @property
    def ends_at_target(self) -> bool:
        """Tell if runs end when they reach the target: the fastest finish first, and show times, not final values."""
        return self.load().experiment.until.target is not None

    @property
    def folder(self) -> str:
        """The name of the folder of the setting's comparison."""
        other = "stand-in" if self.stand_in else "nearest" if self.nearest else None
        words = (self.preset, self.scale, self.until and f"until {self.until}", other)
        return re.sub(r"[^A-Za-z0-9._+-]+", "-", " ".join(word for word in words if word))

    @property
    def label(self) -> str:
        """The size and the data, as pages and tables show them."""
        size = PAPER_SIZE if self.scale == "paper" else "quick"
        end = f", until {self.until}" if self.until else ""
        return size + end + (f", {self.other_data}" if self.other_data else "")

    @property
    def other_data(self) -> str:
        """The data used instead of the preset's own; empty if it is the preset's own."""
        preset = self._original()
        original = name_of("data", preset.experiment.data)
        if self.stand_in:
            return f"{STAND_IN} for {original}"
        return f"{name_of('data', preset.nearest)} {IN_PLACE_OF} {original}" if self.nearest else ""

    def load(self) -> Preset:
        """Return the preset with this end and this data."""
        preset = self._original()
        experiment = preset.experiment
        if self.until is not None:
            experiment = replace(experiment, until=parse_until(self.until, experiment.until))
        if self.stand_in:
            experiment = replace(experiment, data=StandIn(of=name_of("data", experiment.data)))
        if self.nearest:
            assert preset.nearest is not None
            experiment = replace(experiment, data=preset.nearest)
        return replace(preset, experiment=experiment)

    def to_dict(self) -> dict[str, object]:
        """Return the fields that differ from their defaults, for the manifest."""
        return {key: value for key, value in vars(self).items() if value not in (None, False)}


def experiments_by_method(preset: Preset) -> dict[str, Experiment]:
    """Return the experiment of each method, by label."""
    return {name: preset.with_strategy(name) for name in preset.methods}


def choose_setting(preset: str, scale: Scale, until: str | None = None) -> tuple[PaperSetting, str]:
    """Return a setting whose data is available, and what the preset's own data lacks.

    If the preset's own data is missing, similar real data is used if available, or else a stand-in at the quick scale.
    DataError says which file is missing or damaged.
    """
    setting = PaperSetting(preset, scale, until)
    try:
        data.load(setting.load().experiment.data)
        return setting, ""
    except MissingData as error:
        problem = str(error)
    nearest = load_paper_preset(preset, scale).nearest
    if nearest is not None:
        try:
            data.load(nearest)
            return replace(setting, nearest=True), problem
        except MissingData as error:
            problem = f"{problem}; similar data could be used instead, but {error}"
    if scale == "paper":
        raise MissingData(problem)
    return replace(setting, stand_in=True), problem


@dataclass(frozen=True)
class ReproductionStore:
    """A folder of comparisons, one per paper setting."""

    path: Path

    def comparisons(self) -> dict[PaperSetting, Comparison]:
        """Return the comparisons in the store by setting; other folders are ignored."""
        comparisons: dict[PaperSetting, Comparison] = {}
        for manifest in sorted(self.path.glob(f"*/{MANIFEST}")):
            comparison = Comparison(manifest.parent)
            fields = comparison.stored().get(REPRODUCES)
            if isinstance(fields, Mapping):
                other = comparisons.setdefault(_parse_setting(fields, manifest), comparison)
                if other != comparison:
                    raise RunError(
                        f"{other.folder} and {comparison.folder} hold the same preset and size: move one of them out "
                        f"of {self.path} and import its runs with --into"
                    )
        return comparisons

    def add_runs(
        self, setting: PaperSetting, labels_and_seeds: Iterable[tuple[str, int]], worker: str = "inline"
    ) -> Comparison:
        """Create the missing runs, given by method label and seed, and return the setting's comparison."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot create the store {self.path}: {error.strerror or error}") from None
        preset = setting.load()
        folder = self.comparisons().get(setting, Comparison(self.path / setting.folder)).folder
        experiments, more = experiments_by_method(preset), {REPRODUCES: setting.to_dict()}
        return comparing.add_runs(folder, experiments, labels_and_seeds, preset.reference, worker, more)


def best_setting(comparisons: Mapping[PaperSetting, Comparison], preset: str, key: str) -> PaperSetting | None:
    """Return the setting whose comparison shows best the quantity with this key; None if there is none.

    Real data comes before a stand-in, the paper's scale before the quick one, the paper's own data before similar data,
    and complete runs before shorter ones.
    """
    ranks = {
        setting: rank_setting(setting, sum(run.complete for _, run in comparison.entries()))
        for setting, comparison in comparisons.items()
        if setting.preset == preset and (key == RELATIVE_TIME or not setting.ends_at_target)
    }
    return min(ranks, key=ranks.__getitem__, default=None)


def rank_setting(setting: PaperSetting, runs: int) -> tuple[float, ...]:
    """Return a sort key: the lowest is the best evidence, then the setting with the most finished runs."""
    shortened = not setting.has_paper_size(RELATIVE_TIME), setting.until is not None
    end = setting.load().experiment.until
    length = -(end.updates or inf), -(end.seconds or inf)
    return not runs, setting.stand_in, setting.scale != "paper", setting.nearest, *shortened, *length, -runs


def _parse_setting(fields: Mapping[str, object], path: Path) -> PaperSetting:
    """Parse the setting that the manifest at this path describes."""
    try:
        setting = PaperSetting(**fields)  # type: ignore[arg-type]
        valid_types = all(isinstance(value, (str, bool)) for value in setting.to_dict().values())
        if setting.scale not in get_args(Scale) or not valid_types:
            raise ValueError(f"invalid values: {dict(fields)}")
        setting.load()  # the preset must exist
        return setting
    except (TypeError, ValueError) as error:
        raise RunError(f"{path}: {REPRODUCES!r} is not a valid paper setting: {error}") from None
