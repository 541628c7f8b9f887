"""Interpretation of an experiment file that depends on its location and its data.

Relative paths start at the folder of the file. If the data belongs to owners and the file leaves the number of clients
open, all owners are clients, and mean delays may be given by owner: {bern: 20}. The result does not depend on the
location any more, so it can be stored in a run folder.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, TypeVar, get_args, get_origin, get_type_hints

from offbeat.core.errors import ConfigError, unknown_name
from offbeat.core.settings import PathSetting
from offbeat.experiment.spec import experiment_files
from offbeat.experiment.spec.config import Experiment
from offbeat.experiment.spec.serialization import FileContext
from offbeat.scenario.data import expand_path, load
from offbeat.scenario.partition import Natural

T = TypeVar("T")


def resolve_experiment(values: object, path: Path) -> tuple[Experiment, bool]:
    """Build the experiment of a file; also return whether the file leaves the number of clients open."""
    values = _order_delays(values, path)
    if isinstance(values, Mapping) and "clients" not in values:
        with_one_client = _build_with_absolute_paths({**values, "clients": 1}, path)
        if isinstance(with_one_client.partition, Natural):
            return with_all_owners(with_one_client), True
        return _build_with_absolute_paths(values, path), True
    return _build_with_absolute_paths(values, path), False


def _build_with_absolute_paths(values: object, path: Path) -> Experiment:
    """Build the experiment of a file, with absolute paths."""
    experiment = experiment_files.build_experiment(values, str(path), FileContext(path.parent))
    return resolve_paths(experiment, path.parent)


def _order_delays(values: object, path: Path) -> object:
    """Replace mean delays by owner with a list in the order of the clients."""
    if not isinstance(values, Mapping) or not isinstance(delays := values.get("delays"), Mapping):
        return values
    means = delays.get("means")
    if not isinstance(means, Mapping) or not all(isinstance(name, str) for name in means):
        return values
    where = f"{path}: delays.means"
    rest = {key: value for key, value in values.items() if key not in ("delays", "methods")}
    experiment = _build_with_absolute_paths({**rest, "clients": 1}, path)
    if not isinstance(experiment.partition, Natural) or "clients" in values:
        raise ConfigError(f"{where} names sites: write 'partition: natural' and omit clients, or give a list")
    data = load(experiment.data)
    parts = experiment.partition.split(data.y_train, None, experiment.seed, data.groups)
    assert data.groups is not None  # otherwise split raised
    names = [data.group_names[int(data.groups[rows[0]])] for rows in parts]
    for name in means:
        if name not in names:
            raise ConfigError(f"{where}: {unknown_name('site', name, names)}")
    if missing := [name for name in names if name not in means]:
        raise ConfigError(f"{where}: {', '.join(missing[:5])} {'is' if len(missing) == 1 else 'are'} missing")
    return {**values, "delays": {**delays, "means": [means[name] for name in names]}}


def with_all_owners(experiment: Experiment) -> Experiment:
    """Make every owner of the data a client; experiments with other partitions are returned unchanged."""
    if not isinstance(experiment.partition, Natural):
        return experiment
    data = load(experiment.data)
    owners = experiment.partition.split(data.y_train, None, experiment.seed_of("partition"), data.groups)
    return replace(experiment, clients=len(owners))


def resolve_paths(value: T, folder: Path, but: Collection[str] = ()) -> T:
    """Make the relative paths in an experiment or setting absolute, starting at `folder`, except those in `but`.

    Paths below the data root that do not exist in the folder stay relative.
    """
    if isinstance(value, tuple):
        return tuple(resolve_paths(item, folder, but) for item in value)  # type: ignore[return-value]
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changes: dict[str, object] = {
        name: _make_absolute(path, marker, folder) for name, marker, path in _path_settings(value) if path not in but
    }
    for f in fields(value):
        setting = getattr(value, f.name)
        if f.init and f.name not in changes and (resolved := resolve_paths(setting, folder, but)) != setting:
            changes[f.name] = resolved
    return replace(value, **changes) if changes else value


def _make_absolute(text: str, marker: PathSetting, folder: Path) -> str:
    """Return the absolute path, unless the data root may contain it."""
    path = expand_path(text)
    absolute = Path(os.path.abspath(folder / path))
    return text if path.is_absolute() or (marker.from_data_root and not absolute.exists()) else str(absolute)


def paths_in(value: object) -> list[str]:
    """List all paths in an experiment or setting."""
    if isinstance(value, tuple):
        return [path for item in value for path in paths_in(item)]
    if not is_dataclass(value) or isinstance(value, type):
        return []
    below = [path for f in fields(value) for path in paths_in(getattr(value, f.name))]
    return [*(path for _, _, path in _path_settings(value)), *below]


def _path_settings(value: object) -> Iterator[tuple[str, PathSetting, str]]:
    """Yield name, marker and value of the settings of a dataclass that are paths and not None."""
    for name, hint in get_type_hints(type(value), include_extras=True).items():
        path = getattr(value, name, None)
        if isinstance(path, str) and (marker := _path_marker(hint)) is not None:
            yield name, marker, path


def _path_marker(hint: object) -> PathSetting | None:
    """Return the marker of an annotation for paths; None if it is for other values."""
    if get_origin(hint) is Annotated:
        return next((extra for extra in get_args(hint)[1:] if isinstance(extra, PathSetting)), None)
    return next(filter(None, map(_path_marker, get_args(hint))), None) if get_args(hint) else None
