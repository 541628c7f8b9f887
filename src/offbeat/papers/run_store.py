"""The runs that tables are built from: a folder of comparisons, one for each preset and size.

A table is built in pieces: missing runs are made, unfinished ones gone on with, finished ones left as they are. What a
comparison reproduces stands in its manifest, so that a store can be read wherever it is carried.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, get_args

from offbeat.core.errors import MissingData, RunError
from offbeat.engine.until import Until, parse_until
from offbeat.experiment import comparison as comparing
from offbeat.experiment.comparison import MANIFEST, Comparison
from offbeat.experiment.preset import Preset, Scale
from offbeat.experiment.spec.config import Experiment, name_of
from offbeat.papers.entries import RELATIVE_TIME
from offbeat.papers.paper_presets import load_paper_preset
from offbeat.scenario import data
from offbeat.scenario.data.synthetic_stand_in import StandIn

REPRODUCES = "reproduces"  # in a manifest: which world this is
STORE = Path("runs") / "reproductions"
PAPER_SIZE = "the paper's size"
IN_PLACE = "IN PLACE OF"
STAND_IN = "STAND-IN"


@dataclass(frozen=True)
class World:
    """A preset at a size, on its own data or on other: the nearest there is, or what stands in for it."""

    preset: str
    scale: Scale = "paper"
    until: str | None = None  # where runs end elsewhere than the preset's
    stand_in: bool = False  # made-up data
    nearest: bool = False  # real data, but not the paper's

    def __post_init__(self) -> None:
        """However an end is written, it is the same world."""
        if self.until is not None:
            own = load_paper_preset(self.preset, self.scale).experiment.until
            object.__setattr__(self, "until", _end(parse_until(self.until, own), own))
        if self.nearest and (self.stand_in or load_paper_preset(self.preset, self.scale).nearest is None):
            raise ValueError(f"{self.preset} ({self.scale}) has no data that is near to its own, or a stand-in as well")

    def paper_size(self, key: str = "") -> bool:
        """Is it as large and long as the paper's? Times to a target are also where runs end as soon as they are there
        (`key`: of what is measured).
        """
        if self.scale != "paper" or self.until is None:
            return self.scale == "paper"
        own, cut = load_paper_preset(self.preset, self.scale).experiment, self.load().experiment.until
        return key == RELATIVE_TIME and cut.target == own.target and replace(cut, target=None) == own.until

    @property
    def ends_at_target(self) -> bool:
        """Do runs end as soon as they are good enough? Then the quick are the first that are there."""
        return self.load().experiment.until.target is not None

    def tells(self, key: str) -> bool:
        """Is it evidence of what is measured? How good a run that ends at a target would have become it does not."""
        return key == RELATIVE_TIME or not self.ends_at_target

    @property
    def folder(self) -> str:
        other = "stand-in" if self.stand_in else "nearest" if self.nearest else None
        words = (self.preset, self.scale, self.until and f"until {self.until}", other)
        return re.sub(r"[^A-Za-z0-9._+-]+", "-", " ".join(word for word in words if word))

    @property
    def label(self) -> str:
        """How large, in words."""
        size = PAPER_SIZE if self.scale == "paper" else "quick"
        cut = f", until {self.until}" if self.until else ""
        return size + cut + (f", {self.other_data}" if self.other_data else "")

    @property
    def other_data(self) -> str:
        """What stands in the place of the preset's own data, in words; empty if nothing does."""
        preset = load_paper_preset(self.preset, self.scale)
        own = name_of("data", preset.experiment.data)
        if self.stand_in:
            return f"{STAND_IN} for {own}"
        return f"{name_of('data', preset.nearest)} {IN_PLACE} {own}" if self.nearest else ""

    def load(self) -> Preset:
        preset = load_paper_preset(self.preset, self.scale)
        experiment = preset.experiment
        if self.until is not None:
            experiment = replace(experiment, until=parse_until(self.until, experiment.until))
        if self.stand_in:
            experiment = replace(experiment, data=StandIn(of=name_of("data", experiment.data)))
        if self.nearest:
            assert preset.nearest is not None
            experiment = replace(experiment, data=preset.nearest)
        return replace(preset, experiment=experiment)

    def plain(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if value not in (None, False)}


