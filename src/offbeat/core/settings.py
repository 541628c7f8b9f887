"""Settings that know what they may be: `alpha: Share = 0.6` says what is refused, and with which words.

An annotation carries what its value must keep (`Must`), a Literal its choices. `check` looks at all of a dataclass's
settings; a class that inherits `Settings` is checked when it is made. What depends on two settings at once stays in
that class's own `__post_init__`.
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
    """What a value must keep; the message is its name, the value, and `says`. None, where it is allowed, may stand."""

    says: str
    test: Callable[[Any], bool]


# annotations are evaluated where the names of their module are out of sight of a lambda: hence these


def least(bound: float, says: str) -> Must:
    return Must(says, lambda value: value >= bound)


def finite(bound: float, says: str) -> Must:
    """At least so much, and finite."""
    return Must(says, lambda value: bound <= value < inf)


def above(bound: float, says: str) -> Must:
    return Must(says, lambda value: value > bound)


def one_of(*choices: object) -> Must:
    *others, last = map(repr, choices)
    return Must(f"{', '.join(others)} or {last}", lambda value: value in choices)


@dataclass(frozen=True, slots=True)
class Place:
    """The setting is a path: a relative one in an experiment file is meant from where the file lies."""

    root: bool = False  # where nothing is there, from the data root


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
File = Annotated[str, Place()]  # or a folder
DataFile = Annotated[str, Place(root=True)]


class Settings:
    """A frozen dataclass whose annotations are checked; one with more to check calls this first (slotted: `check`)."""

    def __post_init__(self) -> None:
        check(self)


def check(settings: Any) -> None:
    """Refuse the first setting of a dataclass that is not what its annotation says."""
    for name, optional, musts in _musts(settings.__class__):
        value = getattr(settings, name)
        if value is None and optional:
            continue
        for must in musts:
            if not must.test(value):
                raise ConfigError(f"{name} = {value!r}: {must.says}")


@cache  # annotations are resolved once a class, not once a value
def _musts(cls: type) -> tuple[tuple[str, bool, tuple[Must, ...]], ...]:
    hints = get_type_hints(cls, include_extras=True)
    found = ((f.name, *_of(hints[f.name])) for f in fields(cls))
    return tuple(entry for entry in found if entry[2])


def _of(hint: Any) -> tuple[bool, tuple[Must, ...]]:
    """May it be None, and what must it keep otherwise?"""
    musts: list[Must] = []
    if get_origin(hint) is Annotated:
        hint, *extras = get_args(hint)
        musts = [extra for extra in extras if isinstance(extra, Must)]
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    choices = tuple(value for part in parts if get_origin(part) is Literal for value in get_args(part))
    if choices:
        musts.append(one_of(*choices, *([None] if NoneType in parts else [])))
    inside = [must for part in parts if get_origin(part) is Annotated for must in _of(part)[1]]
    return NoneType in parts, (*musts, *inside)
