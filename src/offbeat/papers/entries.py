"""What papers printed, as values: an entry for each column of a table, and for each figure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Literal

RELATIVE_TIME = "relative_time"
NOT_REACHED = inf  # a dash in a table of times: the method did not get there


@dataclass(frozen=True)
class Printed:
    """One cell of a table."""

    value: float
    spread: float | None = None  # its standard deviation, where the paper has one

    def text(self, digits: int) -> str:
        if not isfinite(self.value):
            return "not reached"
        return shown(self.value, digits) + ("" if self.spread is None else f" ± {shown(self.spread, digits)}")


def shown(value: float, digits: int) -> str:
    """Variances are too small for a point."""
    return f"{value:.2e}" if digits < 0 else f"{value:.{digits}f}"


@dataclass(frozen=True)
class Quantity:
    """What is measured, and in which unit the paper prints it."""

    key: str  # one of offbeat's measures, metrics.NAME, or one that `measured` has
    title: str
    better: Literal["more", "less"]
    factor: float = 1.0  # from offbeat's unit to the paper's
    digits: int = 2  # behind the point; -1: powers of ten
    same_unit: bool = True  # else orders can be compared, values cannot
    of_machine: bool = False  # it depends on the machine that computes, not on the world that is simulated


ACCURACY = Quantity("final", "final accuracy, %", "more", 100.0, 1)
BEST = Quantity("best", "best accuracy, %", "more", 100.0, 1)
FAIRNESS = Quantity("variance", "variance between active clients and stragglers", "less", digits=-1)
AREA = Quantity("aulc", "area under the learning curve, accuracy × days", "more", digits=3)
FORGETTING = Quantity("forgetting", "forgetting of the slowest quarter", "less", digits=3)
SERVER = Quantity("server_seconds_an_update", "server seconds an update", "less", digits=4, of_machine=True)


def relative_time(to: str, reference: str) -> Quantity:
    return Quantity(RELATIVE_TIME, f"time to {to}, {reference} = 1", "less")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One claim of a paper, and how it is looked at here."""

    where: str  # in the paper: "Table 2, MNIST"
    claim: str  # in a sentence
    quantity: Quantity
    preset: str | None  # None: nothing that a preset runs
    apart: str = ""  # of such a one: where what came of it is told
    printed: Mapping[str, Printed] = field(default_factory=dict)  # by the label that the method has in the preset
    winner: str | None = None  # whom the claim is about
    kin: tuple[str, ...] = ()  # its variants, which are no rivals
    order: tuple[tuple[str, str], ...] = ()  # (better, worse): what the text says where there are no numbers
    notes: tuple[str, ...] = ()  # what could explain a difference: typos, what is not given, where a spread comes from
    data: str = ""  # of a set that is not to be had freely: what is run in its place
    short: bool = False  # among the few that are run at the quick scale, so that a paper takes minutes


@dataclass(frozen=True, kw_only=True)
class Paper:
    name: str  # as its presets are called
    title: str
    entries: tuple[Entry, ...]
    spread: str  # what a paper's spread can come from
    notes: tuple[str, ...] = ()  # of the whole paper


def cells(values: Mapping[str, float | tuple[float, float]]) -> dict[str, Printed]:
    """Numbers, or pairs of a number and its spread."""
    return {name: Printed(*given) if isinstance(given, tuple) else Printed(given) for name, given in values.items()}
