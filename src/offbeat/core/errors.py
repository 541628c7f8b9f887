"""Errors a user may see. Each says what is wrong, what was given, and the nearest right thing."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class OffbeatError(Exception):
    """Base of every error offbeat raises on purpose; the command line prints it as one line."""


class ConfigError(OffbeatError, ValueError):
    """A setting that cannot be meant: unknown name, wrong type, impossible value."""


class ProtocolError(OffbeatError):
    """A strategy asked for something illegal; nothing of that answer was carried out."""


class DataError(OffbeatError, ValueError):
    """Data that cannot be used: missing, damaged, empty, out of range."""


class MissingData(DataError):
    """Data that is not there, so that other data may do instead; what is there and damaged is no such case."""


class CheckpointError(OffbeatError):
    """A checkpoint that cannot be written or read."""


class RunError(OffbeatError):
    """A run that cannot start or go on."""


def require(condition: bool, message: str) -> None:
    """Check a hyper-parameter; the message names it, its value and its range."""
    if not condition:
        raise ConfigError(message)


FEW = 12  # names that may stand in one line
LISTED = {
    "strategy": "strategies",
    "preset": "presets",
    "preset or file": "presets",
    "data set": "datasets",
    "model": "models",
    "partition": "partitions",
    "delays": "delays",
    "network": "networks",
    "availability": "availability",
    "faults": "faults",
    "streaming": "streams",
    "loss": "losses",
}  # what is unknown -> the list that has them all


def unknown(what: str, name: str, choices: Iterable[str]) -> ConfigError:
    """The error for a name that does not exist, with the nearest that do."""
    names = sorted(choices)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if near and difflib.SequenceMatcher(None, near[0], name).ratio() >= 0.75:
        near = near[:1]  # a slip
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else known_names(what, names, name)
    return ConfigError(f"unknown {what} {name!r}: {hint}")


def known_names(what: str, choices: Iterable[str], name: str = "") -> str:
    """All there is to choose from; of many three, the nearest to `name` if it is given, and where the others stand."""
    names = sorted(choices)
    if len(names) <= FEW:
        return f"known: {', '.join(names)}"
    some = difflib.get_close_matches(name, names, n=3, cutoff=0.0) if name else names[:3]
    where = f"'offbeat list {LISTED[what]}' shows all {len(names)}" if what in LISTED else f"and {len(names) - 3} more"
    return f"known: {', '.join(some)}, …; {where}"


def printable(text: object) -> str:
    """Text of clients and files as it may be printed: what would steer a terminal, or turn the line, is spelled out."""
    plain = str(text)
    if plain.isprintable():
        return plain
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in plain)


def kind(values: Tensor) -> str:
    """Shape and dtype of one example of these, for a message."""
    return f"{tuple(values.shape[1:])} {str(values.dtype).removeprefix('torch.')}"


def plain_text(text: object, most: int = 500) -> str:
    """Text from anywhere as one line to store and print: no lone surrogates, no control characters, not too long."""
    try:
        # by name: a str of another class may have a mind of its own
        whole = str.encode(str(text)[:most], errors="replace").decode()
    except MemoryError:
        raise
    except Exception:
        return f"a {type(text).__name__} that cannot be told"
    return "".join(c if c.isprintable() else " " for c in whole)


def in_words(error: BaseException) -> str:
    """An error in one line, also one that raises when asked what it says."""
    return f"{type(error).__name__}: {plain_text(error)}"


def counted(number: int, what: str) -> str:
    """1 run, 2 runs."""
    return f"{number} {what}{'' if number == 1 else 's'}"
