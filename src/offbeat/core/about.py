"""Descriptions of strategies: the class attribute `about` and the header of a strategy's file."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import Literal

Mode = Literal["synchronous", "semi-asynchronous", "asynchronous", "alone"]


@dataclass(frozen=True, slots=True)
class About:
    """The properties of a method that `offbeat list strategies` prints.

    Paper and year come from the field Paper of the strategy's file.
    """

    mode: Mode  # the server waits for all clients it dispatched to, for some, for none; alone: nothing is shared
    keeps: str  # server state per client, beyond a few numbers
    uploads: str  # content of an upload


def paper_of(strategy: type) -> str:
    """Return the field Paper of the file that defines the strategy, or an empty string."""
    return " ".join(_field(strategy, "Paper").split())


def deviations_of(strategy: type) -> list[str]:
    """Return the numbered items of the field Deviates; the strategy's page in docs lists the same."""
    _, *items = re.split(r"(?:\A|\n)\s+\d+\. ", _field(strategy, "Deviates"))
    return [" ".join(item.split()) for item in items]


def _field(strategy: type, name: str) -> str:
    """Return the text of a field in the header of the strategy's file, or an empty string."""
    text = sys.modules[strategy.__module__].__doc__ or ""
    field = re.search(rf"^{name}:(.*?)(?=^\w+:|\Z)", text, re.DOTALL | re.MULTILINE)
    return field[1] if field else ""


def year_of(paper: str) -> int | None:
    """Return the last year that a reference mentions."""
    years = re.findall(r"\b(?:19|20)\d\d\b", paper)
    return int(years[-1]) if years else None
