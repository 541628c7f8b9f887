"""Settings that are chosen by name: built-in names, FILE.py:Name, and names from installed packages.

`find_choice` converts a name to a class, `name_of` a value to its name, and `short_name` a name to its label in tables.
Packages declare names as entry points:

    [project.entry-points."offbeat.strategies"]
    cosbuff = "cosbuff.strategy:CosBuff"

They are looked up only if a name is not built in, and loaded only if they are used.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, NoReturn

from offbeat.core.errors import ConfigError, DataError, OffbeatError, describe_error, unknown_name
from offbeat.core.parts.staleness import STALENESS
from offbeat.core.strategies import REGISTRY
from offbeat.experiment.spec import user_code
from offbeat.scenario import AVAILABILITY, FAULTS, NETWORKS, STREAMS
from offbeat.scenario.data import DATASETS
from offbeat.scenario.delays import DELAYS
from offbeat.scenario.models import MODELS
from offbeat.scenario.partition import PARTITIONS
from offbeat.training import LOSSES

log = logging.getLogger("offbeat")

# setting -> (name -> class); a setting has the same choices wherever it occurs
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
CHOICE_TITLES = {"data": "data set"}  # titles of settings that differ from the name
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


@dataclass(frozen=True)
class _Origin:
    """The name of a class that is not built in, and the file with its code if there is one."""

    name: str  # valid anywhere in a file
    path: Path | None = None


_origins: dict[type, _Origin] = {}  # of classes that are not built in
_classes: dict[tuple[str, str], tuple[object, type]] = {}  # (setting, name) -> object in the file, and its class


def find_choice(setting: str, name: str, folder: Path | None = None) -> type:
    """Return the class for a name; raise ConfigError with the nearest right name if there is none.

    FILE.py:Name is relative to `folder`, by default the working folder.
    """
    registry = CHOICES[setting]
    if name in registry:
        return registry[name]
    if user_code.is_reference(name):
        reference = user_code.parse_reference(name, folder, lambda value: _is_valid(setting, value))
        value = user_code.load_object(reference, folder)
        return _choice_class(setting, value, str(reference), reference.relative, reference.path)
    if name in package_names(setting):
        return _choice_class(setting, load_from_package(setting, name), name, name, None)
    names = [*registry, *package_names(setting, registry)]
    raise unknown_name(CHOICE_TITLES.get(setting, setting), name, names)


def _choice_class(setting: str, value: object, name: str, title: str, path: Path | None) -> type:
    """Return the class for an object that a name refers to, and remember where the class comes from."""
    from offbeat.experiment.spec.adapters import as_choice

    cached = _classes.get((setting, name))
    if cached is None or cached[0] is not value:  # the object changes when its file is edited
        cached = _classes[setting, name] = (value, as_choice(setting, value, title))
        _origins[cached[1]] = _Origin(name, path)
    return cached[1]


def _is_valid(setting: str, value: object) -> bool:
    """Tell whether an object can be a choice for a setting."""
    from offbeat.experiment.spec.adapters import as_choice

    try:
        as_choice(setting, value, "")
    except ConfigError:
        return False
    return True


def default_choice(setting: str, name: str, folder: Path | None = None) -> Any:
    """Return a choice with default settings."""
    cls = find_choice(setting, name, folder)
    missing = [f.name for f in fields(cls) if f.init and f.default is f.default_factory]  # both are MISSING
    if missing:
        title = f"{CHOICE_TITLES.get(setting, setting)} {name!r} has required settings"
        raise ConfigError(f"{title}: write {setting}: {{name: {name}, {missing[0]}: …}}")
    return make_choice(cls)


def make_choice(cls: type, **settings: object) -> Any:
    """Create a choice with these settings; an error of a user's class becomes one line."""
    try:
        return cls(**settings)
    except OffbeatError:
        raise
    except Exception as error:
        if cls not in _origins:
            raise
        raise ConfigError(f"{short_name(_origins[cls].name)}: {describe_error(error)}") from None


def name_of(setting: str, value: object) -> str:
    """Return the name of a choice in files; for user code with the absolute path."""
    if isinstance(value, UnloadedChoice):
        return value.name
    built_in = next((name for name, cls in CHOICES[setting].items() if type(value) is cls), None)
    return built_in or (_origins[type(value)].name if type(value) in _origins else type(value).__name__)


def short_name(name: str) -> str:
    """Return the name of a choice in tables and folders: 'CosBuff' for 'mine.py:CosBuff'."""
    return name.rpartition(":")[2] if user_code.is_reference(name) else name


def is_user_code(value: object) -> bool:
    """Tell whether a choice is defined in a file of the user."""
    origin = _origins.get(type(value))
    return isinstance(value, UnloadedChoice) or (origin is not None and origin.path is not None)


def user_files(value: object) -> list[Path]:
    """List the files with user code of a value and everything in it."""
    paths: set[Path] = set()
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, tuple):
            waiting += item
        elif is_dataclass(item) and not isinstance(item, type):
            waiting += [getattr(item, f.name) for f in fields(item)]
            if type(item) in _origins and (path := _origins[type(item)].path) is not None:
                paths.add(path)
    return sorted(paths)


@dataclass(frozen=True)
class UnloadedChoice:
    """A choice whose code is not executed, because the experiment is only read."""

    name: str
    settings: str = "{}"  # JSON

    def to_values(self) -> dict[str, object]:
        """Return name and settings."""
        return {"name": self.name, **json.loads(self.settings)}

    def load(self, *_: object) -> NoReturn:
        """Raise an error, because the code is not loaded."""
        raise DataError(f"{short_name(self.name)} is user code, which is not executed here")

    build = split = of = load


def unloaded_choice(
    setting: str, name: str, settings: Mapping[str, object], folder: Path | None = None
) -> UnloadedChoice | None:
    """Return a choice without executing its code; None if it is built in."""
    if user_code.is_reference(name):
        name = str(user_code.parse_reference(name, folder))
    elif name in CHOICES[setting] or name not in package_names(setting):
        return None
    return UnloadedChoice(name, json.dumps(settings, sort_keys=True, default=str))


# ---------------------------------------------------------------- installed packages


def package_names(setting: str, built_in: Collection[str] = ()) -> list[str]:
    """List the names from packages, except built-in ones, which take precedence."""
    declared = _entry_points(setting)
    for name in sorted(declared.keys() & set(built_in)):
        _warn_shadowed(setting, name, package_version(setting, name))
    return [name for name in declared if name not in built_in]


def load_from_package(setting: str, name: str) -> object:
    """Load the object that a package provides under a name."""
    try:
        return _entry_points(setting)[name].load()
    except (Exception, SystemExit) as error:
        package = package_version(setting, name)
        raise ConfigError(f"{name!r} from the package {package} is broken: {describe_error(error)}") from None


def package_version(setting: str, name: str) -> str:
    """Return name and version of the package that provides a name."""
    package = _entry_points(setting)[name].dist
    return "(unknown)" if package is None else f"{package.name} {package.version}"


@cache
def _entry_points(setting: str) -> dict[str, EntryPoint]:
    """Return entry points by name; of two packages with the same name, the first in alphabetical order wins."""
    group = entry_points(group=ENTRY_POINT_GROUPS[setting])
    points = sorted(group, key=lambda point: (point.name, point.dist.name if point.dist else ""))
    return {point.name: point for point in reversed(points)}


@cache
def _warn_shadowed(setting: str, name: str, package: str) -> None:
    """Warn once that a built-in name hides one from a package."""
    log.warning("%s is a built-in %s: the one from %s is not used", name, setting, package)
