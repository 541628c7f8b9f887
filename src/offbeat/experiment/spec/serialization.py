"""Conversion of experiments to plain values and back, as an experiment file holds them.

Pydantic validates single values. The walk over settings and named choices is our own, so that every error is one line
with the path of the setting, the value and the nearest valid name.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, cast, get_args, get_origin

from offbeat.core.errors import ConfigError, OffbeatError, describe_choices, unknown_name
from offbeat.core.protocol import LocalWork
from offbeat.engine import Target, Until, parse_until
from offbeat.experiment.spec import choices
from offbeat.experiment.spec.choices import CHOICE_TITLES, CHOICES, UnloadedChoice
from offbeat.experiment.spec.config import Experiment

Hint: TypeAlias = object  # a type annotation at run time

HIDDEN_SETTINGS: dict[type, tuple[str, ...]] = {LocalWork: ("rule", "extras")}  # code, which a file cannot hold


TEXT_SETTINGS = (Until, Target)  # dataclasses that are written as text


MAX_INTEGER = 2**128
TYPE_TITLES: Mapping[Hint, str] = {
    int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null",
}  # fmt: skip


@dataclass(frozen=True)
class FileContext:
    """The folder that FILE.py:Name is relative to, and whether such code may be executed."""

    folder: Path | None = None  # None: the working folder
    runs_code: bool = True


def to_values(value: object, setting: str | None = None) -> Any:
    """Convert a setting to plain values: dataclasses become mappings, and choices get their name."""
    if isinstance(value, TEXT_SETTINGS):
        return str(value)
    if isinstance(value, UnloadedChoice):
        return value.to_values()
    if is_dataclass(value) and not isinstance(value, type):
        values = {name: to_values(getattr(value, name), name) for name in _settable_fields(type(value))}
        return {"name": choices.name_of(setting, value), **values} if setting in CHOICES else values
    if isinstance(value, tuple):
        return [to_values(item, setting) for item in value]
    return value


def experiment_from_values(values: object, context: FileContext = FileContext()) -> Experiment:
    """Build an experiment from plain values."""
    if not isinstance(values, Mapping):
        kind = "nothing" if values is None else "a list" if isinstance(values, list) else _format_value(values)
        raise ConfigError(f"an experiment file holds settings such as 'clients: 20', this one {kind}")
    experiment = _build(Experiment, values, "", context)
    assert isinstance(experiment, Experiment)
    return experiment


def _settable_fields(cls: type) -> dict[str, Field[object]]:
    """Return the fields of a dataclass that a file can set."""
    return {f.name: f for f in fields(cls) if f.init and f.name not in HIDDEN_SETTINGS.get(cls, ())}


def _build(cls: type, values: Mapping[str, object], path: str, context: FileContext) -> object:
    """Build a dataclass; `path` is its place in the experiment, for errors."""
    known, hints = _settable_fields(cls), _field_types(cls)
    settings: dict[str, object] = {}
    for key, value in values.items():
        if key not in known:
            raise ConfigError(f"{path or 'experiment'}: {unknown_name('setting', str(key), known)}")
        settings[key] = _build_setting(hints[key], key, value, f"{path}.{key}" if path else key, context)
    required = (name for name, f in known.items() if f.default is MISSING and f.default_factory is MISSING)
    if missing := [name for name in required if name not in settings]:
        raise ConfigError(f"{path}: {', '.join(missing)} must be given")
    try:
        return choices.make_choice(cls, **settings)
    except OffbeatError as error:
        raise _prefix_error(error, path) from None


def _prefix_error(error: OffbeatError, path: str) -> ConfigError:
    """Precede an error by the path of its setting, unless it begins with it."""
    return ConfigError(str(error) if not path or str(error).startswith(path) else f"{path}: {error}")


def _build_setting(hint: Hint, key: str, value: object, path: str, context: FileContext) -> object:
    """Build the value of one setting: a choice, a section, a text or a basic value."""
    if key in CHOICES and not _is_basic_type(hint):  # a user's function may have an argument of the same name
        if isinstance(value, list) and get_origin(hint) is tuple:
            return tuple(_build_choice(key, item, f"{path}[{i}]", context) for i, item in enumerate(value))
        return _build_choice(key, value, path, context)
    members = _union_members(hint)
    if value is None and type(None) in members:
        return None
    for member in members:
        if member in TEXT_SETTINGS:
            try:
                return _parse_text(member, str(value))
            except OffbeatError as error:
                raise _prefix_error(error, path) from None
        if isinstance(member, type) and is_dataclass(member):
            if not isinstance(value, Mapping):
                names = ", ".join(_settable_fields(member))
                raise ConfigError(f"{path} = {_format_value(value)}: it is a section with the settings {names}")
            return _build(member, value, path, context)
    return _check_value(hint, value, path)


def _build_choice(setting: str, value: object, path: str, context: FileContext) -> object:
    """Build a choice: 'dirichlet', {name: dirichlet, alpha: 0.3} or FILE.py:Name."""
    if isinstance(value, str):
        value = {"name": value}
    title = CHOICE_TITLES.get(setting, setting)
    if not isinstance(value, Mapping) or not isinstance(name := value.get("name"), str):
        known = describe_choices(title, CHOICES[setting])
        raise ConfigError(f"{path}: {_format_value(value)} names no {title}; {known}")
    settings = {key: item for key, item in value.items() if key != "name"}
    if (
        not context.runs_code
        and (unloaded := choices.unloaded_choice(setting, name, settings, context.folder)) is not None
    ):
        return unloaded
    return _build(choices.find_choice(setting, name, context.folder), settings, path, context)


def _parse_text(cls: Hint, text: str) -> Until | Target:
    """Parse a setting that is written as text: the end of a run, or a target such as 'acc=0.9'."""
    if cls is Until:
        return parse_until(text)
    target = parse_until(text, Until(updates=1)).target if "=" in text and "," not in text else None
    if target is None:
        raise ConfigError(f"target {text!r} is invalid: write 'acc=0.9'")
    return target


def _check_value(hint: Hint, value: object, path: str) -> object:
    """Validate a basic value with pydantic and convert lists to tuples."""
    from pydantic import TypeAdapter, ValidationError

    literals = _literal_texts(hint)
    if isinstance(value, bool) and (word := "on" if value else "off") in literals:
        return word  # YAML reads on and off as booleans
    try:
        if bool not in _union_members(hint) and any(isinstance(leaf, bool) for leaf in _flatten(value)):
            raise TypeError  # pydantic would accept true as 1
        checked = _to_tuples(TypeAdapter(cast(Any, hint)).validate_python(value))
        if any(isinstance(leaf, int) and abs(leaf) >= MAX_INTEGER for leaf in _flatten(checked)):
            raise TypeError
        return checked
    except (TypeError, OverflowError, ValidationError):
        if literals and isinstance(value, str):
            raise ConfigError(f"{path}: {unknown_name('value', value, literals)}") from None
        raise ConfigError(f"{path} = {_format_value(value)}: expected {describe_type(hint)}") from None


def _to_tuples(value: object) -> object:
    """Convert lists to tuples, because settings are compared and hashed."""
    return tuple(map(_to_tuples, value)) if isinstance(value, (list, tuple)) else value


def _flatten(value: object) -> Iterator[object]:
    """Yield the values in nested lists and tuples, or the value itself."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _flatten(item)
    else:
        yield value


