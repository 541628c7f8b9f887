"""Names that installed packages bring, by entry points: one of the group offbeat.strategies is a strategy, and so on.

    [project.entry-points."offbeat.strategies"]
    cosbuff = "cosbuff.strategy:CosBuff"

They are looked up only when a name is not built in, and loaded only when it is asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from offbeat.core.errors import ConfigError, in_words

log = logging.getLogger("offbeat")

GROUPS = {
    "strategy": "offbeat.strategies",
    "data": "offbeat.datasets",
    "model": "offbeat.models",
    "partition": "offbeat.partitions",
    "delays": "offbeat.delays",
    "network": "offbeat.networks",
    "availability": "offbeat.availability",
    "faults": "offbeat.faults",
    "streaming": "offbeat.streams",
    "staleness": "offbeat.staleness",
    "loss": "offbeat.losses",
}


def names(setting: str, built_in: Collection[str] = ()) -> list[str]:
    """Without what is built in: that wins, and is said once."""
    found = _declared(setting)
    for name in sorted(found.keys() & set(built_in)):
        _say_hidden(setting, name, package_of(setting, name))
    return [name for name in found if name not in built_in]


def load(setting: str, name: str) -> Any:
    try:
        return _declared(setting)[name].load()
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{name!r} is of the package {package_of(setting, name)}, which is broken: {in_words(error)}"
        ) from None


def package_of(setting: str, name: str) -> str:
    """With its version."""
    package = _declared(setting)[name].dist
    return "(unknown)" if package is None else f"{package.name} {package.version}"


@cache
def _declared(setting: str) -> dict[str, EntryPoint]:
    """Of two packages with one name, the first in the order of their names."""
    found = sorted(entry_points(group=GROUPS[setting]), key=lambda e: (e.name, e.dist.name if e.dist else ""))
    return {entry.name: entry for entry in reversed(found)}


@cache
def _say_hidden(setting: str, name: str, package: str) -> None:
    log.warning("%s is a %s of offbeat's own: the one of %s is not used", name, setting, package)
