"""Experiments as plain data and back: what an experiment file holds.

Pydantic checks the leaves; the walk over named choices is ours, so that every mistake gets one line that says where
it is, what was given and the nearest right name. Impossible values are refused by the settings themselves.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin

from offbeat.core.errors import ConfigError, OffbeatError, describe_choices, unknown_name
from offbeat.core.protocol import LocalWork
from offbeat.engine.until import Target, Until, parse_until
from offbeat.experiment.spec.choices import (
    CHOICE_TITLES,
    CHOICES,
    UnloadedChoice,
    find_choice,
    make_choice,
    name_of,
    unloaded_choice,
)
from offbeat.experiment.spec.config import Experiment

HIDDEN_SETTINGS: dict[type, tuple[str, ...]] = {
    LocalWork: ("rule", "extras")
}  # code, not settings: a file cannot give them
TEXT_SETTINGS = (Until, Target)  # settings written as one word
MAX_INTEGER = 2**128  # of whole numbers


@dataclass(frozen=True)
class FileContext:
    """Where plain data stands: FILE.py:Name is meant from its folder. Who only reads a run runs nobody's code."""

    folder: Path | None = None  # None: the working folder
    runs_code: bool = True


def to_values(value: Any, setting: str | None = None) -> Any:
    """Dataclasses become mappings, choices get their name."""
    if isinstance(value, TEXT_SETTINGS):
        return str(value)
    if isinstance(value, UnloadedChoice):
        return value.to_values()
    if is_dataclass(value) and not isinstance(value, type):
        shown = [f.name for f in fields(value) if f.init and f.name not in HIDDEN_SETTINGS.get(type(value), ())]
        body = {name: to_values(getattr(value, name), name) for name in shown}
        return {"name": name_of(setting, value), **body} if setting in CHOICES else body
    if isinstance(value, tuple):
        return [to_values(v, setting) for v in value]
    return value


def experiment_from_values(tree: Any, home: FileContext = FileContext()) -> Experiment:
    if not isinstance(tree, Mapping):
        given = "nothing" if tree is None else "a list" if isinstance(tree, list) else _format_value(tree)
        raise ConfigError(f"an experiment file holds settings like 'clients: 20', this one {given}")
    made = _build(Experiment, tree, "", home)
    assert isinstance(made, Experiment)
    return made


def _build(cls: type, tree: Mapping[str, Any], path: str, home: FileContext) -> Any:
    """Make a dataclass from plain data; `path` says where we are, for the messages."""
    known = {f.name: f for f in fields(cls) if f.init and f.name not in HIDDEN_SETTINGS.get(cls, ())}
    hints = _hints(cls)
    values: dict[str, Any] = {}
    for key, value in tree.items():
        if key not in known:
            raise ConfigError(f"{path or 'experiment'}: {unknown_name('setting', str(key), known)}")
        values[key] = _value(hints[key], key, value, f"{path}.{key}" if path else key, home)
    missing = [
        name
        for name, f in known.items()
        if name not in values and f.default is MISSING and f.default_factory is MISSING
    ]
    if missing:
        raise ConfigError(f"{path}: {', '.join(missing)} must be given")
    try:
        return make_choice(cls, **values)
    except OffbeatError as error:
        named = not path or str(error).startswith(path)  # some settings name themselves in full
        raise ConfigError(str(error) if named else f"{path}: {error}") from None


def _value(hint: Any, key: str, value: Any, path: str, home: FileContext) -> Any:
    chosen = key in CHOICES and not _is_basic(hint)  # a function of one's own may call an argument so
    if chosen and isinstance(value, list) and get_origin(hint) is tuple:  # several of them
        return tuple(_choice(key, v, f"{path}[{i}]", home) for i, v in enumerate(value))
    if chosen:
        return _choice(key, value, path, home)
    parts = _union_members(hint)
    if value is None and type(None) in parts:
        return None
    for part in parts:
        if part is Until:
            return _parse_text(parse_until, value, path)
        if part is Target:
            return _parse_text(_parse_target, value, path)
        if isinstance(part, type) and is_dataclass(part):
            return _build(part, _require_mapping(part, value, path), path, home)
    return _check_value(hint, value, path)