def _union_members(hint: Hint) -> tuple[Hint, ...]:
    """Return the members of a union, or the hint itself."""
    return get_args(hint) if get_origin(hint) in (types.UnionType, typing.Union) else (hint,)


def _is_basic_type(hint: Hint) -> bool:
    """Tell whether an annotation allows only single numbers, text, booleans and null."""
    return all(member in (bool, int, float, str, type(None)) for member in _union_members(hint))


def _literal_texts(hint: Hint) -> list[str]:
    """List the texts that an annotation with `Literal` allows."""
    return [str(v) for m in _union_members(hint) if get_origin(m) is typing.Literal for v in get_args(m)]


def _format_value(value: object) -> str:
    """Format a value as a file would write it."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def describe_type(hint: Hint) -> str:
    """Describe the values that an annotation allows."""
    members = _union_members(hint)
    if len(members) > 1:
        return " or ".join(describe_type(member) for member in members if member is not int or float not in members)
    if get_origin(hint) is typing.Literal:
        return " or ".join(repr(value) for value in get_args(hint))
    if get_origin(hint) is tuple:
        return f"a list, each entry {describe_type(get_args(hint)[0])}"
    return TYPE_TITLES.get(hint, str(hint))


@cache
def _field_types(cls: type) -> dict[str, Hint]:
    """Return the annotations of a class by field."""
    return typing.get_type_hints(cls)
