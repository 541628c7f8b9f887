"""An experiment file as its author means it: relative paths begin where the file lies, and whoever says that data
belongs to its owners, but not how many clients there are, means all of them. Delays may be said by owner: {bern: 20}.

What comes out is an experiment that means the same wherever it is read again: a run folder holds whole paths and a
number of clients.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from offbeat.core.errors import ConfigError, unknown_name
from offbeat.core.settings import PathSetting
from offbeat.experiment.spec import experiment_files
from offbeat.experiment.spec.config import Experiment
from offbeat.experiment.spec.serialization import FileContext
from offbeat.scenario.data import load
from offbeat.scenario.data.data_files import expand_path
from offbeat.scenario.partition import Natural


def resolve_experiment(tree: Any, path: Path) -> tuple[Experiment, bool]:
    """The experiment that a file holds, and whether it leaves open how many clients there are."""
    where, home = str(path), FileContext(path.parent)
    tree = _order_delays(tree, path)
    left_open = isinstance(tree, Mapping) and "clients" not in tree
    if not left_open:
        return resolve_paths(experiment_files.build_experiment(tree, where, home), path.parent), False
    one = resolve_paths(
        experiment_files.build_experiment({**tree, "clients": 1}, where, home), path.parent
    )  # as many as there will be at least
    if isinstance(one.partition, Natural):
        return with_all_owners(one), True
    return resolve_paths(experiment_files.build_experiment(tree, where, home), path.parent), True


def _order_delays(tree: Any, path: Path) -> Any:
    """With the mean delays that are said by owner in the order of the clients."""
    delays = tree.get("delays") if isinstance(tree, Mapping) else None
    means = delays.get("means") if isinstance(delays, Mapping) else None
    if (
        not isinstance(delays, Mapping)
        or not isinstance(means, Mapping)
        or not all(isinstance(name, str) for name in means)
    ):
        return tree
    where = f"{path}: delays.means"
    rest = {key: value for key, value in tree.items() if key not in ("delays", "methods")}
    experiment = resolve_paths(
        experiment_files.build_experiment({**rest, "clients": 1}, str(path), FileContext(path.parent)), path.parent
    )
    if not isinstance(experiment.partition, Natural) or "clients" in tree:
        raise ConfigError(f"{where} names sites: write 'partition: natural' and leave out clients, or give a list")
    data = load(experiment.data)
    parts = experiment.partition.split(data.y_train, None, experiment.seed, data.groups)
    assert data.groups is not None  # or split had refused
    names = [data.group_names[int(data.groups[rows[0]])] for rows in parts]
    for name in means:
        if name not in names:
            raise ConfigError(f"{where}: {unknown_name('site', name, names)}")
    if missing := [name for name in names if name not in means]:
        raise ConfigError(f"{where}: {', '.join(missing[:5])} {'is' if len(missing) == 1 else 'are'} missing")
    return {**tree, "delays": {**delays, "means": [means[name] for name in names]}}


def with_all_owners(experiment: Experiment) -> Experiment:
    """With every owner the data names as a client; as it is, where data is dealt out in another way."""
    if not isinstance(experiment.partition, Natural):
        return experiment
    data = load(experiment.data)
    owners = experiment.partition.split(data.y_train, None, experiment.seed_of("partition"), data.groups)
    return replace(experiment, clients=len(owners))


def resolve_paths(experiment: Experiment, home: Path, but: Iterable[str] = ()) -> Experiment:
    """Relative paths are whole ones, from `home` on, all `but` these. What may lie below the data root, and is not at
    home, is left to it.
    """
    made: Experiment = _resolve(experiment, home, set(but))
    return made


def paths_in(experiment: Experiment) -> list[str]:
    """All that the settings name."""
    return [given for _, _, given in _all_paths(experiment)]


def _resolve(value: Any, home: Path, but: set[str]) -> Any:
    if isinstance(value, tuple):
        return tuple(_resolve(each, home, but) for each in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changes = {name: _absolute(given, place, home) for name, place, given in _path_settings(value) if given not in but}
    for f in fields(value):
        inner = getattr(value, f.name)
        if f.init and f.name not in changes and (moved := _resolve(inner, home, but)) != inner:
            changes[f.name] = moved
    return replace(value, **changes) if changes else value


def _absolute(given: str, place: PathSetting, home: Path) -> str:
    path = expand_path(given)
    there = Path(os.path.abspath(home / path))
    return given if path.is_absolute() or (place.from_data_root and not there.exists()) else str(there)


def _all_paths(value: Any) -> Iterator[tuple[str, PathSetting, str]]:
    if isinstance(value, tuple):
        for each in value:
            yield from _all_paths(each)
    elif is_dataclass(value) and not isinstance(value, type):
        yield from _path_settings(value)
        for f in fields(value):
            yield from _all_paths(getattr(value, f.name))


def _path_settings(value: Any) -> Iterator[tuple[str, PathSetting, str]]:
    """The settings of this dataclass that are paths, and given."""
    for name, hint in get_type_hints(type(value), include_extras=True).items():
        given = getattr(value, name, None)
        if isinstance(given, str) and (place := _path_marker(hint)) is not None:
            yield name, place, given


def _path_marker(hint: Any) -> PathSetting | None:
    if get_origin(hint) is Annotated:
        return next((extra for extra in hint.__metadata__ if isinstance(extra, PathSetting)), None)
    return next(filter(None, map(_path_marker, get_args(hint))), None) if get_args(hint) else None