def _require_mapping(cls: type, value: Any, path: str) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    known = [f.name for f in fields(cls) if f.name not in HIDDEN_SETTINGS.get(cls, ())]
    raise ConfigError(f"{path} = {_format_value(value)}: it has settings of its own: {', '.join(known)}")


def _choice(setting: str, value: Any, path: str, home: FileContext) -> Any:
    """A named choice: 'dirichlet', or {name: dirichlet, alpha: 0.3}; also FILE.py:Name."""
    if isinstance(value, str):
        value = {"name": value}
    word = CHOICE_TITLES.get(setting, setting)
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise ConfigError(f"{path}: {_format_value(value)} names no {word}; {describe_choices(word, CHOICES[setting])}")
    name, body = value["name"], {k: v for k, v in value.items() if k != "name"}
    if not home.runs_code and (left := unloaded_choice(setting, name, body, home.folder)) is not None:
        return left
    return _build(find_choice(setting, name, home.folder), body, path, home)


def _parse_text(parse: Any, value: Any, path: str) -> Any:
    try:
        return parse(str(value))
    except OffbeatError as error:
        raise ConfigError(str(error) if str(error).startswith(path) else f"{path}: {error}") from None


def _parse_target(text: str) -> Target:
    if "=" in text and "," not in text:
        target = parse_until(text, Until(updates=1)).target
        if target is not None:
            return target
    raise ConfigError(f"target {text!r} is not understood: write 'acc=0.9'")


def _check_value(hint: Any, value: Any, path: str) -> Any:
    from pydantic import TypeAdapter, ValidationError

    if isinstance(value, bool) and (word := "on" if value else "off") in _literals(hint):
        return word  # YAML reads these words as true and false
    try:
        if _has_bool(value) and bool not in _union_members(hint):  # pydantic would take true for 1
            raise TypeError
        made = _to_tuples(TypeAdapter(hint).validate_python(value))
        if _too_large(made):
            raise TypeError
        return made
    except (TypeError, OverflowError, ValidationError):
        choices = _literals(hint)
        if choices and isinstance(value, str):
            raise ConfigError(f"{path}: {unknown_name('value', value, choices)}") from None
        raise ConfigError(f"{path} = {_format_value(value)}: expected {describe_type(hint)}") from None


def _to_tuples(value: Any) -> Any:
    """Settings are compared and hashed, also those of which nothing says what they are."""
    return tuple(map(_to_tuples, value)) if isinstance(value, (list, tuple)) else value


def _too_large(value: Any) -> bool:
    """A whole number that counts nothing: 38 digits are more than anything here has."""
    return (
        any(map(_too_large, value))
        if isinstance(value, tuple)
        else isinstance(value, int) and abs(value) >= MAX_INTEGER
    )


def _has_bool(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, list) and any(map(_has_bool, value)))


def _union_members(hint: Any) -> tuple[Any, ...]:
    """The members of a union; any other type is alone."""
    return get_args(hint) if get_origin(hint) in (types.UnionType, typing.Union) else (hint,)


def _is_basic(hint: Any) -> bool:
    """Text, numbers and nothing else."""
    return all(part in (bool, int, float, str, type(None)) for part in _union_members(hint))


def _literals(hint: Any) -> list[str]:
    return [str(v) for part in _union_members(hint) if get_origin(part) is typing.Literal for v in get_args(part)]


def _format_value(value: Any) -> str:
    """A value as a file would write it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def describe_type(hint: Any) -> str:
    """What may be given, in words."""
    parts = _union_members(hint)
    if len(parts) > 1:
        return " or ".join(describe_type(part) for part in parts if part is not int or float not in parts)
    if get_origin(hint) is typing.Literal:
        return " or ".join(repr(v) for v in get_args(hint))
    if get_origin(hint) is tuple:
        return f"a list, each entry {describe_type(get_args(hint)[0])}"
    words = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}
    return words.get(hint, str(hint))


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)
