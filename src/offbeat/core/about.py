"""What `offbeat list strategies` tells about a method; the class attribute `about` of a strategy."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import Literal

Mode = Literal["synchronous", "semi-asynchronous", "asynchronous", "alone"]


@dataclass(frozen=True, slots=True)
class About:
    """Paper and year are read off the first field of the strategy's file."""

    mode: Mode  # does the server wait for all it asked, for some, for nobody; or is nothing shared
    keeps: str  # what the server holds for each client, beyond a few numbers
    uploads: str  # what a client sends


def paper_of(strategy: type) -> str:
    """The first field of the file the strategy stands in; empty where a file has none."""
    return " ".join(_field(strategy, "Paper").split())


def deviations_of(strategy: type) -> list[str]:
    """The numbered items of the field Deviates; its page has the same."""
    _, *items = re.split(r"(?:\A|\n)\s+\d+\. ", _field(strategy, "Deviates"))
    return [" ".join(item.split()) for item in items]


def _field(strategy: type, name: str) -> str:
    text = sys.modules[strategy.__module__].__doc__ or ""
    field = re.search(rf"^{name}:(.*?)(?=^\w+:|\Z)", text, re.DOTALL | re.MULTILINE)
    return field[1] if field else ""


def year_of(paper: str) -> int | None:
    years = re.findall(r"\b(?:19|20)\d\d\b", paper)
    return int(years[-1]) if years else None
