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


def unknown(what: str, name: str, choices: Iterable[str]) -> ConfigError:
    """The error for a name that does not exist, with the nearest one that does."""
    names = sorted(choices)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
    return ConfigError(f"unknown {what} {name!r}: {hint}")


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
