"""Validation of settings by annotation: `alpha: Share = 0.6` defines the valid range and the error message.

An annotation contains constraints (`Must`); a Literal contains the choices. `check` validates all settings of a
dataclass. A class that inherits from `Settings` is validated on creation. Constraints between two settings belong in
the `__post_init__` of the class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from math import inf, isfinite
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from offbeat.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Must:
    """A constraint of a setting; the error is "NAME = VALUE: message". It does not apply to an allowed None."""

    message: str
    accepts: Callable[[Any], bool]


# annotations are evaluated where a lambda cannot see the names of its module; the functions below can


def least(bound: float, message: str) -> Must:
    """Require a value of at least `bound`."""
    return Must(message, lambda value: value >= bound)


def finite(bound: float, message: str) -> Must:
    """Require a finite value of at least `bound`."""
    return Must(message, lambda value: bound <= value < inf)


def above(bound: float, message: str) -> Must:
    """Require a value greater than `bound`."""
    return Must(message, lambda value: value > bound)


def one_of(*choices: object) -> Must:
    """Require one of these values."""
    *others, last = map(repr, choices)
    return Must(f"{', '.join(others)} or {last}", lambda value: value in choices)


@dataclass(frozen=True, slots=True)
class PathSetting:
    """Marks a setting as a path; a relative path in an experiment file starts at the folder of that file."""

    from_data_root: bool = False  # if the path does not exist there, it starts at the data root


WHOLE = Must("must be a whole number", lambda value: type(value) is int)

Share = Annotated[float, Must("must lie in (0, 1]", lambda x: 0 < x <= 1)]
UpToOne = Annotated[float, Must("must lie in [0, 1]", lambda x: 0 <= x <= 1)]
BelowOne = Annotated[float, Must("must lie in [0, 1)", lambda x: 0 <= x < 1)]
Positive = Annotated[float, above(0, "must be positive")]
Rate = Annotated[float, Must("must be positive and finite", lambda x: x > 0 and isfinite(x))]
NonNegative = Annotated[float, least(0, "must be 0 or more")]
Seconds = Annotated[float, Must("must be a positive number of seconds", lambda x: x > 0 and isfinite(x))]
Exponent = Annotated[float, least(0, "must be 0 or more (a negative one would reward staleness)")]
Amount = Annotated[float, finite(0, "must be 0 or more, and finite")]
File = Annotated[str, PathSetting()]  # a file or folder
DataFile = Annotated[str, PathSetting(from_data_root=True)]


class Settings:
    """Base class of frozen dataclasses that are validated on creation.

    Subclasses with further checks call `super().__post_init__()` first. Slotted classes call `check` instead.
    """

    def __post_init__(self) -> None:
        """Check the settings."""
        check(self)


def check(settings: Any) -> None:
    """Raise ConfigError for the first setting of a dataclass that violates its annotation."""
    for name, optional, musts in _checked_fields(settings.__class__):
        value = getattr(settings, name)
        if value is None and optional:
            continue
        for must in musts:
            if not must.accepts(value):
                raise ConfigError(f"{name} = {value!r}: {must.message}")


@cache  # resolving annotations is slow: once per class
def _checked_fields(cls: type) -> list[tuple[str, bool, tuple[Must, ...]]]:
    """Return name, whether None is allowed, and constraints of each setting that has constraints."""
    hints = get_type_hints(cls, include_extras=True)
    entries = ((f.name, *_constraints_of(hints[f.name])) for f in fields(cls))
    return [entry for entry in entries if entry[2]]


def _constraints_of(hint: object) -> tuple[bool, tuple[Must, ...]]:
    """Return whether None is allowed, and the constraints of other values."""
    musts: list[Must] = []
    if get_origin(hint) is Annotated:
        hint, *extras = get_args(hint)
        musts = [extra for extra in extras if isinstance(extra, Must)]
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    choices = tuple(value for part in parts if get_origin(part) is Literal for value in get_args(part))
    if choices:
        musts.append(one_of(*choices, *([None] if NoneType in parts else [])))
    inside = [must for part in parts if get_origin(part) is Annotated for must in _constraints_of(part)[1]]
    return NoneType in parts, (*musts, *inside)
