"""Errors that users see, and functions for their messages: what is wrong, what was given, the nearest valid value."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class OffbeatError(Exception):
    """Base class of all errors that offbeat raises on purpose; the command line prints them as one line."""


class ConfigError(OffbeatError, ValueError):
    """A setting is invalid: unknown name, wrong type or impossible value."""


class ProtocolError(OffbeatError):
    """A strategy returned an illegal action; none of the actions in that answer was carried out."""


class DataError(OffbeatError, ValueError):
    """Data cannot be used: missing, damaged, empty or out of range."""


class MissingData(DataError):
    """Data is missing, so other data may replace it; data that exists but is damaged raises DataError."""


class CheckpointError(OffbeatError):
    """A checkpoint cannot be written or read."""


class RunError(OffbeatError):
    """A run cannot start or continue."""


def require(condition: bool, message: str) -> None:
    """Raise ConfigError unless the condition holds; the message names the setting, its value and its range."""
    if not condition:
        raise ConfigError(message)


MAX_INLINE_NAMES = 12  # longer lists of names are abbreviated in messages
LIST_COMMANDS = {
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
}  # kind of name -> argument of `offbeat list` that shows all of them


def unknown_name(what: str, name: str, choices: Iterable[str]) -> ConfigError:
    """Build the error for a name that does not exist, with the most similar names that do."""
    names = sorted(choices)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if near and difflib.SequenceMatcher(None, near[0], name).ratio() >= 0.75:
        near = near[:1]  # a typing error: only one name is meant
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else describe_choices(what, names, name)
    return ConfigError(f"unknown {what} {name!r}: {hint}")


def describe_choices(what: str, choices: Iterable[str], name: str = "") -> str:
    """List all choices, or the three most similar to `name` and the command that shows all."""
    names = sorted(choices)
    if len(names) <= MAX_INLINE_NAMES:
        return f"known: {', '.join(names)}"
    examples = difflib.get_close_matches(name, names, n=3, cutoff=0.0) if name else names[:3]
    rest = f"and {len(names) - 3} more"
    if what in LIST_COMMANDS:
        rest = f"'offbeat list {LIST_COMMANDS[what]}' shows all {len(names)}"
    return f"known: {', '.join(examples)}, …; {rest}"


def escape_unprintable(text: object) -> str:
    """Escape control and other unprintable characters, so that text from clients and files is safe to print."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def describe_example(values: Tensor) -> str:
    """Describe shape and dtype of a single example of a batch."""
    return f"{tuple(values.shape[1:])} {str(values.dtype).removeprefix('torch.')}"


def to_single_line(text: object, max_length: int = 500) -> str:
    """Convert untrusted text to one bounded line without lone surrogates or control characters."""
    try:
        # str.encode by name: a subclass of str may override the method
        whole = str.encode(str(text)[:max_length], errors="replace").decode()
    except MemoryError:
        raise
    except Exception:
        return f"a {type(text).__name__} without a readable text"
    return "".join(c if c.isprintable() else " " for c in whole)


def describe_error(error: BaseException) -> str:
    """Describe an error in one line, even if its __str__ raises."""
    return f"{type(error).__name__}: {to_single_line(error)}"


def format_count(number: int, what: str) -> str:
    """Format a number with its noun: 1 run, 2 runs."""
    return f"{number} {what}{'' if number == 1 else 's'}"
