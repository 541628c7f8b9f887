"""Availability of clients: windows of time in which they are reachable, as pure functions of the seed and the client.

A client that leaves while it trains crashes: its ticket is lost. An idle client that leaves returns with its next
window.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import floor, inf
from typing import Annotated, NamedTuple

from offbeat.core import draws
from offbeat.core.errors import require
from offbeat.core.settings import Must, UpToOne, finite
from offbeat.scenario.client_groups import Range, belongs_to_share, draw_between, store_range
from offbeat.scenario.recordings import AVAILABLE, RecordedLaw, RecordedSeries
from offbeat.scenario.scenario_settings import ScenarioSettings

MIN_PERIOD_SECONDS = 1e-3  # with shorter periods a run would do nothing but change windows
MIN_SHARE = 1e-4  # of a share that is drawn in each period: the search for the next rarer period would be too long


class Window(NamedTuple):
    """The client is available from `start` on and until before `end`."""

    start: float
    end: float


Duration = Annotated[float, finite(MIN_PERIOD_SECONDS, f"must be finite and at least {MIN_PERIOD_SECONDS:g} seconds")]
PeriodicShare = Annotated[
    float,
    Must(
        f"must be 0, or from {MIN_SHARE:g} to {1 - MIN_SHARE:g}",
        lambda share: share == 0 or MIN_SHARE <= share <= 1 - MIN_SHARE,
    ),
]
FOREVER, NEVER = Window(-inf, inf), Window(inf, inf)


class Availability(ABC):
    """A law of availability defines the windows of each client; they do not touch."""

    @abstractmethod
    def window(self, seed: int, client: int, now: float) -> Window:
        """Return the client's present window, or else its next one: the first that ends after now."""

    def next_available(self, seed: int, client: int, now: float) -> float:
        """Return the first time >= now at which the client is reachable; inf if there is none."""
        return max(self.window(seed, client, now).start, now)


@dataclass(frozen=True, kw_only=True)
class Always(Availability):
    """Every client is always reachable."""

    def window(self, seed: int, client: int, now: float) -> Window:
        return FOREVER


@dataclass(frozen=True, kw_only=True)
class Dropout(ScenarioSettings, Availability):
    """A share of the clients drops out forever, at one time or each at a time drawn between two (ASO-Fed, Fig. 4)."""

    share: UpToOne = 0.3
    at: float | Range = 0.0  # virtual seconds, or two: each client draws its own; 0: they never take part

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        store_range(self, "at")

    def window(self, seed: int, client: int, now: float) -> Window:
        if not belongs_to_share(self.share, seed, "dropout", client):
            return FOREVER
        end = draw_between(self.at, seed, "dropout time", client)
        return Window(-inf, end) if now < end else NEVER


@dataclass(frozen=True, kw_only=True)
class JoinAndLeave(ScenarioSettings, Availability):
    """A share of the clients joins late and leaves forever after `stay` seconds; the others are always available."""

    join: float | Range = (0.0, 600.0)  # virtual seconds, or two: each client draws its own
    stay: float | Range | None = None  # seconds from then on; None: forever
    share: UpToOne = 1.0

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        store_range(self, "join")
        if self.stay is not None:
            store_range(self, "stay")

    def window(self, seed: int, client: int, now: float) -> Window:
        if not belongs_to_share(self.share, seed, "newcomers", client):
            return FOREVER
        start = draw_between(self.join, seed, "join", client)
        end = inf if self.stay is None else start + draw_between(self.stay, seed, "stay", client)
        return Window(start, end) if now < end else NEVER


@dataclass(frozen=True, kw_only=True)
class Periodic(ScenarioSettings, Availability):
    """In every period another share of the clients is away: each draws anew in each period (ASO-Fed, Fig. 5).

    The draw is for a period of time, not for an iteration as in the paper. With a period as long as a client's job the
    two are similar, but a job that extends into a period of absence is lost.
    """

    share: PeriodicShare = 0.2  # of all clients, on average
    period: Duration = 600.0  # virtual seconds

    def window(self, seed: int, client: int, now: float) -> Window:
        if self.share == 0:
            return FOREVER
        first = floor(now / self.period)
        # rounding may put now into the next period
        while self._away(seed, client, first) or (first + 1) * self.period <= now:
            first += 1
        last = first
        while not self._away(seed, client, last + 1):
            last += 1
        return Window(first * self.period, (last + 1) * self.period)

    def _away(self, seed: int, client: int, number: int) -> bool:
        """Check whether the client is away in the period with this number."""
        return draws.uniform(seed, "periodic", client, number) < self.share


