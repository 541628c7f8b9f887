"""The settings that are a choice by name, and what a name stands for.

`find` is the one way from a name to a class: a built-in name, FILE.py:Name, or a name that an installed package
brings (experiment/spec/entry_points.py). `name_of` is the way back, `label` what a table calls it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from offbeat.core.errors import ConfigError, DataError, OffbeatError, describe_error, unknown_name
from offbeat.core.parts.staleness import STALENESS
from offbeat.core.strategies import REGISTRY
from offbeat.experiment.spec import user_code
from offbeat.scenario.availability import AVAILABILITY
from offbeat.scenario.data import DATASETS
from offbeat.scenario.delays import DELAYS
from offbeat.scenario.faults import FAULTS
from offbeat.scenario.models import MODELS
from offbeat.scenario.network import NETWORKS
from offbeat.scenario.partition import PARTITIONS
from offbeat.scenario.streaming import STREAMS
from offbeat.training.tasks import LOSSES

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
CHOICE_TITLES = {"data": "data set"}  # what a choice is called, where its setting has another name


@dataclass(frozen=True)
class _Origin:
    name: str  # as a file can say it anywhere
    path: Path | None = None  # of the file, where it is one


_origins: dict[type, _Origin] = {}  # classes that are not built in
_classes: dict[
    tuple[str, str], tuple[Any, type]
] = {}  # (setting, name) -> what the file has, and the class made for it


def find_choice(setting: str, name: str, home: Path | None = None) -> type:
    """The class that a name stands for in this setting; ConfigError with the nearest right name if there is none.

    `home`: the folder of the experiment file it stands in, from which FILE.py:Name is meant; else the working folder.
    """
    registry = CHOICES[setting]
    if name in registry:
        return registry[name]
    if user_code.is_reference(name):
        reference = user_code.parse_reference(name, home, lambda given: _is_valid(setting, given))
        return _choice_class(
            setting, user_code.load_object(reference, home), str(reference), reference.relative, reference.path
        )
    if name in package_names(setting):
        return _choice_class(setting, load_from_package(setting, name), name, name, None)
    raise unknown_name(CHOICE_TITLES.get(setting, setting), name, [*registry, *package_names(setting, registry)])


def _choice_class(setting: str, given: Any, name: str, shown: str, path: Path | None) -> type:
    from offbeat.experiment.spec.adapters import as_choice

    kept = _classes.get((setting, name))
    if kept is None or kept[0] is not given:  # a file that was edited has another one
        kept = _classes[setting, name] = (given, as_choice(setting, given, shown))
        _origins[kept[1]] = _Origin(name, path)
    return kept[1]


def _is_valid(setting: str, given: Any) -> bool:
    from offbeat.experiment.spec.adapters import as_choice

    try:
        as_choice(setting, given, "")
    except ConfigError:
        return False
    return True


def default_choice(setting: str, name: str, home: Path | None = None) -> Any:
    """What a name alone means: that choice with its defaults."""
    cls = find_choice(setting, name, home)
    missing = [f.name for f in fields(cls) if f.init and f.default is f.default_factory]  # both are MISSING
    if missing:
        what = f"{CHOICE_TITLES.get(setting, setting)} {name!r} has settings that must be given"
        raise ConfigError(f"{what}: write {setting}: {{name: {name}, {missing[0]}: …}}")
    return make_choice(cls)


def make_choice(cls: type, **settings: Any) -> Any:
    """The choice with these settings. Whatever somebody's own class raises then is one line."""
    try:
        return cls(**settings)
    except OffbeatError:
        raise
    except Exception as error:
        if cls not in _origins:
            raise
        raise ConfigError(f"{short_name(_origins[cls].name)}: {describe_error(error)}") from None


def name_of(setting: str, value: Any) -> str:
    """What a file calls a choice; of one's own code the whole path, so that it is found from anywhere."""
    if isinstance(value, UnloadedChoice):
        return value.name
    for name, cls in CHOICES[setting].items():
        if type(value) is cls:
            return name
    return _origins[type(value)].name if type(value) in _origins else type(value).__name__


def short_name(name: str) -> str:
    """What tables and folders call it: 'CosBuff' for 'mine.py:CosBuff'."""
    return name.rpartition(":")[2] if user_code.is_reference(name) else name


def is_user_code(value: Any) -> bool:
    """Is this choice of a file of somebody's own, run or not?"""
    found = _origins.get(type(value))
    return isinstance(value, UnloadedChoice) or (found is not None and found.path is not None)


def user_files(value: Any) -> list[Path]:
    """The files of one's own code that anything in this value is of, each once."""
    paths: dict[Path, None] = {}
    waiting = [value]
    while waiting:
        here = waiting.pop()
        if isinstance(here, tuple):
            waiting += here
        elif is_dataclass(here) and not isinstance(here, type):
            waiting += [getattr(here, f.name) for f in fields(here)]
            if type(here) in _origins and (path := _origins[type(here)].path) is not None:
                paths[path] = None
    return sorted(paths)


@dataclass(frozen=True)
class UnloadedChoice:
    """A choice whose code is not run: for whoever only reads what a run was made for."""

    name: str
    settings: str = "{}"  # JSON

    def to_values(self) -> dict[str, Any]:
        return {"name": self.name, **json.loads(self.settings)}

    def load(self, *_: Any) -> Any:
        raise DataError(f"{short_name(self.name)} is code of somebody's own, which is not run here")

    build = split = of = load  # whatever it is, nothing can be done with it


def unloaded_choice(
    setting: str, name: str, settings: Mapping[str, Any], home: Path | None = None
) -> UnloadedChoice | None:
    """None for what is built in: that is known without running anything of anybody's."""
    if user_code.is_reference(name):
        name = str(user_code.parse_reference(name, home))
    elif name in CHOICES[setting] or name not in package_names(setting):
        return None
    return UnloadedChoice(name, json.dumps(settings, sort_keys=True, default=str))


log = logging.getLogger("offbeat")

ENTRY_POINT_GROUPS = {
    "strategy": "offbeat.strategies",
    "data": "offbeat.datasets",
    "model": "offbeat.models",
    "partition": "offbeat.partitions",
    "delays": "offbeat.delays",
    "network": "offbeat.networks",
    "availability": "offbeat.availability",
    "faults": "offbeat.faults",
    "streaming": "offbeat.streams",
    "staleness": "offbeat.staleness",
    "loss": "offbeat.losses",
}


def package_names(setting: str, built_in: Collection[str] = ()) -> list[str]:
    """Without what is built in: that wins, and is said once."""
    found = _entry_points(setting)
    for name in sorted(found.keys() & set(built_in)):
        _warn_shadowed(setting, name, package_version(setting, name))
    return [name for name in found if name not in built_in]


def load_from_package(setting: str, name: str) -> Any:
    try:
        return _entry_points(setting)[name].load()
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{name!r} is of the package {package_version(setting, name)}, which is broken: {describe_error(error)}"
        ) from None


def package_version(setting: str, name: str) -> str:
    """With its version."""
    package = _entry_points(setting)[name].dist
    return "(unknown)" if package is None else f"{package.name} {package.version}"


@cache
def _entry_points(setting: str) -> dict[str, EntryPoint]:
    """Of two packages with one name, the first in the order of their names."""
    found = sorted(
        entry_points(group=ENTRY_POINT_GROUPS[setting]), key=lambda e: (e.name, e.dist.name if e.dist else "")
    )
    return {entry.name: entry for entry in reversed(found)}


@cache
def _warn_shadowed(setting: str, name: str, package: str) -> None:
    log.warning("%s is a %s of offbeat's own: the one of %s is not used", name, setting, package)
