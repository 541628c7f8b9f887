"""When clients can be reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Availability(Protocol):
    def next_available(self, client: int, now: float) -> float:
        """The first time >= now at which the client is reachable; inf if it never is again."""
        ...


@dataclass(frozen=True, kw_only=True)
class Always:
    """Every client is reachable all the time."""

    def next_available(self, client: int, now: float) -> float:
        return now


AVAILABILITY: dict[str, type[Availability]] = {"always": Always}
