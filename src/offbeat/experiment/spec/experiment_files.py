"""Experiment files (YAML), and changes to them from the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from offbeat.core.errors import ConfigError, OffbeatError
from offbeat.engine.checkpoint import write_atomically
from offbeat.experiment.spec import call_syntax
from offbeat.experiment.spec.choices import CHOICES, default_choice
from offbeat.experiment.spec.config import Experiment
from offbeat.experiment.spec.serialization import FileContext, experiment_from_values, to_values


def to_yaml(experiment: Experiment) -> str:
    import yaml

    text: str = yaml.safe_dump(to_values(experiment), sort_keys=False, default_flow_style=None, width=120)
    return text


def parse_experiment(text: str, where: str = "experiment file", home: FileContext = FileContext()) -> Experiment:
    return build_experiment(_tree(text, where), where, home)


def build_experiment(tree: Any, where: str, home: FileContext = FileContext()) -> Experiment:
    """From plain data; `where` it stands, for the messages."""
    try:
        return from_values(tree, home)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def from_values(tree: Any, home: FileContext = FileContext()) -> Experiment:
    """Choices may stand there in one word, `partition: dirichlet(alpha=0.1)`."""
    if not isinstance(tree, Mapping):
        return experiment_from_values(tree, home)
    short = {key: value for key, value in tree.items() if key in CHOICES and _is_call(value)}
    made = experiment_from_values({key: value for key, value in tree.items() if key not in short}, home)
    return with_changes(made, [f"{key}={value}" for key, value in short.items()], home=home) if short else made


def _is_call(value: Any) -> bool:
    """With settings in brackets: a name alone is read anyway."""
    return isinstance(value, str) and value.rstrip().endswith(")")


def _tree(text: str, where: str) -> Any:
    import yaml

    from offbeat.experiment.spec import yaml_reader

    try:
        return yaml_reader.read(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{where}{line}: not YAML ({getattr(error, 'problem', None) or 'unreadable'})") from None
    except RecursionError:
        raise ConfigError(f"{where}: not YAML (brackets in brackets, too deep to read)") from None


def read_experiment(path: Path, runs_code: bool = True) -> Experiment:
    """As it stands there; `study.read` is for a file that somebody wrote. FILE.py:Name in it is meant from its
    folder; without `runs_code` it stays a name.
    """
    return build_experiment(read_values(path), str(path), FileContext(path.parent, runs_code))


def read_values(path: Path) -> Any:
    """What the file holds, as plain data."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a text file") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    return _tree(text, str(path))


def write_experiment(path: Path, experiment: Experiment) -> None:
    """Only what reads back as itself: a run is repeated and resumed from its file, so nothing may be lost in it."""
    import yaml

    try:
        text = to_yaml(experiment)
        whole = parse_experiment(text) == experiment
    except (OffbeatError, yaml.YAMLError):
        whole = False
    if not whole:
        raise ConfigError(
            f"{experiment.name!r} holds what a file cannot (an object of your own, a rule): name your own code "
            "FILE.py:Name, or use offbeat.simulate"
        )
    write_atomically(path, text.encode())


def with_changes(
    experiment: Experiment,
    changes: Iterable[str],
    methods: Mapping[str, Any] | None = None,
    home: FileContext = FileContext(),
) -> Experiment:
    """The experiment with 'setting=value' changes made, in order; 'strategy=fedbuff(k=2)' are two in one word.

    `methods` are a preset's own settings for strategies: 'strategy=fedbuff' then takes those, not bare defaults.
    """
    tree = to_values(experiment)
    for change in changes:
        _apply_change(tree, change, methods or {}, home)
    return experiment_from_values(tree, home)


def split_change(change: str) -> tuple[list[str], str]:
    """'strategy.k=5' as (['strategy', 'k'], '5'); 'strategy.name=fedbuff' is another way to write
    'strategy=fedbuff'.
    """
    path, equals, text = change.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not equals or not all(keys):
        raise ConfigError(f"--set {change!r} is not understood: write setting=value, such as strategy.alpha=0.4")
    if len(keys) > 1 and keys[-1] == "name" and keys[-2] in CHOICES:
        keys.pop()
    return keys, text


def _apply_change(tree: dict[str, Any], change: str, methods: Mapping[str, Any], home: FileContext) -> None:
    keys, text = split_change(change)
    if keys[-1] in CHOICES and _is_call(text) and text.strip() not in methods:
        for part in call_syntax.parse_call(text).changes(".".join(keys)):  # a choice with its settings in one word
            _apply_change(tree, part, methods, home)
        return
    value = _read_value(text)
    if keys == ["strategy"] and isinstance(value, str) and value in methods:
        value = to_values(methods[value], "strategy")
    if keys[0] not in tree:
        _suggest_section(tree, keys[0], change)
    here = tree
    for depth, key in enumerate(keys[:-1]):
        if key not in here:
            here[key] = None
            experiment_from_values(tree, home)  # raises with the nearest right name
        if key in CHOICES:
            here[key] = _with_defaults(key, here[key], home)
        if not isinstance(here[key], dict):
            experiment_from_values(tree, home)  # an unknown choice is the greater mistake
            raise ConfigError(f"--set {change}: {'.'.join(keys[: depth + 1])} has no settings of its own")
        here = here[key]
    here[keys[-1]] = value


def _read_value(text: str) -> Any:
    import yaml

    from offbeat.experiment.spec import yaml_reader

    try:
        return yaml_reader.read(text)
    except (yaml.YAMLError, RecursionError):
        return text  # whatever it is for will say that it is not right


def _with_defaults(setting: str, given: Any, home: FileContext) -> Any:
    """A choice by name with all its settings, so that 'strategy=fedbuff' can be followed by
    'strategy.staleness.a=1'.
    """
    body = {"name": given} if isinstance(given, str) else given
    name = body.get("name") if isinstance(body, dict) else None
    if not isinstance(name, str):
        return given
    try:
        return {**to_values(default_choice(setting, name, home.folder), setting), **body}
    except ConfigError:  # there is none, which will be said; or it has settings without a default
        return body


def _suggest_section(tree: dict[str, Any], key: str, change: str) -> None:
    """'lr=0.1' alone is most likely meant for the section that has an lr."""
    homes = [f"{section}.{key}" for section, body in tree.items() if isinstance(body, dict) and key in body]
    if homes:
        raise ConfigError(f"--set {change}: unknown setting {key!r}: did you mean {' or '.join(map(repr, homes))}?")
