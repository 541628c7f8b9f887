"""Experiment files (YAML), and changes to experiments from the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from offbeat.core.errors import ConfigError, OffbeatError
from offbeat.core.protocol import Strategy
from offbeat.engine import write_atomically
from offbeat.experiment.spec import call_syntax
from offbeat.experiment.spec.choices import CHOICES, default_choice
from offbeat.experiment.spec.config import Experiment
from offbeat.experiment.spec.serialization import FileContext, experiment_from_values, to_values


def to_yaml(experiment: Experiment) -> str:
    """Format an experiment as YAML."""
    from offbeat.experiment.spec.yaml_text import dump_yaml

    return dump_yaml(to_values(experiment))


def parse_experiment(text: str, where: str = "experiment file", context: FileContext = FileContext()) -> Experiment:
    """Parse the text of an experiment file."""
    from offbeat.experiment.spec.yaml_text import parse_yaml

    return build_experiment(parse_yaml(text, where), where, context)


def build_experiment(values: object, where: str, context: FileContext = FileContext()) -> Experiment:
    """Build an experiment from plain values; errors begin with `where`."""
    try:
        return from_values(values, context)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def from_values(values: object, context: FileContext = FileContext()) -> Experiment:
    """Build an experiment from plain values; choices may be calls, such as `partition: dirichlet(alpha=0.1)`."""
    if not isinstance(values, Mapping):
        return experiment_from_values(values, context)
    calls = {key: value for key, value in values.items() if key in CHOICES and _is_call(value)}
    experiment = experiment_from_values({key: value for key, value in values.items() if key not in calls}, context)
    if not calls:
        return experiment
    return with_changes(experiment, [f"{key}={value}" for key, value in calls.items()], context=context)


def _is_call(value: object) -> bool:
    """Tell whether a value is a choice with settings in brackets."""
    return isinstance(value, str) and value.rstrip().endswith(")")


def read_experiment(path: Path, runs_code: bool = True) -> Experiment:
    """Read the experiment file of a run folder; `read_experiment_with_methods` reads files of users.

    FILE.py:Name is relative to the folder of the file. Without `runs_code`, the file is not executed.
    """
    return build_experiment(read_values(path), str(path), FileContext(path.parent, runs_code))


def read_values(path: Path) -> object:
    """Read a YAML file."""
    from offbeat.experiment.spec.yaml_text import parse_yaml

    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a text file") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    return parse_yaml(text, str(path))


def write_experiment(path: Path, experiment: Experiment) -> None:
    """Write an experiment file, unless reading it would give a different experiment."""
    from offbeat.experiment.spec.yaml_text import dump_yaml

    try:
        text = dump_yaml(to_values(experiment))
        is_complete = parse_experiment(text) == experiment
    except OffbeatError:
        is_complete = False
    if not is_complete:
        hint = "name your code as FILE.py:Name, or use offbeat.simulate"
        raise ConfigError(f"{experiment.name!r} contains objects that a file cannot store: {hint}")
    write_atomically(path, text.encode())


def with_changes(
    experiment: Experiment,
    changes: Iterable[str],
    methods: Mapping[str, Strategy] | None = None,
    context: FileContext = FileContext(),
) -> Experiment:
    """Apply 'setting=value' changes in order.

    A call such as 'strategy=fedbuff(k=2)' stands for several changes. `methods` are the strategies of a preset:
    'strategy=fedbuff' then takes its settings from there instead of the defaults.
    """
    values = to_values(experiment)
    for change in changes:
        _apply_change(values, change, methods or {}, context)
    return experiment_from_values(values, context)


def split_change(change: str) -> tuple[list[str], str]:
    """Split 'strategy.k=5' into (['strategy', 'k'], '5'); 'strategy.name=fedbuff' means 'strategy=fedbuff'."""
    path, equals, text = change.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not equals or not all(keys):
        raise ConfigError(f"--set {change!r} is invalid: write setting=value, such as strategy.alpha=0.4")
    if len(keys) > 1 and keys[-1] == "name" and keys[-2] in CHOICES:
        keys.pop()
    return keys, text


def _apply_change(values: dict[str, Any], change: str, methods: Mapping[str, Strategy], context: FileContext) -> None:
    """Apply one 'setting=value' change to plain values."""
    keys, text = split_change(change)
    if keys[-1] in CHOICES and _is_call(text) and text.strip() not in methods:
        for part in call_syntax.parse_call(text).changes(".".join(keys)):
            _apply_change(values, part, methods, context)
        return
    value = _parse_value(text)
    if keys == ["strategy"] and isinstance(value, str) and value in methods:
        value = to_values(methods[value], "strategy")
    if keys[0] not in values:
        _suggest_section(values, keys[0], change)
    section = values
    for depth, key in enumerate(keys[:-1]):
        if key not in section:
            section[key] = None
            experiment_from_values(values, context)  # raises with the nearest right name
        if key in CHOICES:
            section[key] = _with_defaults(key, section[key], context)
        if not isinstance(section[key], dict):
            experiment_from_values(values, context)  # reports an unknown choice first
            raise ConfigError(f"--set {change}: {'.'.join(keys[: depth + 1])} has no settings of its own")
        section = section[key]
    section[keys[-1]] = value


def _parse_value(text: str) -> object:
    """Parse the value of a change as YAML; a text that is not YAML stays a text."""
    from offbeat.experiment.spec.yaml_text import parse_yaml

    try:
        return parse_yaml(text, "value")
    except ConfigError:
        return text  # the check of the setting reports it


def _with_defaults(setting: str, value: object, context: FileContext) -> object:
    """Return a choice with all its settings, so that later changes can address each of them."""
    settings = {"name": value} if isinstance(value, str) else value
    if not isinstance(settings, dict) or not isinstance(name := settings.get("name"), str):
        return value
    try:
        return {**to_values(default_choice(setting, name, context.folder), setting), **settings}
    except ConfigError:  # unknown, which is reported later, or with required settings
        return settings


def _suggest_section(values: Mapping[str, object], key: str, change: str) -> None:
    """Raise with the full name of a setting that was given without its section, such as 'lr=0.1'."""
    names = [f"{section}.{key}" for section, body in values.items() if isinstance(body, dict) and key in body]
    if names:
        raise ConfigError(f"--set {change}: unknown setting {key!r}: did you mean {' or '.join(map(repr, names))}?")
