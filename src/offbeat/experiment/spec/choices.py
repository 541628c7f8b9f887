"""The settings that are a choice by name, and what a name stands for.

`find` is the one way from a name to a class: a built-in name, FILE.py:Name, or a name that an installed package
brings (experiment/spec/entry_points.py). `name_of` is the way back, `label` what a table calls it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from offbeat.core.errors import ConfigError, DataError, OffbeatError, in_words, unknown
from offbeat.core.parts.staleness import STALENESS
from offbeat.core.strategies import REGISTRY
from offbeat.experiment.spec import entry_points, user_code
from offbeat.scenario.availability import AVAILABILITY
from offbeat.scenario.data import DATASETS
from offbeat.scenario.delays import DELAYS
from offbeat.scenario.faults import FAULTS
from offbeat.scenario.models import MODELS
from offbeat.scenario.network import NETWORKS
from offbeat.scenario.partition import PARTITIONS
from offbeat.scenario.streaming import STREAMS
from offbeat.training.losses import LOSSES

# wherever they stand: setting -> (name -> class)
CHOICES: dict[str, Mapping[str, type]] = {
    "strategy": REGISTRY,
    "data": DATASETS,
    "model": MODELS,
    "partition": PARTITIONS,
    "delays": DELAYS,
    "network": NETWORKS,
    "availability": AVAILABILITY,
    "faults": FAULTS,
    "streaming": STREAMS,
    "staleness": STALENESS,
    "loss": LOSSES,
}
WORDS = {"data": "data set"}  # what a choice is called, where its setting has another name


@dataclass(frozen=True)
class _Found:
    name: str  # as a file can say it anywhere
    path: Path | None = None  # of the file, where it is one


_found: dict[type, _Found] = {}  # classes that are not built in
_made: dict[tuple[str, str], tuple[Any, type]] = {}  # (setting, name) -> what the file has, and the class made for it


def find(setting: str, name: str, home: Path | None = None) -> type:
    """The class that a name stands for in this setting; ConfigError with the nearest right name if there is none.

    `home`: the folder of the experiment file it stands in, from which FILE.py:Name is meant; else the working folder.
    """
    registry = CHOICES[setting]
    if name in registry:
        return registry[name]
    if user_code.is_reference(name):
        reference = user_code.parse(name, home, lambda given: _fits(setting, given))
        return _class(setting, user_code.load(reference, home), str(reference), reference.shown, reference.path)
    if name in entry_points.names(setting):
        return _class(setting, entry_points.load(setting, name), name, name, None)
    raise unknown(WORDS.get(setting, setting), name, [*registry, *entry_points.names(setting, registry)])


def _class(setting: str, given: Any, name: str, shown: str, path: Path | None) -> type:
    from offbeat.experiment.spec.adapters import as_choice

    kept = _made.get((setting, name))
    if kept is None or kept[0] is not given:  # a file that was edited has another one
        kept = _made[setting, name] = (given, as_choice(setting, given, shown))
        _found[kept[1]] = _Found(name, path)
    return kept[1]


def _fits(setting: str, given: Any) -> bool:
    from offbeat.experiment.spec.adapters import as_choice

    try:
        as_choice(setting, given, "")
    except ConfigError:
        return False
    return True


def default(setting: str, name: str, home: Path | None = None) -> Any:
    """What a name alone means: that choice with its defaults."""
    cls = find(setting, name, home)
    missing = [f.name for f in fields(cls) if f.init and f.default is f.default_factory]  # both are MISSING
    if missing:
        what = f"{WORDS.get(setting, setting)} {name!r} has settings that must be given"
        raise ConfigError(f"{what}: write {setting}: {{name: {name}, {missing[0]}: …}}")
    return make(cls)


def make(cls: type, **settings: Any) -> Any:
    """The choice with these settings. Whatever somebody's own class raises then is one line."""
    try:
        return cls(**settings)
    except OffbeatError:
        raise
    except Exception as error:
        if cls not in _found:
            raise
        raise ConfigError(f"{label(_found[cls].name)}: {in_words(error)}") from None


def name_of(setting: str, value: Any) -> str:
    """What a file calls a choice; of one's own code the whole path, so that it is found from anywhere."""
    if isinstance(value, Unloaded):
        return value.name
    for name, cls in CHOICES[setting].items():
        if type(value) is cls:
            return name
    return _found[type(value)].name if type(value) in _found else type(value).__name__


def label(name: str) -> str:
    """What tables and folders call it: 'CosBuff' for 'mine.py:CosBuff'."""
    return name.rpartition(":")[2] if user_code.is_reference(name) else name


def is_own(value: Any) -> bool:
    """Is this choice of a file of somebody's own, run or not?"""
    found = _found.get(type(value))
    return isinstance(value, Unloaded) or (found is not None and found.path is not None)


def own_files(value: Any) -> list[Path]:
    """The files of one's own code that anything in this value is of, each once."""
    paths: dict[Path, None] = {}
    waiting = [value]
    while waiting:
        here = waiting.pop()
        if isinstance(here, tuple):
            waiting += here
        elif is_dataclass(here) and not isinstance(here, type):
            waiting += [getattr(here, f.name) for f in fields(here)]
            if type(here) in _found and (path := _found[type(here)].path) is not None:
                paths[path] = None
    return sorted(paths)


@dataclass(frozen=True)
class Unloaded:
    """A choice whose code is not run: for whoever only reads what a run was made for."""

    name: str
    settings: str = "{}"  # JSON

    def plain(self) -> dict[str, Any]:
        return {"name": self.name, **json.loads(self.settings)}

    def load(self, *_: Any) -> Any:
        raise DataError(f"{label(self.name)} is code of somebody's own, which is not run here")

    build = split = of = load  # whatever it is, nothing can be done with it


def unloaded(setting: str, name: str, settings: Mapping[str, Any], home: Path | None = None) -> Unloaded | None:
    """None for what is built in: that is known without running anything of anybody's."""
    if user_code.is_reference(name):
        name = str(user_code.parse(name, home))
    elif name in CHOICES[setting] or name not in entry_points.names(setting):
        return None
    return Unloaded(name, json.dumps(settings, sort_keys=True, default=str))
