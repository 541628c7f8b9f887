"""What `offbeat list strategies` tells about a method; the class attribute `about` of a strategy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mode = Literal["synchronous", "semi-asynchronous", "asynchronous", "alone"]


@dataclass(frozen=True, slots=True)
class About:
    """Paper and year are read off the first field of the strategy's file."""

    mode: Mode  # does the server wait for all it asked, for some, for nobody; or is nothing shared
    keeps: str  # what the server holds for each client, beyond a few numbers
    uploads: str  # what a client sends
