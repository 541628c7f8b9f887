"""Settings of scenario choices with their checks, lookup of choices by name, and former names of classes."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields
from inspect import getdoc
from math import isfinite
from typing import Annotated, Any, TypeVar

from offbeat.core.errors import ConfigError, require, unknown_name
from offbeat.core.settings import Must, check, least

T = TypeVar("T")

Count = Annotated[int, least(1, "must be at least 1")]
Counts = Annotated[
    tuple[int, ...], Must("needs at least one value, each at least 1", lambda values: min(values, default=0) >= 1)
]
Rates = Annotated[
    tuple[float, ...],
    Must(
        "needs at least one value, each positive and finite",
        lambda values: len(values) > 0 and all(value > 0 and isfinite(value) for value in values),
    ),
]


class ScenarioSettings:
    """Base class of frozen dataclasses with settings: convert lists of files to tuples and check all annotations."""

    def __post_init__(self) -> None:
        """Check the settings and set derived fields."""
        for setting in fields(self):  # type: ignore[arg-type]
            if isinstance(value := getattr(self, setting.name, None), list):
                object.__setattr__(self, setting.name, tuple(value))
        try:
            check(self)
        except ConfigError as error:
            raise ConfigError(f"{type(self).__name__}: {error}") from None


class RangeSettings(ScenarioSettings):
    """Base class of settings that include a range from `low` to `high`."""

    low: float
    high: float

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        require(self.low <= self.high, f"{type(self).__name__}: low = {self.low} is above high = {self.high}")


def find_entry(what: str, registry: Mapping[str, T], name: str) -> T:
    """Return the entry with this name; `what` is the word for it in the error ("model", "delay")."""
    if name not in registry:
        raise unknown_name(what, name, registry)
    return registry[name]


def summaries(registry: Mapping[str, object]) -> dict[str, str]:
    """Return the first paragraph of each entry's docstring in one line, by name."""
    return {name: (getdoc(entry) or "").split("\n\n")[0].replace("\n", " ") for name, entry in registry.items()}


def former_names(module: str, renamed: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module's `__getattr__` that finds objects under their former names and warns once for each."""

    def find_renamed(name: str) -> Any:
        if name not in renamed:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(sys.modules[module], renamed[name])
        setattr(sys.modules[module], name, value)
        warnings.warn(f"{module}.{name} is now called {renamed[name]}", DeprecationWarning, stacklevel=2)
        return value

    return find_renamed
