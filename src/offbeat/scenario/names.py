"""Names for what an experiment can choose. A registry is a plain dict of classes (or functions).

The first sentence of an entry's docstring is its summary, so what `offbeat list` prints stands next to the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import getdoc
from typing import Any, TypeVar

from offbeat.core.errors import unknown

T = TypeVar("T")


def find(what: str, registry: Mapping[str, T], name: str) -> T:
    """The entry of that name; `what` is the word for it in the error ("model", "delay")."""
    if name not in registry:
        raise unknown(what, name, registry)
    return registry[name]


def summary(entry: Any) -> str:
    """One line about an entry."""
    return (getdoc(entry) or "").split("\n\n")[0].replace("\n", " ")


def summaries(registry: Mapping[str, Any]) -> dict[str, str]:
    return {name: summary(entry) for name, entry in registry.items()}
