"""Networks: the time of transfers between server and client. A job is download, training, upload."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, runtime_checkable

from torch import Tensor

from offbeat.core import draws
from offbeat.core.protocol import Layout, LocalWork
from offbeat.core.settings import Amount, Rate
from offbeat.core.strategy_contract import Contract
from offbeat.scenario.client_groups import draw_between
from offbeat.scenario.recordings import MBPS, RecordedLaw, RecordedSeries
from offbeat.scenario.scenario_settings import RangeSettings

MEGABITS_PER_BYTE = 8e-6


class Network(Protocol):
    """A network has the duration of each transfer."""

    def transfer(self, seed: int, client: int, size: int, at: float, up: bool) -> float:
        """Return the seconds that it takes, from `at` on, to send `size` bytes from (up) or to the client."""
        ...


@runtime_checkable
class VaryingNetwork(Protocol):
    """A network has this method too if its speed changes during the run."""

    def guessed(self, seed: int, client: int, size: int, at: float, up: bool) -> float:
        """Return the seconds of the transfer if the speed stayed as it is at that time."""
        ...


@dataclass(frozen=True, kw_only=True)
class Instant:
    """No time for transfers: they are instantaneous, or delays include them."""

    def transfer(self, seed: int, client: int, size: int, at: float, up: bool) -> float:
        """Return the seconds that it takes, from `at` on, to send `size` bytes from (up) or to the client."""
        return 0.0


@dataclass(frozen=True, kw_only=True)
class Offset(RangeSettings):
    """Every job of a client takes some seconds longer, drawn once between `low` and `high` (ASO-Fed's 10 to 100)."""

    low: Amount = 10.0  # seconds
    high: Amount = 100.0

    def transfer(self, seed: int, client: int, size: int, at: float, up: bool) -> float:
        """Return the seconds that it takes, from `at` on, to send `size` bytes from (up) or to the client."""
        return draw_between((self.low, self.high), seed, "network", client) / 2  # half for each direction


@dataclass(frozen=True, kw_only=True)
class Bandwidth(RangeSettings):
    """Models are sent at the client's megabits per second, between `low` and `high`, plus a `latency` each way.

    The bytes are those of the model and of what a method sends with it, as the trace counts them.
    """

    low: Rate = 5.0  # megabits per second of the slowest client
    high: Rate = 50.0
    latency: Amount = 0.05  # seconds
    upload: Rate = 0.2  # upload speed as a share of the download speed

    def mbps(self, seed: int, client: int) -> float:
        """Return the client's download speed; a large draw is slow, as in delays."""
        return self.high - (self.high - self.low) * draws.uniform(seed, "network", client)

    def transfer(self, seed: int, client: int, size: int, at: float, up: bool) -> float:
        """Return the seconds that it takes, from `at` on, to send `size` bytes from (up) or to the client."""
        speed = self.mbps(seed, client) * (self.upload if up else 1.0)
        return self.latency + size * MEGABITS_PER_BYTE / speed


@dataclass(frozen=True, kw_only=True)
class RecordedBandwidth(RecordedLaw):
    """Recorded megabits per second of each client, from a CSV or Parquet file: columns client, t, mbps."""

    column = MBPS

    @cached_property
    def _paces(self) -> dict[int, RecordedSeries]:
        """The series of the clients that were used, in seconds per megabit."""
        return {}

    def transfer(self, seed: int, client: int, size: int, at: float, up: bool) -> float:
        """Return the seconds that it takes, from `at` on, to send `size` bytes from (up) or to the client."""
        pace = self._pace(client)
        return elapsed_seconds(size * MEGABITS_PER_BYTE, at, pace.times, pace.values)

    def guessed(self, seed: int, client: int, size: int, at: float, up: bool) -> float:
        """Return the seconds of the transfer if the speed stayed as it is at that time."""
        return size * MEGABITS_PER_BYTE * self._pace(client).at(at)

    def _pace(self, client: int) -> RecordedSeries:
        """Return the seconds per megabit of a client, computed once because a recording may be long."""
        if client not in self._paces:
            series = self.recording.series_of(client)
            self._paces[client] = replace(series, values=tuple(1.0 / mbps for mbps in series.values))
        return self._paces[client]


NETWORKS: dict[str, type[Network]] = {
    "instant": Instant,
    "offset": Offset,
    "bandwidth": Bandwidth,
    "trace": RecordedBandwidth,
}


@dataclass(frozen=True, slots=True)
class Payload:
    """Compute the download and upload bytes of a job, for worlds whose network takes time.

    Every model counts as sent, because the models that clients keep are unknown when durations are drawn.
    """

    model_bytes: int
    itemsize: int  # bytes of a number that a rule uploads besides the model
    layout: Layout
    shares: bool = True  # False: the strategy sends no models

    @classmethod
    def of(cls, contract: Contract, model: Tensor, layout: Layout) -> Payload:
        """Build the payload of a strategy's jobs."""
        return cls(model.nbytes, model.element_size(), layout, contract.shares)

    def __call__(self, work: LocalWork) -> tuple[int, int]:
        """Return the download and the upload bytes of a job with this work."""
        if not self.shares:
            return 0, 0
        extras = sum(tensor.nbytes for tensor in work.extras.values())
        uploads = {} if work.rule is None else work.rule.uploads(self.layout)
        return self.model_bytes + extras, self.model_bytes + self.itemsize * sum(uploads.values())


def elapsed_seconds(amount: float, started: float, times: Sequence[float], rates: Sequence[float]) -> float:
    """Return how long `amount` takes from `started` on if a unit of it takes rates[i] seconds from times[i] on."""
    i = max(bisect_right(times, started) - 1, 0)
    now = started
    while i + 1 < len(times):
        done = (times[i + 1] - now) / rates[i]
        if done >= amount:
            break
        amount -= done
        i += 1
        now = times[i]
    return now - started + amount * rates[i]