@dataclass(frozen=True, kw_only=True)
class Diurnal(ScenarioSettings, Availability):
    """Clients are available for some hours of every day, such as devices that charge at night."""

    begin: float | Range = (20.0, 24.0)  # hour of the day, or two: each client draws its own
    hours: float | Range = (6.0, 10.0)
    day: Duration = 86400.0  # virtual seconds of a day; the run begins at midnight

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        low, high = store_range(self, "hours")
        store_range(self, "begin")
        require(low > 0 and high < 24, f"Diurnal: hours = {self.hours}: must be more than 0 and less than 24")
        shortest = low * self.day / 24
        span = f"hours = {low} are {shortest:g} s of a day of {self.day:g} s"
        require(shortest >= MIN_PERIOD_SECONDS, f"Diurnal: {span}: must be at least {MIN_PERIOD_SECONDS:g} s")

    def window(self, seed: int, client: int, now: float) -> Window:
        hour = self.day / 24
        begin = draw_between(self.begin, seed, "day begins", client) % 24 * hour
        length = draw_between(self.hours, seed, "day's hours", client) * hour
        number = floor((now - begin) / self.day)
        while number * self.day + begin + length <= now:
            number += 1
        start = number * self.day + begin
        return Window(start, start + length)


@dataclass(frozen=True, kw_only=True)
class Churn(ScenarioSettings, Availability):
    """Clients come and go at random: exponential times of presence (mean `up` seconds) and absence (`down`)."""

    up: Duration = 3600.0  # mean seconds of presence
    down: Duration = 600.0  # mean seconds of absence
    share: UpToOne = 1.0  # of the clients; the others are always available
    # cache of (number, window) for each (seed, client): the last window, which can be drawn again at any time
    _last: dict[tuple[int, int], tuple[int, Window]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def window(self, seed: int, client: int, now: float) -> Window:
        if not belongs_to_share(self.share, seed, "churners", client):
            return FOREVER
        number, window = self._last.get((seed, client)) or (0, self._first_window(seed, client))
        if now < window.start:
            number, window = 0, self._first_window(seed, client)
        while window.end <= now:
            number += 1
            start = window.end + draws.exponential(seed, "churn down", client, number, mean=self.down)
            window = Window(start, start + draws.exponential(seed, "churn up", client, number, mean=self.up))
        if number:  # the first window is drawn quickly, and of a million clients most never need another
            self._last[seed, client] = number, window
        return window

    def _first_window(self, seed: int, client: int) -> Window:
        """Draw the first window; the share of clients that start available is the long-term average."""
        available = draws.uniform(seed, "churn start", client) < self.up / (self.up + self.down)
        start = 0.0 if available else draws.exponential(seed, "churn down", client, 0, mean=self.down)
        return Window(start, start + draws.exponential(seed, "churn up", client, 0, mean=self.up))


@dataclass(frozen=True, kw_only=True)
class RecordedAvailability(RecordedLaw, Availability):
    """Recorded presence of each client, from a CSV or Parquet file: columns client, t, available (0 or 1)."""

    column = AVAILABLE

    @cached_property
    def _windows(self) -> dict[int, list[Window]]:
        """The windows of each recorded client, in the order of time."""
        return {client: list(_find_windows(series)) for client, series in self.recording.clients.items()}

    def window(self, seed: int, client: int, now: float) -> Window:
        self.recording.series_of(client)  # raises an error if there is none
        windows = self._windows[client]
        i = bisect_right(windows, now, key=lambda window: window.end)
        return windows[i] if i < len(windows) else NEVER


AVAILABILITY: dict[str, type[Availability]] = {
    "always": Always,
    "dropout": Dropout,
    "periodic": Periodic,
    "diurnal": Diurnal,
    "churn": Churn,
    "join_and_leave": JoinAndLeave,
    "trace": RecordedAvailability,
}


def _find_windows(series: RecordedSeries) -> Iterator[Window]:
    """Yield the windows of a series of ones and zeros; the last value is valid forever."""
    start: float | None = None
    for t, available in zip(series.times, series.values, strict=True):
        if available and start is None:
            start = t
        elif not available and start is not None:
            yield Window(start, t)
            start = None
    if start is not None:
        yield Window(start, inf)
