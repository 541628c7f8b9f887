"""Quantities and a setting that runs for half a second, shared by the tests of papers."""

from __future__ import annotations

from collections.abc import Mapping

from offbeat.papers.entries import RELATIVE_TIME, PrintedValue, Quantity
from offbeat.papers.run_store import PaperSetting

# two clients, two methods, three updates on synthetic images
SMALL = PaperSetting("orthofl/motivation-30", "quick", until="20s", stand_in=True)
ACCURACY = Quantity("final", "final accuracy, %", "more", 100.0, 1)


def relative_time(to: str, reference: str) -> Quantity:
    return Quantity(RELATIVE_TIME, f"time to {to}, {reference} = 1", "less")


def printed_values(values: Mapping[str, float | tuple[float, float]]) -> dict[str, PrintedValue]:
    """Return printed values for numbers, or pairs of a number and its spread."""
    return {name: PrintedValue(*(value if isinstance(value, tuple) else (value,))) for name, value in values.items()}
