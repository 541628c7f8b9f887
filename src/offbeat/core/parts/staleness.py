"""How much an old update counts: s(u), where u >= 0 versions were committed since its dispatch.

One convention everywhere: s(0) = 1, a fresh update counts fully. (The papers disagree by one; every definition is
mapped to u. Frameworks have shipped the polynomial with a positive exponent, which rewards staleness.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Protocol

from offbeat.core.errors import require, unknown_name
from offbeat.core.protocol import Action, Reject, UpdateArrived
from offbeat.core.settings import least

# versions an update may be old; None: any number
MaxStaleness = Annotated[int | None, least(0, "0 or more")]


class Staleness(Protocol):
    def __call__(self, u: int) -> float: ...


@dataclass(frozen=True, slots=True)
class Constant:
    def __call__(self, u: int) -> float:
        return 1.0


@dataclass(frozen=True, slots=True)
class Polynomial:
    a: float = 0.5

    def __post_init__(self) -> None:
        require(
            self.a >= 0, f"polynomial staleness a = {self.a}: must be 0 or more (a negative one would reward staleness)"
        )

    def __call__(self, u: int) -> float:
        return float((u + 1) ** -self.a)


@dataclass(frozen=True, slots=True)
class Hinge:
    a: float = 10.0
    b: float = 4.0

    def __post_init__(self) -> None:
        require(self.a >= 0 and self.b >= 0, f"hinge staleness a = {self.a}, b = {self.b}: both must be 0 or more")

    def __call__(self, u: int) -> float:
        # the "+1" keeps s <= 1 just past the hinge; some frameworks drop it
        return 1.0 if u <= self.b else 1.0 / (self.a * (u - self.b) + 1.0)


@dataclass(frozen=True, slots=True)
class Exponential:
    a: float = 0.5

    def __post_init__(self) -> None:
        require(self.a >= 0, f"exponential staleness a = {self.a}: must be 0 or more")

    def __call__(self, u: int) -> float:
        return math.exp(-self.a * u)


STALENESS: dict[str, type] = {
    "constant": Constant,
    "polynomial": Polynomial,
    "hinge": Hinge,
    "exponential": Exponential,
}


def as_staleness(value: Staleness | str) -> Staleness:
    """A staleness function or its short name."""
    if not isinstance(value, str):
        return value
    if value not in STALENESS:
        raise unknown_name("staleness", value, STALENESS)
    made: Staleness = STALENESS[value]()
    return made


def reject_if_too_old(event: UpdateArrived, u: int, most: int | None) -> list[Action]:
    """The refusal of an update that is older than it may be, if it is."""
    return [] if most is None or u <= most else [Reject(event.client, event.ticket, f"staleness {u} is over {most}")]