def experiments(preset: Preset) -> dict[str, Experiment]:
    """By label."""
    return {name: preset.with_strategy(name) for name in preset.methods}


def fitting(preset: str, scale: Scale, until: str | None = None) -> tuple[World, str]:
    """The world to run, and what its own data lacks, if it is on other: where that is missing, the nearest if it is
    there, or a stand-in if small is enough. Else DataError says which file to put where, or what is damaged.
    """
    world = World(preset, scale, until)
    try:
        data.load(world.load().experiment.data)
        return world, ""
    except MissingData as error:
        lacking = str(error)
    near = load_paper_preset(preset, scale).nearest
    if near is not None:
        try:
            data.load(near)
            return replace(world, nearest=True), lacking
        except MissingData as error:
            lacking = f"{lacking}; other data would do instead, but {error}"
    if scale == "paper":
        raise MissingData(lacking)
    return replace(world, stand_in=True), lacking


@dataclass(frozen=True)
class Store:
    path: Path = STORE

    def worlds(self) -> dict[World, Comparison]:
        """What there is, by what it reproduces; other folders are not looked at."""
        found: dict[World, Comparison] = {}
        for manifest in sorted(self.path.glob(f"*/{MANIFEST}")):
            comparison = Comparison(manifest.parent)
            given = comparison.stored().get(REPRODUCES)
            if isinstance(given, Mapping):
                other = found.setdefault(_world(given, manifest), comparison)
                if other != comparison:
                    raise RunError(
                        f"{other.folder} and {comparison.folder} are of the same preset and size: move one of them out "
                        f"of {self.path}, and take its runs with --into"
                    )
        return found

    def make(self, world: World, pairs: Iterable[tuple[str, int]], worker: str = "inline") -> Comparison:
        """The world's comparison, with these runs (label, seed) in it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot make the store {self.path}: {error.strerror or error}") from None
        preset = world.load()
        folder = self.worlds().get(world, Comparison(self.path / world.folder)).folder
        more = {REPRODUCES: world.plain()}
        return comparing.grow(folder, experiments(preset), pairs, preset.reference, worker, more)

    def best(
        self, preset: str, key: str, worlds: Mapping[World, Comparison] | None = None
    ) -> tuple[World, Comparison] | None:
        """The world a page shows of what is measured (`key`): real data before a stand-in, the paper's scale before the
        quick one, the paper's own data before what is near to it, whole runs before shorter ones.
        """
        there = self.worlds() if worlds is None else worlds
        found = [(world, has) for world, has in there.items() if world.preset == preset and world.tells(key)]
        return min(found, key=lambda pair: rank(pair[0], sum(r.complete for _, r in pair[1].entries())), default=None)


def rank(world: World, runs: int) -> tuple[float, ...]:
    """The lowest is best: of worlds that are alike in all this, the one with the most finished runs."""
    short = not world.paper_size(RELATIVE_TIME), world.until is not None
    end = world.load().experiment.until
    length = -(end.updates or inf), -(end.seconds or inf)
    return not runs, world.stand_in, world.scale != "paper", world.nearest, *short, *length, -runs


def _end(until: Until, own: Until) -> str | None:
    """In words that always are the same: what is the preset's own is left away."""
    if until == own:
        return None
    if until.target is not None and replace(until, target=own.target) == own:
        return str(until.target)
    return str(until)


def _world(given: Mapping[str, Any], path: Path) -> World:
    try:
        world = World(**given)
        if world.scale not in get_args(Scale) or not all(isinstance(v, (str, bool)) for v in world.plain().values()):
            raise ValueError(f"it says {dict(given)}")
        world.load()  # that there is such a preset
        return world
    except (TypeError, ValueError) as error:
        raise RunError(f"{path}: what it reproduces is not understood: {error}") from None
