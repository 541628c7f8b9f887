"""Experiment files (YAML), and changes to them from the command line."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from offbeat.core.errors import ConfigError
from offbeat.engines.checkpoint import write_whole
from offbeat.experiment.config import CHOICES, Experiment
from offbeat.experiment.plain import from_plain, to_plain


def dump(experiment: Experiment) -> str:
    import yaml

    text: str = yaml.safe_dump(to_plain(experiment), sort_keys=False, default_flow_style=None, width=120)
    return text


def parse(text: str, where: str = "experiment file") -> Experiment:
    import yaml

    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{where}{line}: not YAML ({getattr(error, 'problem', None) or 'unreadable'})") from None
    try:
        return from_plain(tree)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def read(path: Path) -> Experiment:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a text file") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    return parse(text, str(path))


def write(path: Path, experiment: Experiment) -> None:
    write_whole(path, dump(experiment).encode())


def changed(experiment: Experiment, changes: Iterable[str], methods: Mapping[str, Any] | None = None) -> Experiment:
    """The experiment with 'setting=value' changes made, in order.

    `methods` are a preset's own settings for strategies: 'strategy=fedbuff' then takes those, not bare defaults.
    """
    tree = to_plain(experiment)
    for change in changes:
        _change(tree, change, methods or {})
    return from_plain(tree)


def _change(tree: dict[str, Any], change: str, methods: Mapping[str, Any]) -> None:
    import yaml

    path, equals, text = change.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(f"--set {change!r} is not understood: write setting=value, such as strategy.alpha=0.4")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = text
    if keys == ["strategy"] and value in methods:
        value = to_plain(methods[value], "strategy")
    here: Any = tree
    for depth, key in enumerate(keys[:-1]):
        below = here.get(key)
        if isinstance(below, str) and key in CHOICES:
            here[key] = below = {"name": below}
        if not isinstance(below, dict):
            if key not in here:
                from_plain({**copy.deepcopy(tree), key: None})  # raises with the nearest right name
            raise ConfigError(f"--set {change}: {'.'.join(keys[: depth + 1])} has no settings of its own")
        here = below
    here[keys[-1]] = value
