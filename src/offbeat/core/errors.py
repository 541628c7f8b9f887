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


class CheckpointError(OffbeatError):
    """A checkpoint that cannot be written or read."""


class RunError(OffbeatError):
    """A run that cannot start or go on."""


def require(condition: bool, message: str) -> None:
    """Check a hyper-parameter; the message names it, its value and its range."""
    if not condition:
        raise ConfigError(message)


def require_whole(**settings: object) -> None:
    """Check that hyper-parameters that count something are whole numbers; None is whoever's default it is."""
    for name, value in settings.items():
        require(value is None or type(value) is int, f"{name} = {value!r}: must be a whole number")


def unknown(what: str, name: str, choices: Iterable[str]) -> ConfigError:
    """The error for a name that does not exist, with the nearest one that does."""
    names = sorted(choices)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
    return ConfigError(f"unknown {what} {name!r}: {hint}")


def printable(text: object) -> str:
    """Text of clients and files as it may be printed: what would steer a terminal, or turn the line around, is shown
    instead.
    """
    plain = str(text)
    return (
        plain
        if plain.isprintable()
        else "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in plain)
    )


def kind(values: Tensor) -> str:
    """Shape and dtype of one example of these, for a message."""
    return f"{tuple(values.shape[1:])} {str(values.dtype).removeprefix('torch.')}"


def plain_text(text: object, most: int = 500) -> str:
    """Text from anywhere as one line that can be stored and printed: no lone surrogates, no control characters, no
    end to wait for.
    """
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
