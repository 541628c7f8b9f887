"""The simulated world: data sets and their division among clients, models, delays, network, availability, faults.

Each kind of choice has a registry, a dict from names to classes. The first paragraph of a class's docstring is the
summary that `offbeat list` prints.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from inspect import getdoc
from typing import Any, TypeVar

from offbeat.core.errors import unknown_name

T = TypeVar("T")


def find_entry(what: str, registry: Mapping[str, T], name: str) -> T:
    """Return the entry with this name; `what` is the word for it in the error ("model", "delay")."""
    if name not in registry:
        raise unknown_name(what, name, registry)
    return registry[name]


def summary(entry: object) -> str:
    """Return the first paragraph of the docstring in one line."""
    return (getdoc(entry) or "").split("\n\n")[0].replace("\n", " ")


def summaries(registry: Mapping[str, object]) -> dict[str, str]:
    return {name: summary(entry) for name, entry in registry.items()}


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
