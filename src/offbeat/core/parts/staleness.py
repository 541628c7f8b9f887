"""Staleness functions s(u): the weight of an update when u >= 0 versions were committed since its dispatch.

All functions satisfy s(0) = 1, so a fresh update has full weight. Papers that count from 1 are mapped to u.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Protocol

from offbeat.core.errors import require, unknown_name
from offbeat.core.protocol import Action, Reject, UpdateArrived
from offbeat.core.settings import least

# largest accepted staleness u; None: no limit
MaxStaleness = Annotated[int | None, least(0, "0 or more")]


class Staleness(Protocol):
    """A function of the staleness u."""

    def __call__(self, u: int) -> float: ...


@dataclass(frozen=True, slots=True)
class Constant:
    """No discount: s(u) = 1."""

    def __call__(self, u: int) -> float:
        return 1.0


@dataclass(frozen=True, slots=True)
class Polynomial:
    """Polynomial discount: s(u) = (u + 1)^-a."""

    a: float = 0.5

    def __post_init__(self) -> None:
        """Check the settings."""
        message = f"polynomial staleness a = {self.a}: must be 0 or more (a negative one would reward staleness)"
        require(self.a >= 0, message)

    def __call__(self, u: int) -> float:
        return float((u + 1) ** -self.a)


@dataclass(frozen=True, slots=True)
class Hinge:
    """Full weight up to u = b, then s(u) = 1 / (a (u - b) + 1)."""

    a: float = 10.0
    b: float = 4.0

    def __post_init__(self) -> None:
        """Check the settings."""
        require(self.a >= 0 and self.b >= 0, f"hinge staleness a = {self.a}, b = {self.b}: both must be 0 or more")

    def __call__(self, u: int) -> float:
        # the "+ 1" keeps s(u) <= 1 just past the hinge; some frameworks drop it
        return 1.0 if u <= self.b else 1.0 / (self.a * (u - self.b) + 1.0)


@dataclass(frozen=True, slots=True)
class Exponential:
    """Exponential discount: s(u) = exp(-a u)."""

    a: float = 0.5

    def __post_init__(self) -> None:
        """Check the settings."""
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
    """Return a staleness function, given itself or its short name."""
    if not isinstance(value, str):
        return value
    if value not in STALENESS:
        raise unknown_name("staleness", value, STALENESS)
    function: Staleness = STALENESS[value]()
    return function


def reject_if_too_old(event: UpdateArrived, u: int, limit: int | None) -> list[Action]:
    """Return a Reject for an update that is older than allowed, else no action."""
    return [] if limit is None or u <= limit else [Reject(event.client, event.ticket, f"staleness {u} is over {limit}")]
